//! The one clock.

use feroce_train::Instant;
use nix::time::{ClockId, clock_gettime};

/// Monotonic time since the clock was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What the system's clock said then, less a second.
    origin_ns: u64,
}

/// The time of the system's monotonic clock. The data path asks for it several times per message,
/// and in this way it takes a third of the instructions that [`std::time::Instant`] does.
#[inline]
fn monotonic_ns() -> u64 {
    // It exists on every Linux.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec().cast_unsigned().wrapping_mul(1_000_000_000) + t.tv_nsec().cast_unsigned()
    })
}

impl Clock {
    /// Starts at one second, so that nothing mistakes the beginning for "never".
    pub(crate) fn start() -> Self {
        Self { origin_ns: monotonic_ns().wrapping_sub(1_000_000_000) }
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(monotonic_ns().wrapping_sub(self.origin_ns))
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
