//! The established state of a connection.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::Qpn;
use feroce_wire::cm::{Apr, CmMessage, Dreq, Lap};
use feroce_wire::mad::MAD_LEN;

use super::{BoxedEnds, DreqSent, Times};
use crate::out::Out;
use crate::retry::Retry;

/// APR status: alternate paths are not supported.
const APR_UNSUPPORTED: u8 = 2;

/// Both queue pairs are ready to send and receive.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) ends: BoxedEnds,
    /// The RTU, on the active side; sent again for duplicates of REP.
    pub(crate) rtu: Option<Box<[u8; MAD_LEN]>>,
}

impl Established {
    /// The consumer disconnects: the manager sends DREQ.
    pub(crate) fn disconnect(mut self, now: Instant, times: &Times, out: &mut Out) -> DreqSent {
        let dreq = CmMessage::Dreq(Dreq {
            local_id: self.ends.id,
            remote_id: self.ends.remote_id,
            remote_qpn: self.ends.plan.remote_qpn.unwrap_or(Qpn::QP0),
            private_data: [0; 220],
        });
        let bytes = dreq.emit(self.ends.own_transaction);
        if self.ends.may_send(out) {
            out.send_bytes(self.ends.peer, bytes);
        }
        let retry =
            Retry::new(now, bytes, times.request_ns, times.retries).probing(now, times.probe_ns);
        DreqSent { ends: self.ends, retry }
    }

    /// A duplicate of REP arrives, so the RTU was probably lost: the manager sends it again.
    pub(crate) fn on_duplicate_rep(self, out: &mut Out) -> Self {
        out.counters.duplicate += 1;
        if let Some(rtu) = &self.rtu {
            out.repeat(self.ends.peer, rtu);
        }
        self
    }

    /// The peer proposes an alternate path (LAP): the manager refuses it (APR).
    pub(crate) fn on_lap(self, transaction: u64, lap: &Lap, out: &mut Out) -> Self {
        let apr = Apr {
            local_id: lap.remote_id,
            remote_id: lap.local_id,
            info_len: 0,
            status: APR_UNSUPPORTED,
            info: [0; 72],
            private_data: [0; 148],
        };
        out.send(self.ends.peer, transaction, &CmMessage::Apr(apr));
        self
    }
}
