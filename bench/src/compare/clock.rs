//! Wall-clock time and processor time.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The time.
#[expect(clippy::disallowed_methods, reason = "this is a stopwatch")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps for a moment, so that other processes run.
#[expect(clippy::disallowed_methods, reason = "there is nothing to wait on")]
pub(crate) fn nap() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Processor seconds of all children that have ended and been waited for, the kernel's included.
pub(crate) fn ended_children_cpu_s() -> f64 {
    let seconds = |t: TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}
