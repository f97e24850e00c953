//! What the adapter has, for people who look into it.

use alloc::vec::Vec;

use feroce_wire::{Gid, Qpn};

use super::Engine;
use super::transport::Transport;
use crate::hca::counters::QpCounters;
use crate::hca::cq::CqReport;
use crate::hca::id::CqId;
use crate::hca::state::{QpState, QpType};

/// The objects of an adapter; see [`Engine::report`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What all queue pairs did together, with those that do not exist any more.
    pub totals: QpCounters,
    /// Queue pairs.
    pub qps: Vec<QpReport>,
    /// Completion queues.
    pub cqs: Vec<CqReport>,
    /// Memory regions, and their bytes.
    pub mrs: usize,
    /// Bytes of all memory regions.
    pub mr_bytes: u64,
    /// Protection domains.
    pub pds: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Address handles.
    pub ahs: usize,
}

/// A queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpReport {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// Address and number of the queue pair that it is connected to.
    pub peer: Option<(Gid, Qpn)>,
    /// Requests in the send queue that are not complete.
    pub waiting: usize,
    /// The smoothed round trip time to its peer; zero until one was measured.
    pub rtt_ns: u64,
    /// Bytes that may be in flight to its peer; zero where there is no such limit.
    pub window: u64,
    /// What it did.
    pub counters: QpCounters,
}

impl Report {
    /// Adds the queue pairs of another shard, and what they did. What every shard has counts once.
    pub fn add(&mut self, other: Self) {
        self.totals.add(&other.totals);
        self.qps.extend(other.qps);
        for cq in &mut self.cqs {
            for copy in other.cqs.iter().filter(|copy| copy.id == cq.id) {
                cq.waiting += copy.waiting;
                cq.users += copy.users;
            }
        }
    }
}

impl Engine {
    /// What the adapter has now. The work grows with the number of its queue pairs, completion
    /// queues and memory regions.
    pub fn report(&self) -> Report {
        let hca = &self.port.hca;
        let (mrs, mr_bytes) = hca.mrs.regions();
        let mut totals = hca.departed;
        self.qps.iter().for_each(|qp| totals.add(&qp.common().counters));
        Report {
            totals,
            qps: self.qps.iter().map(|qp| self.report_qp(qp)).collect(),
            cqs: hca.cqs.iter().map(|(id, cq)| cq.report(CqId(id))).collect(),
            mrs,
            mr_bytes,
            pds: hca.pds.len(),
            srqs: hca.srqs.len(),
            ahs: hca.ahs.len(),
        }
    }

    fn report_qp(&self, qp: &Transport) -> QpReport {
        let common = qp.common();
        let has_peer = !matches!(common.state, QpState::Reset | QpState::Init);
        let (mut gid, mut rtt_ns, mut window) = (Gid::default(), 0, 0);
        if let Transport::Ib(qp) = qp {
            gid = qp.peer_end().0.dst.gid;
            if let Some(id) = qp.destination() {
                (rtt_ns, window) = self.port.destinations.round_trip_and_window(id);
            }
        }
        let peer = common.attr.dest_qpn.filter(|_| has_peer).map(|qpn| (gid, qpn));
        QpReport {
            qpn: common.qpn,
            qp_type: common.init.qp_type,
            state: common.state,
            peer,
            waiting: common.sq.len(),
            rtt_ns,
            window,
            counters: common.counters,
        }
    }
}
