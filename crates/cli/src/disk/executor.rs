//! Runs futures of this command on the thread that calls.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::perf::clock;

thread_local! {
    /// When the future that runs on this thread wants to be polled, if nothing wakes it before.
    static ALARM: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        ALARM.set(None);
        if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
            return result;
        }
        match ALARM.get() {
            Some(alarm) => std::thread::park_timeout(alarm.saturating_duration_since(clock::now())),
            None => std::thread::park(),
        }
    }
}

/// Resolves at a time, inside of [`block_on`] and nowhere else: what runs there is polled whenever
/// anything in it may go on, so it is enough to say when that is.
#[derive(Debug)]
pub(super) struct Sleep(Instant);

/// Waits for a time.
pub(super) fn sleep(time: Duration) -> Sleep {
    Sleep(clock::now() + time)
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.0 {
            return Poll::Ready(());
        }
        ALARM.set(Some(ALARM.get().map_or(self.0, |alarm| alarm.min(self.0))));
        Poll::Pending
    }
}
