//! The one clock.

use feroce_train::Instant;

/// Monotonic time since the clock was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// Starts at one second, so that nothing mistakes the beginning for "never".
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    pub(crate) fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        let ns = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(ns).plus_nanos(1_000_000_000)
    }
}
