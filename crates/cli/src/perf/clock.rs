//! Wall-clock time and processor time.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The present time.
#[expect(clippy::disallowed_methods, reason = "this is a stopwatch")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Processor time of this process so far, in seconds, all threads and the kernel included.
pub(crate) fn cpu_s() -> f64 {
    let seconds = |t: TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Nanoseconds of a duration.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
