//! The objects of the program, and the requests whose completion it has not polled.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use feroce::{Access, Cqe, Data, Lkey, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};

use crate::report::{self, Said};

/// The ledger of this process.
static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::new(report::hold));

/// Reads or changes the ledger of this process. Warnings are printed without its lock.
pub(crate) fn with<R>(f: impl FnOnce(&mut Ledger) -> R) -> R {
    let result = f(&mut LEDGER.lock().unwrap_or_else(PoisonError::into_inner));
    report::print_held();
    result
}

/// A queue pair. Its number is unique per device only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    /// The address of its context.
    pub context: usize,
    /// Its number.
    pub qpn: u32,
}

impl Name {
    /// The numbers by which [`Said`] tells objects apart.
    pub(crate) fn object(self) -> (usize, u64) {
        (self.context, self.qpn.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}", self.qpn)
    }
}

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqFacts {
    /// The address of the `ibv_cq`.
    pub addr: usize,
    /// How many completions it holds.
    pub depth: u64,
}

/// The queues of a queue pair.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Where sends complete.
    pub send_cq: Option<CqFacts>,
    /// Where receives complete.
    pub recv_cq: Option<CqFacts>,
    /// Depth of the send queue.
    pub max_send: u32,
    /// Depth of the receive queue.
    pub max_recv: u32,
    /// The address of its shared receive queue.
    pub srq: Option<usize>,
    /// Whether every send is signalled.
    pub signal_all: bool,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The address of its context.
    pub context: usize,
    /// Its local key.
    pub lkey: u32,
    /// The address of its first byte.
    pub addr: usize,
    /// The rights that it was registered with.
    pub access: Access,
}

/// The operation of a request, as far as access rights depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Receive,
    Send,
    Write,
    Read,
    Atomic,
}

impl Work {
    /// Whether it writes to local memory.
    pub(crate) fn writes_here(self) -> bool {
        matches!(self, Self::Receive | Self::Read | Self::Atomic)
    }
}

/// A request that was posted.
#[derive(Clone, Debug)]
pub struct Request {
    wr_id: u64,
    pub(crate) work: Work,
    pub(crate) signalled: bool,
    pub(crate) lkeys: Vec<Lkey>,
}

fn lkeys(sges: &[Sge]) -> Vec<Lkey> {
    // The adapter does not check the key of an empty element.
    sges.iter().filter(|sge| sge.len > 0).map(|sge| sge.lkey).collect()
}

impl Request {
    /// The record of a send.
    pub fn send(wr: &SendWr) -> Self {
        let work = match wr.op {
            SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::AtomicWrite(_) => Work::Write,
            SendOp::Read(_) | SendOp::Flush { .. } => Work::Read,
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => Work::Atomic,
            _ => Work::Send,
        };
        let lkeys = match &wr.data {
            Data::Sges(sges) => lkeys(sges.as_slice()),
            Data::Inline(_) => Vec::new(),
        };
        let signalled = wr.flags.contains(SendFlags::SIGNALED);
        Self { wr_id: wr.wr_id, work, signalled, lkeys }
    }

    /// The record of a receive.
    pub fn receive(wr: &RecvWr) -> Self {
        let lkeys = lkeys(wr.sges.as_slice());
        Self { wr_id: wr.wr_id, work: Work::Receive, signalled: true, lkeys }
    }
}

/// A queue pair and its outstanding requests.
#[derive(Debug)]
pub(crate) struct Posts {
    pub(crate) queues: Queues,
    pub(crate) access: Access,
    pub(crate) sends: VecDeque<Request>,
    pub(crate) receives: VecDeque<Request>,
}

impl Posts {
    pub(crate) fn new(queues: Queues) -> Self {
        let (sends, receives) = (VecDeque::new(), VecDeque::new());
        Self { queues, access: Access::empty(), sends, receives }
    }
}

/// Everything that rules check.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) said: Said,
    pub(crate) qps: BTreeMap<Name, Posts>,
    /// Outstanding receives of each shared receive queue, by its address.
    pub(crate) srqs: BTreeMap<usize, VecDeque<Request>>,
    /// Registrations by context and key.
    pub(crate) mrs: BTreeMap<(usize, u32), Memory>,
}

impl Ledger {
    pub(crate) const fn new(print: fn(&str)) -> Self {
        Self {
            said: Said::new(print),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mrs: BTreeMap::new(),
        }
    }

    pub(crate) fn forget_posts(&mut self, name: Name) {
        let Some(qp) = self.qps.get_mut(&name) else { return };
        qp.sends.clear();
        qp.receives.clear();
        let srq = qp.queues.srq;
        // The queue pair may have taken receives that never complete, and the ledger does not know
        // which. Receives that are posted later are recorded again.
        if let Some(shared) = srq.and_then(|srq| self.srqs.get_mut(&srq)) {
            shared.clear();
        }
    }

    pub(crate) fn forget_qp(&mut self, name: Name) {
        self.forget_posts(name);
        self.qps.remove(&name);
    }

    pub(crate) fn set_access(&mut self, name: Name, access: Access) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.access = access;
        }
    }

    pub(crate) fn resize_cq(&mut self, cq: CqFacts) {
        let queues = self.qps.values_mut().map(|qp| &mut qp.queues);
        let cqs = queues.flat_map(|queues| [&mut queues.send_cq, &mut queues.recv_cq]);
        cqs.flatten().filter(|known| known.addr == cq.addr).for_each(|known| *known = cq);
    }

    /// Records a send; returns where it will complete.
    pub(crate) fn post_send(&mut self, name: Name, mut request: Request) -> Option<CqFacts> {
        let qp = self.qps.get_mut(&name)?;
        request.signalled |= qp.queues.signal_all;
        qp.sends.push_back(request);
        // The queue had room, so the requests beyond its depth are complete.
        let most = qp.queues.max_send as usize;
        qp.sends.drain(..qp.sends.len().saturating_sub(most));
        qp.queues.send_cq
    }

    pub(crate) fn take_back_sends(&mut self, name: Name, count: usize) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.sends.truncate(qp.sends.len().saturating_sub(count));
        }
    }

    /// Records receives; returns where they will complete.
    pub(crate) fn post_receives(&mut self, name: Name, requests: Vec<Request>) -> Option<CqFacts> {
        let qp = self.qps.get_mut(&name)?;
        qp.receives.extend(requests);
        qp.queues.recv_cq
    }

    /// Records shared receives; returns where they may complete.
    pub(crate) fn post_shared(&mut self, srq: usize, requests: Vec<Request>) -> Vec<CqFacts> {
        let Some(shared) = self.srqs.get_mut(&srq) else { return Vec::new() };
        shared.extend(requests);
        let takers = self.qps.values().filter(|qp| qp.queues.srq == Some(srq));
        takers.filter_map(|qp| qp.queues.recv_cq).collect()
    }

    pub(crate) fn take_back_shared(&mut self, srq: usize, count: usize) {
        if let Some(shared) = self.srqs.get_mut(&srq) {
            shared.truncate(shared.len().saturating_sub(count));
        }
    }

    pub(crate) fn take_back_receives(&mut self, name: Name, count: usize) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.receives.truncate(qp.receives.len().saturating_sub(count));
        }
    }

    /// Removes the completed request from its queue, and with it the unsignalled ones before it.
    pub(crate) fn complete(&mut self, name: Name, cqe: &Cqe) -> Option<Request> {
        let qp = self.qps.get_mut(&name)?;
        if matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            let Some(srq) = qp.queues.srq else { return qp.receives.pop_front() };
            // Receives of a shared queue complete in any order.
            let shared = self.srqs.get_mut(&srq)?;
            let at = shared.iter().position(|request| request.wr_id == cqe.wr_id)?;
            return shared.remove(at);
        }
        let is_it = |request: &Request| match cqe.status {
            WcStatus::Success => request.signalled,
            _ => request.wr_id == cqe.wr_id,
        };
        let at = qp.sends.iter().position(is_it)?;
        qp.sends.drain(..=at).next_back()
    }
}
