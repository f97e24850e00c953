//! Warnings about the classic mistakes of programs that use verbs.
//!
//! Off unless the setting `lint` is on. When it is on, a program behaves as without it, only
//! slower: the C library calls a hook of this crate in each verb, the hook records in the `ledger`
//! which objects the program has and what it has posted, and the rules check the ledger. One file
//! per rule:
//!
//! - `depth`: a completion queue that holds fewer completions than are outstanding for it;
//! - `starved`: messages that found no receive;
//! - `failed`: requests that complete in error, and calls that the adapter refuses;
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
mod failed;
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
use std::sync::OnceLock;

use feroce::{Counters, Cqe, Lint, Settings, WcStatus};
use ledger::with;

pub use leaks::{Kind, freed, kept, made};
pub use ledger::{CqFacts, Memory, Name, Queues, Request};
pub use pulled::pulled;
pub use refused::access_refused_here;
pub use starved::device_closed;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether warnings make the process fail.
static IS_STRICT: AtomicBool = AtomicBool::new(false);

/// Whether the user wants warnings.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads the setting, once per process. Called when the program opens a device, which precedes all
/// other verbs. `caller` names the function of the program that called the library, and is called
/// by the thread that it asks about, without a lock.
pub fn start(caller: fn() -> Option<String>) {
    static ASKED: OnceLock<()> = OnceLock::new();
    ASKED.get_or_init(|| {
        report::ask_for_callers(caller);
        let lint = Settings::load().map_or(Lint::Off, |settings| settings.lint);
        if lint != Lint::Off {
            leaks::remember_process();
            IS_STRICT.store(lint == Lint::Error, Ordering::Relaxed);
            ON.store(true, Ordering::Relaxed);
        }
    });
}

/// The process exits with `status`; `counters` are those of the devices that are still open. True:
/// it must fail, because the user asked for that and warnings were printed.
///
/// A program that fails by itself mostly exits on the spot, so what it has not freed is not listed.
pub fn process_exits(status: i32, counters: impl IntoIterator<Item = (String, Counters)>) -> bool {
    if !leaks::is_this_process() {
        return false;
    }
    for (device, counters) in counters {
        device_closed(&device, &counters);
    }
    if status == 0 {
        leaks::list();
    }
    status == 0 && IS_STRICT.load(Ordering::Relaxed) && report::any()
}

/// A call on a queue pair was refused; `why` is what the adapter says.
pub fn call_refused(name: Name, call: &str, why: &str) {
    with(|ledger| failed::call(ledger, name, call, why));
}

/// A call waits for the program, which may never do what it waits for.
pub fn call_hangs(text: &str) {
    report::print_with_caller(text);
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
            WcStatus::LocalLength => failed::too_long(ledger, name, request.as_ref()),
            WcStatus::RemoteInvalidRequest => {
                failed::invalid_there(ledger, name, request.as_ref());
            }
            WcStatus::RetryExceeded => failed::unanswered(ledger, name),
            _ => {}
        }
    });
}
