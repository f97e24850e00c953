//! A receive that a message fills.

use feroce_mem::{MrTable, PdId};
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::buffers::{ScatterError, scatter};
use super::rx_payload::RxPayload;
use crate::hca::cqe::{Cqe, WcOpcode, WcStatus};
use crate::hca::id::{CqId, SrqId};
use crate::hca::wr::RecvWr;

/// A receive that a message is being placed into.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) wr: RecvWr,
    /// Bytes placed.
    pub(super) filled: u64,
    /// Where it completes.
    pub(super) cq: CqId,
    /// Whose memory it is.
    pub(super) pd: PdId,
    /// The shared queue that it came from, if any.
    pub(super) srq: Option<SrqId>,
}

impl Receive {
    /// Appends `data`.
    #[inline]
    pub(super) fn fill(&mut self, mrs: &MrTable, data: RxPayload<'_>) -> Result<(), ScatterError> {
        scatter(mrs, self.pd, self.wr.sges.as_slice(), self.filled, data)?;
        self.filled += data.len() as u64;
        Ok(())
    }

    /// Whether `len` more bytes fit.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.filled + len <= self.wr.sges.total_len()
    }

    /// Forgets what was placed: an unreliable message was cut short.
    pub(super) fn rewind(&mut self) {
        self.filled = 0;
    }

    /// Its completion, with the bytes placed so far.
    #[inline]
    pub(super) fn completion(
        &self,
        qpn: Qpn,
        opcode: WcOpcode,
        status: WcStatus,
        now: Instant,
    ) -> Cqe {
        Cqe { byte_len: self.filled as u32, ..Cqe::new(self.wr.wr_id, qpn, opcode, status, now) }
    }

    /// Where it completes.
    pub(super) fn cq(&self) -> CqId {
        self.cq
    }
}
