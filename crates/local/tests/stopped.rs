//! A process that a debugger stops when it is about to write to the memory of another.
#![cfg(target_arch = "x86_64")]

use std::io::{BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{loopback, of, registry};
use feroce_link::Carrier as _;
use feroce_local::Registry;
use feroce_mem::{Access, DirectPath, HostMemory as _, Landing, Reach, Region, Revocation, Source};
use feroce_train::Instant;
use feroce_wire::{Gid, Qpn, Rkey};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Set in the environment of the child: its address, and the directory of the registry.
const ADDRESS: &str = "FEROCE_TEST_ADDRESS";
const ROOT: &str = "FEROCE_TEST_ROOT";

/// Eight bytes of the same value.
#[derive(Debug)]
struct Eight(u8);

impl Source for Eight {
    fn fetch(&self, _: usize, landing: &mut Landing<'_>) -> bool {
        landing.put(&[self.0; 8]);
        true
    }
}

fn qpn(prefix: u8) -> Qpn {
    Qpn::new(u32::from(prefix) << 16 | 0x1234)
}

fn path(address: Gid, from: u8, to: u8) -> DirectPath {
    DirectPath { from: (address, qpn(from)), to: (address, qpn(to)), rkey: Rkey(0x4711) }
}

fn line(input: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    input.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// Not a test by itself: the child process runs it. It writes once, waits for a line of input, and
/// writes again.
#[test]
fn child_process() {
    let (Ok(address), Ok(root)) = (std::env::var(ADDRESS), std::env::var(ROOT)) else { return };
    let address = Gid::from_ipv4(address.parse::<Ipv4Addr>().expect("an address").octets());
    let (registry, mut link) = registry(Path::new(&root), address, true);
    println!("@{}", registry.prefix());
    let mut input = std::io::stdin().lock();
    let peer = line(&mut input).parse().expect("a prefix");
    let write = |registry: &Registry, value: u8| {
        registry.write(&path(address, registry.prefix(), peer), &of(0, 8, &Eight(value), true))
    };
    while !write(&registry, 0x11) {
        link.receive(NOW, 16, &mut |_| {}).expect("received");
    }
    println!("@written");
    assert_eq!(line(&mut input), "again");
    println!("@{}", write(&registry, 0x22));
}

/// The next output of the child.
fn hear(child: &mut BufReader<std::process::ChildStdout>) -> String {
    loop {
        let line = line(child);
        // The test harness prints lines as well.
        if let Some((_, said)) = line.split_once('@') {
            return said.to_owned();
        }
    }
}

/// Stops every thread of a process, as a debugger does.
fn stop(process: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
    let number = |name: std::ffi::OsString| name.to_str()?.parse().ok();
    let threads =
        threads.filter_map(|thread| Some(Pid::from_raw(number(thread.ok()?.file_name())?)));
    let threads: Vec<_> = threads.collect();
    for thread in &threads {
        ptrace::seize(*thread, Options::PTRACE_O_EXITKILL).expect("it is of our child");
        ptrace::interrupt(*thread).expect("it is there");
        waitpid(*thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    }
    threads
}

/// Continues a stopped thread until it enters the system call that writes.
fn run_until_it_writes(thread: Pid) {
    let is_writing = || {
        let regs = ptrace::getregs(thread).expect("it is stopped");
        // At the entry of a system call the kernel presets the result to `ENOSYS`.
        regs.orig_rax == libc::SYS_pwritev.cast_unsigned()
            && regs.rax.cast_signed() == -i64::from(libc::ENOSYS)
    };
    loop {
        ptrace::syscall(thread, None).expect("it goes on");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
        if is_writing() {
            return;
        }
    }
}

#[test]
fn whoever_was_stopped_before_it_wrote_does_not_write_later() {
    let address = loopback(49);
    let root: PathBuf = std::env::temp_dir().join(format!("feroce-stopped-{}", std::process::id()));
    let (registry, mut link) = registry(&root, address, true);
    let region = Region::alloc(8).expect("memory");
    let ip = Ipv4Addr::from(address.as_ipv4().expect("an IPv4 address"));
    let mut child = Command::new(std::env::current_exe().expect("we run"))
        .args(["--exact", "stopped::child_process", "--nocapture"])
        .env(ADDRESS, ip.to_string())
        .env(ROOT, &root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let prefix = hear(&mut output).parse().expect("a prefix");
    writeln!(input, "{}", registry.prefix()).expect("it listens");
    let access = Access::REMOTE_WRITE;
    let reach = Reach { iova: 0, at: region.addr(), len: 8, access };
    link.receive(NOW, 16, &mut |_| {}).expect("received");
    registry.open(&path(address, prefix, registry.prefix()), &reach);
    link.send(NOW, &[]).expect("sent");
    assert_eq!(hear(&mut output), "written");
    let value = || region.load_u64(0).expect("in bounds").to_ne_bytes();
    assert_eq!(value(), [0x11; 8]);

    let threads = stop(child.id());
    writeln!(input, "again").expect("it will listen");
    // The test harness runs the test in the last thread.
    run_until_it_writes(*threads.last().expect("there is one"));
    registry.revoke_answers();
    let revocation = Revocation { since: registry.revocation_epoch(), peer: None };
    while !registry.is_quiet(revocation) {
        std::thread::yield_now();
    }
    threads.iter().for_each(|thread| ptrace::detach(*thread, None).expect("it goes on"));
    assert_eq!(hear(&mut output), "false");
    assert_eq!(value(), [0x11; 8], "it has written to what is not open any more");
    assert!(child.wait().expect("it ends").success());
    drop((link, registry));
    std::fs::remove_dir_all(&root).expect("removed");
}
