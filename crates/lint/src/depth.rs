//! A completion queue that holds fewer completions than requests are outstanding for it.
//!
//! Such a program works until it polls too late once: then the completion queue overruns, and all
//! its queue pairs fail. The rule counts outstanding requests that will complete, not the depth of
//! the work queues, because many programs never fill those.

use std::collections::BTreeSet;

use crate::ledger::{CqFacts, Ledger, Posts};
use crate::report::Rule;

/// Checks a completion queue after a request was posted that completes there.
pub(crate) fn check(ledger: &mut Ledger, cq: CqFacts) {
    let CqFacts { addr, depth } = cq;
    // Most completion queues are as deep as all work queues together.
    let shared = shared(ledger, cq);
    let most = sum(ledger, cq, |qp| qp.queues.max_send.into(), |qp| qp.queues.max_recv.into());
    if most + shared <= depth {
        return;
    }
    let signalled = |qp: &Posts| qp.sends.iter().filter(|r| r.signalled).count() as u64;
    let total = sum(ledger, cq, signalled, |qp| qp.receives.len() as u64) + shared;
    if total <= depth {
        return;
    }
    ledger.said.once(Rule::Depth, (addr, 0), || {
        format!(
            "CQ {addr:#x} has a depth of {depth}, but {total} requests are posted that complete \
             there: make it deeper, or completions may be lost (IBV_EVENT_CQ_ERR)"
        )
    });
}

/// Sums a number over all work queues that complete to a completion queue.
fn sum(
    ledger: &Ledger,
    cq: CqFacts,
    of_sends: impl Fn(&Posts) -> u64,
    of_receives: impl Fn(&Posts) -> u64,
) -> u64 {
    let is_it = |other: Option<CqFacts>| other.is_some_and(|other| other.addr == cq.addr);
    let of_qp = |qp: &Posts| {
        let sends = if is_it(qp.queues.send_cq) { of_sends(qp) } else { 0 };
        sends + if is_it(qp.queues.recv_cq) { of_receives(qp) } else { 0 }
    };
    ledger.qps.values().map(of_qp).sum()
}

/// Outstanding receives of shared receive queues that may complete there: one queue pair may take
/// all of them.
fn shared(ledger: &Ledger, cq: CqFacts) -> u64 {
    let is_it = |qp: &&Posts| qp.queues.recv_cq.is_some_and(|other| other.addr == cq.addr);
    let srqs = ledger.qps.values().filter(is_it).filter_map(|qp| qp.queues.srq);
    let once: BTreeSet<usize> = srqs.collect();
    once.iter().filter_map(|srq| ledger.srqs.get(srq)).map(|posted| posted.len() as u64).sum()
}
