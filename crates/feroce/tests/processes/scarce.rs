//! Processes of one host where the system gives them less and less while they run.

use std::fs;
use std::process::Command;

use super::child::NO_MEMFD;
use super::netns::{Cable, with_cable};
use super::process::{Process, talk};

/// Set in a test that runs with a small `/dev/shm`.
const SMALL: &str = "FEROCE_TEST_SMALL";

/// Runs a test with a `/dev/shm` of four megabytes, as a process of its own.
fn with_small_shm(name: &str, test: impl FnOnce()) {
    if std::env::var_os(SMALL).is_some() {
        return test();
    }
    let script = "mount -t tmpfs -o size=4m,mode=1777 tmpfs /dev/shm && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]);
    command.arg(std::env::current_exe().expect("we run"));
    command.args(["--exact", &format!("scarce::{name}"), "--nocapture"]);
    let output = command.env(SMALL, "1").output().expect("unshare is installed");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into());
    let [report, errors]: [String; 2] = said;
    // A name that is not one would run no test, and succeed.
    let has_run = report.contains("1 passed");
    assert!(output.status.success() && has_run, "{}\n{report}\n{errors}", output.status);
}

/// Writes to `/dev/shm` until nothing fits.
fn fill_shm() {
    fs::write("/dev/shm/fill", vec![1; 8 << 20]).expect_err("it is small");
    let left = nix::sys::statvfs::statvfs("/dev/shm").expect("it is there").blocks_available();
    assert_eq!(left, 0);
}

/// The children may not create files without a name.
fn without_memfd(command: &mut Command) {
    command.env(NO_MEMFD, "1");
}

#[test]
fn processes_that_meet_when_shared_memory_is_full_use_memory_without_a_name() {
    with_small_shm(
        "processes_that_meet_when_shared_memory_is_full_use_memory_without_a_name",
        || {
            with_cable(1500, |cable| {
                let start = || cable.in_a(|| Process::start(Cable::A4));
                let [mut a, mut b, mut c, mut d] = [0; 4].map(|_| start());
                talk(&mut a, &mut b, 100);
                fill_shm();
                talk(&mut a, &mut b, 1000);
                talk(&mut a, &mut c, 1000);
                talk(&mut c, &mut d, 1000);
                for process in [&mut a, &mut b, &mut c, &mut d] {
                    assert_eq!(process.counter("udp_tx_trains"), 0, "all of it inside the host");
                }
                [a, b, c, d].into_iter().for_each(Process::finish);
            });
        },
    );
}

#[test]
fn without_memory_for_a_ring_packets_take_the_wire() {
    with_small_shm("without_memory_for_a_ring_packets_take_the_wire", || {
        with_cable(1500, |cable| {
            let start = |last| {
                let mut process =
                    cable.in_a(|| Process::start_with([127, 0, 0, last], without_memfd));
                assert_eq!(process.hear(), "open");
                process
            };
            let [mut a, mut b, mut c] = [1, 2, 3].map(start);
            talk(&mut a, &mut b, 100);
            fill_shm();
            talk(&mut a, &mut b, 500);
            assert_eq!(a.counter("udp_tx_trains"), 0, "their ring is there");
            talk(&mut a, &mut c, 500);
            assert!(a.counter("udp_tx_trains") > 0 && c.counter("udp_tx_trains") > 0);
            [a, b, c].into_iter().for_each(Process::finish);
        });
    });
}

#[test]
fn processes_that_may_not_create_files_without_a_name_share_an_address() {
    with_cable(1500, |cable| {
        let start = || cable.in_a(|| Process::start_with(Cable::A4, without_memfd));
        let [mut a, mut b] = [0; 2].map(|_| start());
        assert_eq!([&mut a, &mut b].map(Process::hear), ["open", "open"]);
        talk(&mut a, &mut b, 1000);
        [a, b].into_iter().for_each(Process::finish);
    });
}
