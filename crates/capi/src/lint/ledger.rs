//! What the program has, and what it has posted and not seen complete.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use feroce::{Access, Cqe, Data, Lkey, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};

use super::report::Said;

/// The one of this process.
pub(super) static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::new());

/// A queue pair: numbers are the affair of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Name {
    /// The address of its context.
    pub(crate) context: usize,
    pub(crate) qpn: u32,
}

impl Name {
    /// To tell objects apart that something was said about.
    pub(super) fn object(self) -> (usize, u64) {
        (self.context, self.qpn.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}", self.qpn)
    }
}

/// A completion queue: its address and how many completions it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CqFacts {
    pub(crate) addr: usize,
    pub(crate) depth: u64,
}

/// The queues of a queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) send_cq: Option<CqFacts>,
    pub(crate) recv_cq: Option<CqFacts>,
    pub(crate) max_send: u32,
    pub(crate) max_recv: u32,
    /// The address of the shared queue that it takes receives from.
    pub(crate) srq: Option<usize>,
    /// Whether every send is signalled.
    pub(crate) signal_all: bool,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The address of its context.
    pub(crate) context: usize,
    pub(crate) lkey: u32,
    pub(crate) addr: usize,
    pub(crate) access: Access,
}

/// What a request does, as far as rights go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Receive,
    Send,
    Write,
    Read,
    Atomic,
}

impl Work {
    /// Whether it puts something into local memory.
    pub(super) fn writes_here(self) -> bool {
        matches!(self, Self::Receive | Self::Read | Self::Atomic)
    }
}

/// A request that was posted.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    wr_id: u64,
    pub(super) work: Work,
    pub(super) signalled: bool,
    pub(super) lkeys: Vec<Lkey>,
}

fn lkeys(sges: &[Sge]) -> Vec<Lkey> {
    // Nothing is looked up for no bytes.
    sges.iter().filter(|sge| sge.len > 0).map(|sge| sge.lkey).collect()
}

impl Request {
    /// What there is to know of a send.
    pub(crate) fn send(wr: &SendWr) -> Self {
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

    /// What there is to know of a receive.
    pub(crate) fn receive(wr: &RecvWr) -> Self {
        let lkeys = lkeys(wr.sges.as_slice());
        Self { wr_id: wr.wr_id, work: Work::Receive, signalled: true, lkeys }
    }
}

/// A queue pair and what is posted to it.
#[derive(Debug)]
pub(super) struct Posts {
    pub(super) queues: Queues,
    pub(super) access: Access,
    pub(super) sends: VecDeque<Request>,
    pub(super) receives: VecDeque<Request>,
}

impl Posts {
    pub(super) fn new(queues: Queues) -> Self {
        let (sends, receives) = (VecDeque::new(), VecDeque::new());
        Self { queues, access: Access::empty(), sends, receives }
    }
}

/// Everything that rules look at.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) said: Said,
    pub(super) qps: BTreeMap<Name, Posts>,
    /// Receives in shared queues, by the addresses of those.
    pub(super) srqs: BTreeMap<usize, VecDeque<Request>>,
    /// Registrations by context and key.
    pub(super) mrs: BTreeMap<(usize, u32), Memory>,
}

impl Ledger {
    const fn new() -> Self {
        Self {
            said: Said::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mrs: BTreeMap::new(),
        }
    }

    pub(super) fn forget_posts(&mut self, name: Name) {
        let Some(qp) = self.qps.get_mut(&name) else { return };
        qp.sends.clear();
        qp.receives.clear();
        let srq = qp.queues.srq;
        // It may have taken some that nobody will hear of. Those after them are followed again.
        if let Some(shared) = srq.and_then(|srq| self.srqs.get_mut(&srq)) {
            shared.clear();
        }
    }

    pub(super) fn forget_qp(&mut self, name: Name) {
        self.forget_posts(name);
        self.qps.remove(&name);
    }

    pub(super) fn set_access(&mut self, name: Name, access: Access) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.access = access;
        }
    }

    pub(super) fn resize_cq(&mut self, cq: CqFacts) {
        let queues = self.qps.values_mut().map(|qp| &mut qp.queues);
        let cqs = queues.flat_map(|queues| [&mut queues.send_cq, &mut queues.recv_cq]);
        cqs.flatten().filter(|known| known.addr == cq.addr).for_each(|known| *known = cq);
    }

    /// Says where it will complete.
    pub(super) fn post_send(&mut self, name: Name, mut request: Request) -> Option<CqFacts> {
        let qp = self.qps.get_mut(&name)?;
        request.signalled |= qp.queues.signal_all;
        qp.sends.push_back(request);
        // There was room for the new one, so the oldest are done, whoever says so.
        let most = qp.queues.max_send as usize;
        qp.sends.drain(..qp.sends.len().saturating_sub(most));
        qp.queues.send_cq
    }

    pub(super) fn take_back_sends(&mut self, name: Name, count: usize) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.sends.truncate(qp.sends.len().saturating_sub(count));
        }
    }

    /// Says where they will complete.
    pub(super) fn post_receives(&mut self, name: Name, requests: Vec<Request>) -> Option<CqFacts> {
        let qp = self.qps.get_mut(&name)?;
        qp.receives.extend(requests);
        qp.queues.recv_cq
    }

    /// Says where they may complete.
    pub(super) fn post_shared(&mut self, srq: usize, requests: Vec<Request>) -> Vec<CqFacts> {
        let Some(shared) = self.srqs.get_mut(&srq) else { return Vec::new() };
        shared.extend(requests);
        let takers = self.qps.values().filter(|qp| qp.queues.srq == Some(srq));
        takers.filter_map(|qp| qp.queues.recv_cq).collect()
    }

    pub(super) fn take_back_shared(&mut self, srq: usize, count: usize) {
        if let Some(shared) = self.srqs.get_mut(&srq) {
            shared.truncate(shared.len().saturating_sub(count));
        }
    }

    pub(super) fn take_back_receives(&mut self, name: Name, count: usize) {
        if let Some(qp) = self.qps.get_mut(&name) {
            qp.receives.truncate(qp.receives.len().saturating_sub(count));
        }
    }

    /// Takes the request that is complete out of its queue, and with it those before it that
    /// nobody wanted to hear of.
    pub(super) fn complete(&mut self, name: Name, cqe: &Cqe) -> Option<Request> {
        let qp = self.qps.get_mut(&name)?;
        if matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            let Some(srq) = qp.queues.srq else { return qp.receives.pop_front() };
            // Of a shared queue, they complete in any order.
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
