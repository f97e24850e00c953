//! Every work request completes once, in order, and with success only if it was signalled.

use std::collections::VecDeque;

use feroce_engine::WcStatus;

use super::Violation;

const ORACLE: &str = "completions";

/// The requests of a send queue that have not completed.
#[derive(Debug, Default)]
pub struct SendLedger {
    posted: VecDeque<(usize, bool)>,
    failed: bool,
}

impl SendLedger {
    /// Request number `index` was posted.
    pub fn post(&mut self, index: usize, signaled: bool) {
        self.posted.push_back((index, signaled));
    }

    /// Request number `index` completed, and with it all requests before it. Those must be
    /// unsignalled, and no request may have failed before.
    pub fn complete(&mut self, index: usize, status: WcStatus) -> Result<(), Violation> {
        let bad = |what: String| Err(Violation::new(ORACLE, what));
        let signaled = loop {
            let Some((oldest, signaled)) = self.posted.pop_front() else {
                return bad(format!("send #{index} completed, but is not outstanding"));
            };
            if oldest == index {
                break signaled;
            }
            if signaled || self.failed {
                return bad(format!("send #{index} completed before #{oldest}"));
            }
        };
        match status {
            WcStatus::Success if !signaled => {
                bad(format!("send #{index} reported success, but was not signalled"))
            }
            WcStatus::Success if self.failed => {
                bad(format!("send #{index} succeeded after another had failed"))
            }
            WcStatus::Success => Ok(()),
            status if self.failed && status != WcStatus::Flushed => {
                bad(format!("send #{index} failed after another had failed: {status}"))
            }
            _ => {
                self.failed = true;
                Ok(())
            }
        }
    }

    /// The queue pair was reset: the queue is empty, and no request has failed.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    /// Requests that still must report a completion.
    pub fn outstanding(&self) -> usize {
        if self.failed {
            return self.posted.len();
        }
        self.posted.iter().filter(|(_, signaled)| *signaled).count()
    }

    /// The oldest request that has not completed.
    pub fn oldest(&self) -> Option<usize> {
        self.posted.front().map(|&(index, _)| index)
    }
}

/// The receives of a queue that have not completed.
#[derive(Debug, Default)]
pub struct RecvLedger {
    posted: VecDeque<usize>,
    /// Shared by several queue pairs, whose messages may end in another order than they began.
    shared: bool,
}

impl RecvLedger {
    /// The ledger of a queue that one queue pair uses alone, or of a shared one.
    pub fn new(shared: bool) -> Self {
        Self { posted: VecDeque::new(), shared }
    }

    /// Receive number `index` was posted.
    pub fn post(&mut self, index: usize) {
        self.posted.push_back(index);
    }

    /// Receive number `index` completed.
    pub fn complete(&mut self, index: usize) -> Result<(), Violation> {
        match self.posted.iter().position(|&posted| posted == index) {
            None => Err(Violation::new(
                ORACLE,
                format!("receive #{index} completed, but is not outstanding"),
            )),
            Some(at) if at > 0 && !self.shared => Err(Violation::new(
                ORACLE,
                format!("receive #{index} completed before #{}", self.posted[0]),
            )),
            Some(at) => {
                self.posted.remove(at);
                Ok(())
            }
        }
    }

    /// The queue was emptied.
    pub fn forget(&mut self) {
        self.posted.clear();
    }

    /// Receives that have not completed.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsignaled_requests_are_done_with_the_next_signaled_one() {
        let mut ledger = SendLedger::default();
        ledger.post(0, false);
        ledger.post(1, true);
        assert_eq!(ledger.outstanding(), 1);
        assert_eq!(ledger.complete(1, WcStatus::Success), Ok(()));
        assert!(ledger.complete(1, WcStatus::Success).is_err(), "twice");
    }

    #[test]
    fn order_silence_and_the_end_of_success_are_watched() {
        let mut ledger = SendLedger::default();
        (0..4).for_each(|i| ledger.post(i, i != 3));
        assert!(ledger.complete(1, WcStatus::Success).is_err(), "out of order");
        let mut ledger = SendLedger::default();
        ledger.post(0, false);
        assert!(ledger.complete(0, WcStatus::Success).is_err(), "not signalled");
        let mut ledger = SendLedger::default();
        (0..4).for_each(|i| ledger.post(i, i != 1));
        assert_eq!(ledger.complete(0, WcStatus::RemoteAccess), Ok(()));
        assert_eq!(ledger.outstanding(), 3, "after an error all must complete");
        assert!(ledger.complete(2, WcStatus::Flushed).is_err(), "one was not flushed");
    }

    #[test]
    fn receives_complete_in_order_unless_shared() {
        let mut own = RecvLedger::new(false);
        let mut shared = RecvLedger::new(true);
        for ledger in [&mut own, &mut shared] {
            ledger.post(0);
            ledger.post(1);
        }
        assert!(own.complete(1).is_err());
        assert_eq!(shared.complete(1), Ok(()));
        assert!(shared.complete(1).is_err(), "twice");
        assert_eq!((own.outstanding(), shared.outstanding()), (2, 1));
    }
}
