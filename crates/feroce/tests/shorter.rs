//! Shared memory that a program maps and registers, and whose file it then truncates.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{ALL, Host, connect};
use feroce::{Data, Iova, Qp, SendOp, SendWr, SgeList, WcStatus};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{SigSet, Signal};

const LEN: usize = 1 << 20;
const MESSAGE: usize = 64 << 10;

/// Environment variable: tells a test that it runs in a child process, and in which role.
const CHILD: &str = "FEROCE_TEST_SHORTER";

/// Pages of a file that has as many, and stays mapped.
fn shared(len: usize) -> (File, NonNull<u8>) {
    let file = File::from(memfd_create(c"a program", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(len as u64).expect("memory");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let all = NonZeroUsize::new(len).expect("not empty");
    // SAFETY: a new mapping replaces no other.
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

/// Two hosts that have direct access to each other's memory, and the file of the second one.
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

fn counter(host: &Host, wanted: &str) -> u64 {
    let counters = host.context.link_counters();
    counters.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, n)| *n)
}

/// How many messages peers have written or read by direct access to the memory of a host.
fn passed(host: &Host) -> u64 {
    counter(host, "shm_direct")
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

/// Installs a handler for the signal.
fn handle(handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void)) {
    // SAFETY: plain data, for which all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a handler of the kind that the flags say.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

/// Where the owner of the file has mapped it.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Handles the signal for the owner, in its own mapping only: its engine reads that when it
/// retransmits a packet, and the adapter guards peers, not the program that makes the file shorter.
/// A signal for any other address ends the process.
extern "C" fn of_the_owner(signal: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
    // SAFETY: the kernel gives what belongs to the signal.
    let about = unsafe { &*info };
    // SAFETY: this one has an address.
    let at = unsafe { about.si_addr() };
    let offset = at.addr().wrapping_sub(OWN.load(Ordering::Relaxed));
    if offset >= LEN {
        // SAFETY: what is done by default needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let page = at.wrapping_byte_sub(offset % 4096);
    // SAFETY: a page of the owner that is gone.
    unsafe { libc::mmap(page, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
}

/// Makes the file of the owner as long as it was, and maps it where it was.
fn restore(file: &File) {
    file.set_len(LEN as u64).expect("as long as before");
    let (own, all) = (NonZeroUsize::new(OWN.load(Ordering::Relaxed)), NonZeroUsize::new(LEN));
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: the same file is mapped there, but for pages that the owner has replaced.
    unsafe { mmap(own, all.expect("not empty"), prot, flags, file, 0) }.expect("mapped");
}

#[test]
fn a_peer_that_mapped_the_file_survives() {
    handle(of_the_owner);
    let (a, mut from, b, mut to, file) = acquainted(173);
    OWN.store(usize::try_from(b.mr.remote(0).addr).expect("an address"), Ordering::Relaxed);
    assert_eq!(passed(&b), 2, "all but the first, which finds no direct");
    file.set_len(4096 + 8192).expect("made shorter");
    let bytes = a.fill(0, MESSAGE, 0x77);
    run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
    assert!(b.read(4096, 8192) == bytes[..8192], "what is left of it");
    // The writer finds what it wrote to the missing pages; no other process does.
    run(&a, &mut from, SendOp::Read(b.mr.remote(4096)));
    assert!(a.read(0, MESSAGE) == bytes);
    run(&a, &mut from, SendOp::Read(b.mr.remote(LEN - MESSAGE)));
    assert!(a.read(0, MESSAGE) == [0; MESSAGE]);
    // The same holds for messages that it fetches from there, with or without a part that is left
    // of the file. It fetches each time: the owner does not have to copy what it does not have,
    // except for the last packet.
    for left in [4096, 8192, 4096] {
        let lent = counter(&b, "shm_tx_remote_payload");
        send(&b, &mut to, &a, &mut from, [LEN - MESSAGE + left..LEN, 4096..4096 + left]);
        assert!(counter(&b, "shm_tx_remote_payload") > lent, "{left}");
        assert!(a.read(0, MESSAGE - left) == vec![0; MESSAGE - left]);
        assert!(a.read(MESSAGE - left, left) == bytes[..left]);
    }

    // After the file has its full length again, both sides see the same bytes.
    restore(&file);
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
    let test = format!("shorter::{test}");
    command.args([&test, "--exact", "--nocapture"]).env(CHILD, role);
    command.status().expect("a child")
}

/// Accesses memory that is not in its file any more, and that is not registered.
fn touch_what_is_gone() {
    let (file, base) = shared(4096);
    file.set_len(0).expect("made shorter");
    // SAFETY: in bounds; it is a signal that comes of it, not a value.
    let word = unsafe { base.cast::<u64>().read_volatile() };
    assert_eq!(word, 0);
}

/// With the handler of Rust's standard library, and without a handler, as in programs in C.
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

/// The handler of a program that handles the signal itself.
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
        handle(of_the_program);
        let (a, mut from, b, _to, file) = acquainted(175);
        touch_what_is_gone();
        file.set_len(0).expect("made shorter");
        run(&a, &mut from, SendOp::Write(b.mr.remote(4096)));
        return;
    }
    let status = child("a_program_that_takes_the_signal_still_gets_it", "handler");
    assert!(status.success(), "{status}");
}
