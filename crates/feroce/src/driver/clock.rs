//! The clock of a device.

use feroce_train::Instant;
use nix::time::{ClockId, clock_gettime};

#[cfg(feature = "sim")]
use crate::virtual_time::VirtualTime;

/// Monotonic time since the clock was made.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The system's monotonic time at the creation of this clock, less one second.
    origin_ns: u64,
    /// The time of the world that the clock is in, if any.
    #[cfg(feature = "sim")]
    world: Option<VirtualTime>,
}

/// The time of the system's monotonic clock. The data path reads it several times per message, and
/// this call takes a third of the instructions of [`std::time::Instant`].
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    // Every Linux has this clock, so the call does not fail.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec().cast_unsigned().wrapping_mul(1_000_000_000) + t.tv_nsec().cast_unsigned()
    })
}

/// What the clock shows when it starts.
pub(crate) const AT_START_NS: u64 = 1_000_000_000;

impl Clock {
    /// Starts at one second, because code that stores times uses zero for "never".
    pub(crate) fn start() -> Self {
        Self {
            origin_ns: monotonic_ns().wrapping_sub(AT_START_NS),
            #[cfg(feature = "sim")]
            world: crate::virtual_time::time(),
        }
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "sim")]
        if let Some(world) = &self.world {
            return Instant::from_nanos(world.ns());
        }
        Instant::from_nanos(monotonic_ns().wrapping_sub(self.origin_ns))
    }

    /// Whether it shows the time of a simulated world.
    #[inline]
    pub(crate) fn is_virtual(&self) -> bool {
        #[cfg(feature = "sim")]
        return self.world.is_some();
        #[cfg(not(feature = "sim"))]
        false
    }

    /// Time zero of this clock on the system's monotonic clock.
    pub(crate) fn origin_ns(&self) -> u64 {
        self.origin_ns
    }

    /// Time zero of this clock, in nanoseconds since 1970.
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    pub(crate) fn epoch_ns(&self) -> u64 {
        if self.is_virtual() {
            return 0;
        }
        let wall = std::time::SystemTime::now();
        let since_1970 = wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        ns.saturating_sub(self.now().as_nanos())
    }
}
