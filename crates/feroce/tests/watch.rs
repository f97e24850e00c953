//! Processes look into the devices of each other.

mod common;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use common::{Host, connect};
use feroce::watch::{self, Snapshot};
use feroce::{Context, QpState, SendOp, SendWr, WcStatus};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Set in the child: it has a device open until its input ends.
const CHILD: &str = "FEROCE_TEST_WATCHED";

/// A user without privileges.
const STRANGER: u32 = 65534;

/// Starts this test again, as a child that has a device open.
fn start(user: Option<u32>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, "1");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    assert!(output.lines().map_while(Result::ok).any(|line| line.ends_with("ready")));
    child
}

fn find(pid: u32, device: &str) -> Option<Snapshot> {
    let seen = watch::look().expect("a look");
    seen.devices.into_iter().find(|found| found.pid == pid && found.device == device)
}

fn snapshot(context: &Context) -> Snapshot {
    find(std::process::id(), context.device().name()).expect("the device is seen")
}

#[test]
fn objects_and_what_they_did_are_seen() {
    let (a, b) = Host::pair(131);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    let ends = [a.rc(), b.rc()].map(|qp| qp.qpn());
    for n in 0..10 {
        let data = a.mr.data(0..1000);
        qa.post_send([SendWr::new(n, SendOp::Write(b.mr.remote(0)), data)]).expect("room");
        assert_eq!(a.wait().status, WcStatus::Success);
    }
    let seen = snapshot(&a.context);
    assert_eq!(seen.addresses[0].to_ip().to_string(), "127.131.0.1");
    assert_eq!((seen.mrs, seen.mr_bytes, seen.pds), (1, common::LEN as u64, 1));
    assert_eq!((seen.cqs.len(), seen.cqs[0].depth, seen.cqs[0].waiting), (1, 4096, 0));
    let of = |seen: &Snapshot, qpn| *seen.qps.iter().find(|qp| qp.qpn == qpn).expect("it is there");
    let qp = of(&seen, qa.qpn());
    assert_eq!((qp.state, qp.peer.map(|(_, qpn)| qpn)), (QpState::Rts, Some(qb.qpn())));
    assert_eq!((qp.counters.requests, qp.counters.request_bytes), (10, 10_000));
    // Both devices are of this process, so that later writes need no packet.
    let served = of(&snapshot(&b.context), qb.qpn()).counters;
    assert_eq!(served.served + qp.counters.direct_requests, 10);
    assert_eq!(served.served_bytes, served.served * 1000);
    assert!(ends.iter().all(|qpn| seen.qps.iter().all(|qp| qp.qpn != *qpn)), "they are gone");
    drop(qa);
    let after = snapshot(&a.context);
    assert_eq!((after.qps.len(), after.totals), (0, seen.totals), "what a queue pair did stays");
    let name = a.context.device().name().to_owned();
    drop(a);
    assert_eq!(find(std::process::id(), &name), None, "a closed device is not seen");
}

/// Not a test by itself: the process that is looked into.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let host = Host::new(132, std::process::id() as u8 | 1);
    let seen = watch::look().expect("a look");
    let is_stranger = nix::unistd::geteuid().as_raw() == STRANGER;
    let is_own = |device: &Snapshot| device.pid == std::process::id();
    assert!(!is_stranger || seen.devices.iter().all(is_own), "{seen:?}");
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(host);
}

#[test]
fn another_process_is_seen_and_one_that_is_stopped_is_named() {
    let mut child = start(None);
    let id = child.id();
    let is_it = |device: &Snapshot| device.pid == id;
    let seen = watch::look().expect("a look");
    assert!(seen.devices.iter().any(is_it), "{seen:?}");
    let pid = Pid::from_raw(id.cast_signed());
    kill(pid, Signal::SIGSTOP).expect("it is our child");
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
    let seen = watch::look().expect("a look");
    assert!(!seen.devices.iter().any(is_it) && seen.silent.contains(&id), "{seen:?}");
    kill(pid, Signal::SIGCONT).expect("it is our child");
    kill(pid, Signal::SIGKILL).expect("it is our child");
    child.wait().expect("its end");
    let seen = watch::look().expect("a look");
    assert!(!seen.devices.iter().any(is_it) && !seen.silent.contains(&id), "{seen:?}");
}

#[test]
fn users_do_not_see_each_other() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start processes of other users");
        return;
    }
    let host = Host::new(134, 1);
    // The child looks, too: it would fail if it saw the device of this process.
    let mut child = start(Some(STRANGER));
    let seen = watch::look().expect("a look");
    assert!(find(std::process::id(), host.context.device().name()).is_some());
    child.kill().expect("it is our child");
    child.wait().expect("its end");
    let is_strange = |pid: u32| pid == child.id();
    assert!(!seen.devices.iter().any(|device| is_strange(device.pid)), "{seen:?}");
    assert!(!seen.silent.iter().any(|pid| is_strange(*pid)), "{seen:?}");
}

#[test]
fn a_forked_child_does_not_keep_the_socket() {
    let host = Host::new(133, 1);
    let name = host.context.device().name().to_owned();
    // SAFETY: the child only sleeps, and is killed.
    let ForkResult::Parent { child } = (unsafe { fork() }).expect("a child") else {
        loop {
            nix::unistd::pause();
        }
    };
    assert!(find(std::process::id(), &name).is_some(), "the parent still answers");
    drop(host);
    let seen = watch::look().expect("a look");
    kill(child, Signal::SIGKILL).expect("it is our child");
    waitpid(child, None).expect("its end");
    assert!(!seen.silent.contains(&std::process::id()), "{seen:?}");
}
