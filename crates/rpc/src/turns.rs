//! A number of turns, which those that wait get by priority.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Turns. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Those that wait: the greatest priority first, then the earliest.
    waiting: BTreeMap<(Reverse<u8>, u64), Waker>,
    next: u64,
    is_closed: bool,
}

impl State {
    /// The task whose turn it is.
    fn first(&self) -> Option<Waker> {
        (self.free > 0).then(|| self.waiting.values().next().cloned()).flatten()
    }
}

impl Turns {
    pub(crate) fn new(count: usize) -> Self {
        let (waiting, next) = (BTreeMap::new(), 0);
        Self(Arc::new(Mutex::new(State { free: count, waiting, next, is_closed: false })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns that nothing holds and nothing waits for.
    pub(crate) fn free(&self) -> usize {
        let state = self.lock();
        state.free.saturating_sub(state.waiting.len())
    }

    /// Waits for a turn; `None` if there will be none.
    pub(crate) async fn take(&self, priority: u8) -> Option<Turn> {
        let mut place = None;
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.is_closed {
                return Poll::Ready(None);
            }
            let key = place.as_ref().map(|place: &Place| place.key);
            let key = key.unwrap_or((Reverse(priority), state.next));
            let is_first = state.waiting.keys().next().is_none_or(|&first| key <= first);
            if state.free == 0 || !is_first {
                state.waiting.insert(key, cx.waker().clone());
                if place.is_none() {
                    state.next += 1;
                    place = Some(Place { turns: self.clone(), key });
                }
                return Poll::Pending;
            }
            state.free -= 1;
            drop(state);
            // Gives the place in the queue up, and wakes the next.
            drop(place.take());
            Poll::Ready(Some(Turn(self.clone())))
        })
        .await
    }

    /// Ends every wait: there are no more turns.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

/// A place in the queue.
#[derive(Debug)]
struct Place {
    turns: Turns,
    key: (Reverse<u8>, u64),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.waiting.remove(&self.key);
        let next = state.first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// A turn; dropping it gives it to the next.
#[derive(Debug)]
pub(crate) struct Turn(Turns);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.free += 1;
        let next = state.first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn the_greatest_priority_is_next_and_dropping_gives_way() {
        let turns = Turns::new(1);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(held) = pin!(turns.take(0)).poll(&mut cx) else { panic!("it waits") };
        let mut low = pin!(turns.take(1));
        let mut first = pin!(turns.take(5));
        let mut second = Box::pin(turns.take(5));
        assert!(low.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(low.as_mut().poll(&mut cx).is_pending());
        // The earlier one of the two has begun to wait first; it leaves.
        assert!(first.as_mut().poll(&mut cx).is_pending());
        drop(second);
        let Poll::Ready(held) = first.as_mut().poll(&mut cx) else { panic!("it waits") };
        assert!(low.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(low.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn closing_ends_every_wait() {
        let turns = Turns::new(0);
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = pin!(turns.take(0));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        turns.close();
        let Poll::Ready(None) = waits.as_mut().poll(&mut cx) else { panic!("it waits") };
    }
}
