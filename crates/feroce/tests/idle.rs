//! An idle device uses no processor time. The test runs alone in its process, because it measures
//! the processor time of the process.

use std::time::Duration;

use crate::common::{Host, connect};
use feroce::{Notify, SendOp, SendWr, WcStatus};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Processor time of this process so far.
fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("every process has it");
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "idling takes time")]
fn an_idle_device_uses_under_one_percent_of_a_core() {
    let (a, b) = Host::pair(123);
    let mut pairs: Vec<_> = (0..100).map(|_| (a.rc(), b.rc())).collect();
    for (qa, qb) in &mut pairs {
        connect(qa, qb);
    }
    // A finished request leaves nothing behind that uses processor time.
    let (qa, _) = &mut pairs[0];
    qa.post_send([SendWr::new(1, SendOp::Write(b.mr.remote(0)), a.mr.data(0..500_000))])
        .expect("room");
    assert_eq!(a.wait().status, WcStatus::Success);
    a.cq.notify(Notify::Next);
    let time = Duration::from_secs(2);
    // Wait for work that is still under way.
    std::thread::sleep(Duration::from_millis(200));
    let before = cpu();
    std::thread::sleep(time);
    let used = cpu() - before;
    assert!(used < time / 100, "{used:?} in {time:?} with two devices and 200 queue pairs");
}
