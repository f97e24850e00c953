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

    /// What the beginning of this time is in nanoseconds since 1970.
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    pub(crate) fn epoch_ns(&self) -> u64 {
        let wall = std::time::SystemTime::now();
        let since_1970 = wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        ns.saturating_sub(self.now().as_nanos())
    }
}
