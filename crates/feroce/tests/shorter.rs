//! Memory that a program shares by itself, registers, and then makes shorter.

mod common;

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;

use common::{ALL, Host, connect};
use feroce::{Data, Iova, Qp, SendOp, SendWr, SgeList, WcStatus};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{SigSet, Signal};

const LEN: usize = 1 << 20;
const MESSAGE: usize = 64 << 10;

/// Says to a test that it is the child, and which one.
const CHILD: &str = "FEROCE_TEST_SHORTER";

/// Pages of a file that has as many, and stays mapped.
fn shared(len: usize) -> (File, NonNull<u8>) {
    let file = File::from(memfd_create(c"a program", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(len as u64).expect("memory");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let all = NonZeroUsize::new(len).expect("not empty");
    // SAFETY: a new mapping takes nothing from anybody.
    let base = unsafe { mmap(None, all, prot, MapFlags::MAP_SHARED, &file, 0) };
    (file, base.expect("mapped").cast())
}

/// A host whose memory is in a file of the program.
fn host(net: u8) -> (Host, File) {
    let mut host = Host::new(net, 1);
    let (file, base) = shared(LEN);
    // SAFETY: it stays until the process ends, and nothing else leads to it.
    let mr = unsafe { host.pd.register_raw(base.as_ptr(), LEN, Iova::Natural, ALL) };
    host.mr = mr.expect("registered");
    (host, file)
}

/// Two hosts that know each other's doors, and the file of the second one.
fn acquainted(net: u8) -> (Host, Qp, Host, Qp, File) {
    let ((a, _), (b, file)) = (host(net), host(net));
    let (mut from, mut to) = (a.rc(), b.rc());
    connect(&mut from, &mut to);
    for seed in 0..3 {
        let bytes = a.fill(0, MESSAGE, seed);
        run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
        assert!(b.read(4096, MESSAGE) == bytes);
        send(&b, &mut to, &a, &mut from, [0..MESSAGE - 4096, 0..4096]);
    }
    (a, from, b, to, file)
}

/// How many messages came to a host without its doing.
fn passed(host: &Host) -> u64 {
    let counters = host.context.link_counters();
    counters.iter().find(|(name, _)| *name == "shm_passed").map_or(0, |(_, n)| *n)
}

fn run(host: &Host, qp: &mut Qp, op: SendOp) {
    qp.post_send([SendWr::new(1, op, host.mr.data(0..MESSAGE))]).expect("posted");
    assert_eq!(host.wait().status, WcStatus::Success);
}

/// Sends a message of two parts, which its receiver fetches.
fn send(from: &Host, sends: &mut Qp, to: &Host, receives: &mut Qp, parts: [Range<usize>; 2]) {
    receives.post_recv([to.mr.recv(2, 0..MESSAGE)]).expect("posted");
    let data = Data::Sges(SgeList::new(&parts.map(|part| from.mr.sge(part))));
    sends.post_send([SendWr::new(1, SendOp::Send, data)]).expect("posted");
    assert_eq!([from.wait().status, to.wait().status], [WcStatus::Success; 2]);
}

#[test]
fn whoever_has_it_mapped_goes_on() {
    let (a, mut from, b, mut to, file) = acquainted(173);
    assert_eq!(passed(&b), 2, "all but the first, which finds no door");
    file.set_len(4096 + 8192).expect("made shorter");
    let bytes = a.fill(0, MESSAGE, 0x77);
    run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
    assert!(b.read(4096, 8192) == bytes[..8192], "what is left of it");
    // What was written to the rest is where the writer finds it, and nobody else.
    run(&a, &mut from, SendOp::Read(b.mr.remote(4096)));
    assert!(a.read(0, MESSAGE) == bytes);
    run(&a, &mut from, SendOp::Read(b.mr.remote(LEN - MESSAGE)));
    assert!(a.read(0, MESSAGE) == [0; MESSAGE]);
    // And so for what it fetches from there; the last packet is copied by the sender.
    send(&b, &mut to, &a, &mut from, [LEN - MESSAGE + 4096..LEN, 4096..8192]);
    assert!(a.read(0, MESSAGE - 4096) == [0; MESSAGE - 4096]);
    assert!(a.read(MESSAGE - 4096, 4096) == bytes[..4096]);

    // What is there again is what everybody sees.
    file.set_len(LEN as u64).expect("as long as before");
    for seed in [0x31, 0x32, 0x33] {
        let bytes = a.fill(0, MESSAGE, seed);
        run(&a, &mut from, SendOp::Write(b.mr.remote(LEN - MESSAGE)));
        assert!(b.read(LEN - MESSAGE, MESSAGE) == bytes);
        let bytes = b.fill(LEN - MESSAGE, MESSAGE, seed + 0x10);
        run(&a, &mut from, SendOp::Read(b.mr.remote(LEN - MESSAGE)));
        assert!(a.read(0, MESSAGE) == bytes);
        let bytes = b.fill(LEN - MESSAGE, MESSAGE, seed + 0x20);
        let parts = [LEN - MESSAGE..LEN - 4096, LEN - 4096..LEN];
        send(&b, &mut to, &a, &mut from, parts);
        assert!(a.read(0, MESSAGE) == bytes);
    }
}

/// Runs a test of this file once more, as a child with a role.
fn child(test: &str, role: &str) -> ExitStatus {
    let exe = std::env::current_exe().expect("we run");
    let mut command = Command::new(exe);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, role);
    command.status().expect("a child")
}

/// Touches memory that is not in its file any more, and that nobody has registered.
fn touch_what_is_gone() {
    let (file, base) = shared(4096);
    file.set_len(0).expect("made shorter");
    // SAFETY: in bounds; it is a signal that comes of it, not a value.
    let word = unsafe { base.cast::<u64>().read_volatile() };
    assert_eq!(word, 0);
}

/// With the handler of Rust's library or without one, as programs in C are.
#[test]
fn other_memory_that_is_gone_is_not_our_affair() {
    if let Ok(role) = std::env::var(CHILD) {
        if role.contains("default") {
            // SAFETY: what is done by default needs no handler.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
        let (_a, _from, b, ..) = acquainted(174);
        assert_eq!(passed(&b), 2);
        if role.contains("sent") {
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        touch_what_is_gone();
        return;
    }
    for role in ["touch", "touch, default", "sent, default"] {
        let status = child("other_memory_that_is_gone_is_not_our_affair", role);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{role}: {status}");
    }
}

#[test]
fn where_the_signal_is_blocked_nothing_is_mapped_that_may_become_shorter() {
    if std::env::var_os(CHILD).is_some() {
        SigSet::from(Signal::SIGBUS).thread_block().expect("blocked");
        let (a, mut from, b, _to, file) = acquainted(176);
        assert_eq!(passed(&b), 0, "through the kernel, which takes no long ones");
        file.set_len(LEN as u64 / 2).expect("made shorter");
        run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
        return;
    }
    let test = "where_the_signal_is_blocked_nothing_is_mapped_that_may_become_shorter";
    let status = child(test, "blocked");
    assert!(status.success(), "{status}");
}

/// What a program does that takes the signal itself.
extern "C" fn of_the_program(_: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
    // SAFETY: the kernel gives what belongs to the signal.
    let about = unsafe { &*info };
    // SAFETY: this one has an address.
    let page = unsafe { about.si_addr() };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page of the program that is gone.
    unsafe { libc::mmap(page, 4096, libc::PROT_READ, flags, -1, 0) };
}

#[test]
fn a_program_that_takes_the_signal_still_gets_it() {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: plain data, for which all zeros is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler = of_the_program as extern "C" fn(i32, *mut libc::siginfo_t, *mut _);
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a handler of the kind that the flags say.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        let (a, mut from, b, _to, file) = acquainted(175);
        touch_what_is_gone();
        file.set_len(0).expect("made shorter");
        run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
        return;
    }
    let status = child("a_program_that_takes_the_signal_still_gets_it", "handler");
    assert!(status.success(), "{status}");
}
