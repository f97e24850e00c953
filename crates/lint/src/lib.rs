//! Warnings about the classic mistakes of programs that use verbs.
//!
//! Off unless the setting `lint` is on. When it is on, a program behaves as without it, only
//! slower: the C library calls a hook of this crate in each verb, the hook records in the `ledger`
//! which objects the program has and what it has posted, and the rules check the ledger. One file
//! per rule:
//!
//! - `depth`: a completion queue that holds fewer completions than are outstanding for it;
//! - `starved`: messages that found no receive;
//! - `refused`: access to memory without the right to it;
//! - `pulled`: memory that is deregistered while requests refer to it;
//! - `unsignalled`: a full send queue without a signalled request;
//! - `leaks`: objects that the program has not freed when the process exits.
//!
//! Objects are named by numbers (addresses, queue pair numbers, keys), so nothing here depends on
//! the types of C. With lint off, callers call [`made`], [`freed`] and [`kept`] only; all other
//! hooks are behind [`is_on`]. The lock of the ledger is the last that any thread takes.

#![forbid(unsafe_code)]

mod depth;
mod leaks;
mod ledger;
mod pulled;
mod refused;
mod report;
mod starved;
mod unsignalled;

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

use feroce::{Counters, Cqe, Settings, WcStatus};
use ledger::with;

pub use leaks::{Kind, freed, kept, made};
pub use ledger::{CqFacts, Memory, Name, Queues, Request};
pub use pulled::pulled;
pub use refused::access_refused_here;
pub use starved::device_closed;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether the user wants warnings.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads the setting, once per process. Called when the program opens a device, which precedes all
/// other verbs.
pub fn start() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        if Settings::load().is_ok_and(|settings| settings.lint) {
            leaks::remember_process();
            ON.store(true, Ordering::Relaxed);
        }
    });
}

/// The process exits; `counters` are those of the devices that are still open.
pub fn process_exits(counters: impl IntoIterator<Item = (String, Counters)>) {
    if !leaks::is_this_process() {
        return;
    }
    for (device, counters) in counters {
        device_closed(&device, &counters);
    }
    leaks::list();
}

/// A queue pair was made.
pub fn qp_made(name: Name, queues: Queues) {
    with(|ledger| ledger.qps.insert(name, ledger::Posts::new(queues)));
}

/// A queue pair was destroyed.
pub fn qp_gone(name: Name) {
    with(|ledger| ledger.forget_qp(name));
}

/// A queue pair was reset, which drops its requests.
pub fn qp_reset(name: Name) {
    with(|ledger| ledger.forget_posts(name));
}

/// `qp_access_flags` of a queue pair were set.
pub fn qp_access(name: Name, access: feroce::Access) {
    with(|ledger| ledger.set_access(name, access));
}

/// A completion queue was resized.
pub fn cq_resized(cq: CqFacts) {
    with(|ledger| ledger.resize_cq(cq));
}

/// Memory was registered.
pub fn mr_made(memory: Memory) {
    with(|ledger| ledger.mrs.insert((memory.context, memory.lkey), memory));
}

/// Memory was reregistered, at another address or with other rights.
pub fn mr_changed(context: usize, lkey: u32, addr: Option<usize>, access: Option<feroce::Access>) {
    with(|ledger| {
        if let Some(memory) = ledger.mrs.get_mut(&(context, lkey)) {
            memory.addr = addr.unwrap_or(memory.addr);
            memory.access = access.unwrap_or(memory.access);
        }
    });
}

/// Memory was deregistered.
pub fn mr_gone(context: usize, lkey: u32) {
    with(|ledger| ledger.mrs.remove(&(context, lkey)));
}

/// The program is about to post a send, which may find its queue full.
pub fn send_wanted(name: Name) {
    with(|ledger| unsignalled::check(ledger, name));
}

/// A send is in its queue, and the doorbell has not been rung.
pub fn send_posted(name: Name, request: Request) {
    with(|ledger| {
        let cq = ledger.post_send(name, request);
        cq.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// The last `count` sends are withdrawn before the doorbell (`ibv_wr_abort`).
pub fn sends_taken_back(name: Name, count: usize) {
    with(|ledger| ledger.take_back_sends(name, count));
}

/// The program is about to post receives.
pub fn receives_posted(name: Name, requests: Vec<Request>) {
    with(|ledger| {
        let cq = ledger.post_receives(name, requests);
        cq.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// The queue refused the last `count` of the receives that were posted.
pub fn receives_taken_back(name: Name, count: usize) {
    with(|ledger| ledger.take_back_receives(name, count));
}

/// A shared receive queue was made.
pub fn srq_made(srq: usize) {
    with(|ledger| ledger.srqs.insert(srq, std::collections::VecDeque::new()));
}

/// The program is about to post receives to a shared receive queue.
pub fn shared_posted(srq: usize, requests: Vec<Request>) {
    with(|ledger| {
        let cqs = ledger.post_shared(srq, requests);
        cqs.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// The shared receive queue refused the last `count` of the receives that were posted.
pub fn shared_taken_back(srq: usize, count: usize) {
    with(|ledger| ledger.take_back_shared(srq, count));
}

/// A shared receive queue was destroyed.
pub fn srq_gone(srq: usize) {
    with(|ledger| ledger.srqs.remove(&srq));
}

/// The program has polled a completion.
pub fn completed(context: usize, cqe: &Cqe) {
    let name = Name { context, qpn: cqe.qpn.get() };
    with(|ledger| {
        let request = ledger.complete(name, cqe);
        match cqe.status {
            WcStatus::RnrRetryExceeded => starved::by_peer(ledger, name),
            WcStatus::LocalProtection | WcStatus::LocalAccess => {
                refused::locally(ledger, name, request.as_ref());
            }
            WcStatus::RemoteAccess => refused::by_peer(ledger, name, request.as_ref()),
            _ => {}
        }
    });
}
