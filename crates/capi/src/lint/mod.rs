//! Warnings for a person: the classic mistakes of programs that use verbs.
//!
//! Off unless the setting `lint` is on, and then a program behaves as without, only slower: calls
//! write down in the [`ledger`] what the program has and what it has posted, and each rule looks
//! there when something happens that it is about. One file per rule:
//!
//! - [`depth`]: a completion queue that is smaller than what is posted and completes there;
//! - [`starved`]: messages that found no receive;
//! - [`refused`]: access to memory that was not given;
//! - [`pulled`]: memory deregistered under a request;
//! - [`unsignalled`]: a send queue that nothing can ever empty;
//! - [`leaks`]: objects that are left when the process ends.
//!
//! Nothing here is called with lint off, except to count objects: every hook is behind
//! [`is_on`]. The lock of the ledger is the last that any thread takes.

mod depth;
mod leaks;
mod ledger;
mod pulled;
mod refused;
mod report;
mod starved;
mod unsignalled;

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, PoisonError};

use feroce::{Cqe, Settings, WcStatus};

pub(crate) use leaks::{Kind, freed, kept, list_leaks, made};
pub(crate) use ledger::{CqFacts, Memory, Name, Queues, Request};
pub(crate) use pulled::pulled;
pub(crate) use refused::access_refused_here;
pub(crate) use starved::device_closed;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether anybody wants to hear.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Asks the settings, once: before a program opens a device it can make no mistake with it.
pub(crate) fn start() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        if Settings::load().is_ok_and(|settings| settings.lint) {
            leaks::remember_process();
            ON.store(true, Ordering::Relaxed);
        }
    });
}

/// Looks into the ledger.
fn with<R>(f: impl FnOnce(&mut ledger::Ledger) -> R) -> R {
    f(&mut ledger::LEDGER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A queue pair was made.
pub(crate) fn qp_made(name: Name, queues: Queues) {
    with(|ledger| ledger.qps.insert(name, ledger::Posts::new(queues)));
}

/// A queue pair was destroyed.
pub(crate) fn qp_gone(name: Name) {
    with(|ledger| ledger.forget_qp(name));
}

/// A queue pair was reset: what was posted is forgotten.
pub(crate) fn qp_reset(name: Name) {
    with(|ledger| ledger.forget_posts(name));
}

/// The rights that a peer has through a queue pair were set.
pub(crate) fn qp_access(name: Name, access: feroce::Access) {
    with(|ledger| ledger.set_access(name, access));
}

/// A completion queue has another depth.
pub(crate) fn cq_resized(cq: CqFacts) {
    with(|ledger| ledger.resize_cq(cq));
}

/// Memory was registered.
pub(crate) fn mr_made(memory: Memory) {
    with(|ledger| ledger.mrs.insert((memory.context, memory.lkey), memory));
}

/// Memory was registered again, elsewhere or with other rights.
pub(crate) fn mr_changed(
    context: usize,
    lkey: u32,
    addr: Option<usize>,
    access: Option<feroce::Access>,
) {
    with(|ledger| {
        if let Some(memory) = ledger.mrs.get_mut(&(context, lkey)) {
            memory.addr = addr.unwrap_or(memory.addr);
            memory.access = access.unwrap_or(memory.access);
        }
    });
}

/// Memory was deregistered.
pub(crate) fn mr_gone(context: usize, lkey: u32) {
    with(|ledger| ledger.mrs.remove(&(context, lkey)));
}

/// A request is about to be posted, if there is room.
pub(crate) fn send_wanted(name: Name) {
    with(|ledger| unsignalled::check(ledger, name));
}

/// A request is in its queue, where the adapter does not see it yet.
pub(crate) fn send_posted(name: Name, request: Request) {
    with(|ledger| {
        let cq = ledger.post_send(name, request);
        cq.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// The requests since the last that were handed to the adapter are taken back.
pub(crate) fn sends_taken_back(name: Name, count: usize) {
    with(|ledger| ledger.take_back_sends(name, count));
}

/// Receives are about to be posted.
pub(crate) fn receives_posted(name: Name, requests: Vec<Request>) {
    with(|ledger| {
        let cq = ledger.post_receives(name, requests);
        cq.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// So many of the receives that were posted last were not taken.
pub(crate) fn receives_taken_back(name: Name, count: usize) {
    with(|ledger| ledger.take_back_receives(name, count));
}

/// A queue was made that queue pairs share.
pub(crate) fn srq_made(srq: usize) {
    with(|ledger| ledger.srqs.insert(srq, std::collections::VecDeque::new()));
}

/// Receives are about to be posted to a shared queue.
pub(crate) fn shared_posted(srq: usize, requests: Vec<Request>) {
    with(|ledger| {
        let cqs = ledger.post_shared(srq, requests);
        cqs.into_iter().for_each(|cq| depth::check(ledger, cq));
    });
}

/// So many of the receives that were posted last to a shared queue were not taken.
pub(crate) fn shared_taken_back(srq: usize, count: usize) {
    with(|ledger| ledger.take_back_shared(srq, count));
}

/// A shared queue was destroyed.
pub(crate) fn srq_gone(srq: usize) {
    with(|ledger| ledger.srqs.remove(&srq));
}

/// The program sees a completion.
pub(crate) fn completed(context: usize, cqe: &Cqe) {
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
