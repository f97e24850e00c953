//! The consumer's ends of the two queues of a queue pair of the engine.

use std::sync::Arc;

use feroce_engine::{PostError, QpState, RecvQueue, RecvWr, SendQueue, SendWr};
use feroce_wire::Qpn;

use crate::driver::Driver;

/// From so many unanswered sends on, the posting thread may coalesce further ones.
const GATHER_FROM: usize = 2;

/// Most sends that the posting thread coalesces.
const GATHER_MOST: usize = 64;

/// The sending end of a queue pair of the engine.
#[derive(Debug)]
pub(crate) struct SoftSender {
    queue: SendQueue,
    /// Coalesced sends: those posted since a thread that drives the engine last took any.
    gathered: usize,
    /// When the consumer had last polled an empty queue, as of the last call of `note_streaming`.
    polled_at: u64,
    qpn: Qpn,
    driver: Arc<Driver>,
}

impl SoftSender {
    pub(crate) fn new(queue: SendQueue, qpn: Qpn, driver: Arc<Driver>) -> Self {
        Self { queue, gathered: 0, polled_at: 0, qpn, driver }
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.queue.state()
    }

    #[inline]
    pub(crate) fn post(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let mut wrs = wrs.into_iter();
        if wrs.size_hint().0 > 1 && self.queue.may_go_direct() {
            return self.post_direct(wrs);
        }
        let posted = wrs.try_for_each(|wr| self.begin(wr));
        self.submit();
        posted
    }

    /// Posts several requests that can be executed at once, perhaps. The queue takes them first,
    /// because what makes them is foreign code, and the engine's lock is taken after that.
    fn post_direct(&mut self, mut wrs: impl Iterator<Item = SendWr>) -> Result<(), PostError> {
        let posted = wrs.try_for_each(|wr| self.queue.stage(wr));
        let staged = self.queue.staged();
        self.queue.show();
        if !self.driver.try_direct_posted(self.qpn) {
            self.ring(staged, false);
        }
        posted
    }

    #[inline]
    pub(crate) fn post_one(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.begin(wr)?;
        self.submit();
        Ok(())
    }

    #[inline]
    pub(crate) fn stage(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.queue.stage(wr)
    }

    pub(crate) fn free(&mut self) -> usize {
        self.queue.free()
    }

    pub(crate) fn abort(&mut self) {
        self.queue.abort();
    }

    #[inline]
    pub(crate) fn begin(&mut self, wr: SendWr) -> Result<(), PostError> {
        // This check does not inspect the request, because the compiler would then copy it before
        // the call.
        if self.queue.may_go_direct() { self.try_direct(wr) } else { self.queue.stage(wr) }
    }

    /// Executes a request if that can be done at once, and otherwise puts it into the queue.
    #[inline(never)]
    fn try_direct(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.queue.check(&wr)?;
        if self.driver.try_direct(self.qpn, &wr) {
            return Ok(());
        }
        self.queue.stage(wr)
    }

    #[inline]
    pub(crate) fn submit(&mut self) {
        let staged = self.queue.staged();
        if staged == 0 && self.gathered == 0 {
            // Every request was executed directly.
            return;
        }
        // A single request that does not wait to be coalesced may take the fast path.
        let is_alone = staged == 1 && self.gathered == 0 && !self.may_wait(staged);
        if is_alone {
            self.note_streaming();
            self.queue.show();
            if !self.driver.is_driven_by_other() && self.driver.fast_path(self.qpn) {
                return;
            }
        }
        self.ring(staged, is_alone);
    }

    /// Rings the doorbell for the staged requests, and drives the adapter unless they may wait.
    #[inline(never)]
    fn ring(&mut self, staged: usize, is_alone: bool) {
        let is_first = self.queue.ring();
        // If the doorbell was not rung before, a thread that drives the engine has answered the
        // last ring and has taken the requests that waited.
        self.gathered = if is_first { staged } else { self.gathered + staged };
        if !is_first && self.gathered < GATHER_MOST {
            // The thread that answers the earlier ring takes these requests, too.
            return;
        }
        // This thread rings the doorbell before it looks for outstanding answers. Therefore either
        // the thread that takes the last answer sees the doorbell, because it looks at the
        // doorbells afterwards, or this thread sees that every request was answered.
        if self.gathered >= GATHER_MOST || !self.may_wait(self.gathered) {
            self.gathered = 0;
            if !is_alone {
                self.note_streaming();
            }
            self.driver.kick();
        }
    }

    /// Whether the `newest` requests posted last may wait for answers to earlier ones.
    #[inline]
    fn may_wait(&self, newest: usize) -> bool {
        let unanswered = self.queue.outstanding().saturating_sub(newest);
        unanswered >= GATHER_FROM && self.queue.awaits_answer()
    }

    /// Tells the engine whether the consumer streams: it posts without polling an empty queue in
    /// between.
    #[inline]
    fn note_streaming(&mut self) {
        let polled_at = self.driver.polled_at();
        self.queue.set_streaming(self.polled_at == polled_at);
        self.polled_at = polled_at;
    }
}

/// The receiving end of a queue pair of the engine.
#[derive(Debug)]
pub(crate) struct SoftReceiver {
    pub(super) queue: RecvQueue,
    pub(super) driver: Arc<Driver>,
}

impl SoftReceiver {
    #[inline]
    pub(crate) fn post(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.queue.stage(wr));
        if self.queue.publish() {
            self.driver.kick();
        }
        posted
    }
}
