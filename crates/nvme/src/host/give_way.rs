//! Lets tasks of one thread send their commands before one of them waits for an answer.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

/// A task gives way after one in so many commands at least.
const TRY: u32 = 16;

/// So often in a row tasks may give way in vain before they give way rarely.
const TRUST: u32 = 16;

/// A task that looks for completions keeps its thread until one comes, which may be its own. Other
/// tasks of the thread that are about to send commands would wait for that, each in its turn, and
/// one command would be under way at a time. So a task that has sent a command lets the others run
/// before it looks, as long as they send commands meanwhile; now and then it finds out.
#[derive(Debug, Default)]
pub(super) struct GiveWay {
    /// Commands that were sent.
    sent: AtomicU32,
    /// How often tasks may still give way in vain.
    trust: AtomicU32,
}

impl GiveWay {
    /// A task has sent a command, and is about to look for completions.
    pub(super) async fn after_send(&self) {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let trust = self.trust.load(Ordering::Relaxed);
        if trust == 0 && !sent.is_multiple_of(TRY) {
            return;
        }
        let mut has_given_way = false;
        poll_fn(|cx| {
            if has_given_way {
                return Poll::Ready(());
            }
            has_given_way = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        // Tasks of several threads may overwrite each other's counts, which need not be exact.
        let was_in_vain = self.sent.load(Ordering::Relaxed) == sent;
        let trust = if was_in_vain { trust.saturating_sub(1) } else { TRUST };
        self.trust.store(trust, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Whether a task that has sent a command gives way, while `others` send some.
    fn gives_way(way: &GiveWay, others: u32) -> bool {
        let mut turn = pin!(way.after_send());
        let mut cx = Context::from_waker(Waker::noop());
        if turn.as_mut().poll(&mut cx).is_ready() {
            return false;
        }
        way.sent.fetch_add(others, Ordering::Relaxed);
        assert!(turn.poll(&mut cx).is_ready(), "it gives way once");
        true
    }

    #[test]
    fn a_task_gives_way_as_long_as_others_send() {
        let way = GiveWay::default();
        let alone = (0..160).filter(|_| gives_way(&way, 0)).count();
        assert_eq!(alone, 10, "one of {TRY} finds out");
        while !gives_way(&way, 3) {}
        assert!((0..100).all(|_| gives_way(&way, 3)), "others send");
        assert!((0..TRUST).all(|_| gives_way(&way, 0)), "the last of a round is in vain");
        let alone = (0..160).filter(|_| gives_way(&way, 0)).count();
        assert_eq!(alone, 10, "no other sends any more");
    }
}
