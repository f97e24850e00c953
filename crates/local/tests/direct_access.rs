//! Direct access that processes of one host grant each other.

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{counter, loopback, of, registry};
use feroce_link::{Carrier, UdpLink};
use feroce_local::HostCarrier as _;
use feroce_local::{Guard, HostLink, Registry, Watch};
use feroce_mem::{
    Access, DirectPath, DirectWrite, HostMemory, Landing, Reach, Region, Revocation, Source,
};
use feroce_train::Instant;
use feroce_wire::{Gid, Qpn, Rkey};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const LEN: usize = 10_000;

/// A process with its link, and memory that peers can map.
struct Host {
    link: HostLink<UdpLink>,
    registry: Arc<Registry>,
    region: Arc<Region>,
}

impl Host {
    fn new(root: &Path, address: Gid, fetches: bool) -> Self {
        let (registry, link) = registry(root, address, fetches);
        let region = registry.alloc(LEN).expect("memory");
        Self { link, registry, region }
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(u32::from(self.registry.prefix()) << 16 | 0x1234)
    }

    /// The reach of a key for all its memory, from address 1000 on.
    fn reach(&self) -> Reach {
        Reach { iova: 1000, at: self.region.addr(), len: LEN, access: Access::REMOTE_WRITE }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(at, &mut bytes).expect("in bounds");
        bytes
    }
}

#[derive(Debug)]
struct Bytes<'a>(&'a [u8]);

impl Source for Bytes<'_> {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        landing.put(&self.0[offset..]);
        true
    }
}

fn path(from: &Host, to: &Host, address: Gid) -> DirectPath {
    DirectPath { from: (address, from.qpn()), to: (address, to.qpn()), rkey: Rkey(0x4711) }
}

/// The second host grants direct access to the first, which receives the announcement.
fn open(a: &mut Host, b: &mut Host, path: &DirectPath, reach: &Reach) {
    b.registry.open(path, reach);
    b.link.send(NOW, &[]).expect("sent");
    while a.link.receive(NOW, 16, &mut |_| panic!("no packet")).expect("received") > 0 {}
}

/// Two processes, a path from the first to the second, and the directory of their registry.
fn neighbours(name: &str, net: u8, fetches: bool) -> (Host, Host, DirectPath, PathBuf) {
    let root =
        std::env::temp_dir().join(format!("feroce-direct_table-{name}-{}", std::process::id()));
    let address = loopback(net);
    let (a, b) = (Host::new(&root, address, fetches), Host::new(&root, address, true));
    let path = path(&a, &b, address);
    (a, b, path, root)
}

fn remove(a: Host, b: Host, root: &Path) {
    drop((a, b));
    std::fs::remove_dir_all(root).expect("removed");
}

#[test]
fn a_direct_access_leads_to_what_it_was_opened_for() {
    let (mut a, mut b, path, root) = neighbours("leads", 41, true);
    let write = |a: &Host, path: &DirectPath, va: u64, bytes: &[u8]| {
        a.registry.write(path, &of(va, bytes.len(), &Bytes(bytes), true))
    };
    assert!(!write(&a, &path, 1000, b"early"), "no access was granted");
    let reach = b.reach();
    open(&mut a, &mut b, &path, &reach);
    assert!(write(&a, &path, 1100, b"hello"));
    assert_eq!(b.read(99, 7), b"\0hello\0");
    assert!(write(&a, &path, 1000 + LEN as u64 - 1, b"x"), "the last byte");
    assert!(!write(&a, &path, 1000 + LEN as u64 - 1, b"xy"), "beyond the end");
    assert!(!write(&a, &path, 999, b"x"), "before the start");
    assert!(!write(&a, &DirectPath { rkey: Rkey(0x4712), ..path }, 1000, b"x"), "another key");
    assert!(!write(&a, &DirectPath { to: path.from, ..path }, 1000, b"x"), "another queue pair");
    let elsewhere = Gid::from_ipv4([192, 0, 2, 1]);
    let far = DirectPath { to: (elsewhere, path.to.1), ..path };
    assert!(!write(&a, &far, 1000, b"x"), "the same number on another host");
    assert_eq!((b.registry.passed(), a.registry.passed()), (2, 0));
    assert_eq!(counter(&b.link, "shm_direct"), 2);
    let seen = b.link.receive(NOW, 16, &mut |_| panic!("no packet"));
    assert_eq!(seen.expect("received"), 1, "the receiver hears that a message arrived");
    assert_eq!(b.link.receive(NOW, 16, &mut |_| {}).expect("received"), 0);

    // There is no direct access to the part that cannot be mapped.
    let (outside, wider) = (Rkey(1), Reach { at: reach.at - 4096, len: LEN + 4096, ..reach });
    let path = DirectPath { rkey: outside, ..path };
    open(&mut a, &mut b, &path, &wider);
    assert!(!write(&a, &path, 1000 + 4095, b"x"), "in front of the file");
    assert!(write(&a, &path, 1000 + 4096, b"first"));
    assert_eq!(b.read(0, 5), b"first");

    let foreign = DirectPath { to: (path.to.0, a.qpn()), ..path };
    open(&mut a, &mut b, &foreign, &reach);
    assert!(
        !write(&a, &foreign, 1000, b"x"),
        "a process grants access to its own queue pairs only"
    );

    let read = |a: &Host, path: &DirectPath| {
        let target = Region::alloc(5).expect("memory");
        let mut take = |source: &dyn Source| target.write_from(0, 5, source, 0).is_ok();
        let mut bytes = [0; 5];
        let is_read = a.registry.read(path, 1000, 5, &mut take);
        target.read_at(0, &mut bytes).expect("in bounds");
        is_read.then_some(bytes)
    };
    b.region.write_at(0, b"first").expect("in bounds");
    let path = DirectPath { rkey: Rkey(2), ..path };
    open(&mut a, &mut b, &path, &Reach { access: Access::REMOTE_READ, ..reach });
    assert!(!write(&a, &path, 1000, b"x"), "no right to write");
    assert_eq!(read(&a, &path), Some(*b"first"));
    let path = DirectPath { rkey: Rkey(3), ..path };
    open(&mut a, &mut b, &path, &reach);
    assert_eq!(read(&a, &path), None, "no right to read");
    remove(a, b, &root);
}

#[test]
fn writes_that_go_together_end_at_the_first_that_does_not_pass() {
    let (mut a, mut b, path, root) = neighbours("together", 45, true);
    let some = |a: &Host, writes: &[(u64, &[u8])]| {
        let bytes: Vec<_> = writes.iter().map(|(_, bytes)| Bytes(bytes)).collect();
        let to = writes.iter().zip(&bytes);
        let writes: Vec<_> = to.map(|((va, _), all)| of(*va, all.0.len(), all, true)).collect();
        let mut work = |write: &dyn Fn(&DirectWrite<'_>) -> bool| {
            writes.iter().take_while(|one| write(one)).count()
        };
        a.registry.write_some(&path, &mut work)
    };
    assert_eq!(some(&a, &[(1000, b"early")]), 0, "no access was granted");
    let reach = b.reach();
    open(&mut a, &mut b, &path, &reach);
    assert_eq!(some(&a, &[(1000, b"ab"), (1001, b"cd"), (1010, b"e")]), 3);
    assert_eq!((b.read(0, 11), b.registry.passed()), (b"acd\0\0\0\0\0\0\0e".to_vec(), 3));
    let beyond = 1000 + LEN as u64;
    assert_eq!(some(&a, &[(1000, b"x"), (beyond, b"y"), (1001, b"z")]), 1);
    assert_eq!((b.read(0, 2), b.registry.passed()), (b"xc".to_vec(), 4));
    assert_eq!(some(&a, &[(beyond, b"y"), (1001, b"z")]), 0);
    assert_eq!(some(&a, &[]), 0);
    b.registry.revoke_answers();
    assert_eq!(some(&a, &[(1000, b"1"), (1001, b"2")]), 0, "shut");
    assert_eq!((b.read(0, 2), b.registry.passed()), (b"xc".to_vec(), 4));

    let (region, reach) = ordinary();
    open(&mut a, &mut b, &path, &reach);
    assert_eq!(some(&a, &[(1000, b"1"), (1001, b"2")]), 2, "the kernel copies them");
    let mut read = [0; 2];
    region.read_at(0, &mut read).expect("in bounds");
    assert_eq!(&read, b"12");
    remove(a, b, &root);
}

#[test]
fn direct_accesses_are_shut_by_whom_they_are_of_and_forgotten_by_whom_they_are_for() {
    let (mut a, mut b, path, root) = neighbours("shut", 42, true);
    let write = |a: &Host| a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true));
    let reach = b.reach();
    open(&mut a, &mut b, &path, &reach);
    assert!(write(&a));
    b.registry.revoke_answers();
    assert!(!write(&a), "shut");
    open(&mut a, &mut b, &path, &reach);
    assert!(write(&a), "opened again");
    a.registry.revoke_from(Qpn::new(path.to.1.get() + 1));
    assert!(write(&a), "another queue pair");
    a.registry.revoke_from(path.to.1);
    assert!(!write(&a), "forgotten");

    // Direct access that was revoked before its peer heard of it cannot be used.
    b.registry.open(&path, &reach);
    b.registry.revoke_answers();
    b.link.send(NOW, &[]).expect("sent");
    while a.link.receive(NOW, 16, &mut |_| {}).expect("received") > 0 {}
    assert!(!write(&a));

    open(&mut a, &mut b, &path, &reach);
    assert!(write(&a));
    let Host { link, registry, region } = b;
    drop((link, registry));
    assert!(!write(&a), "it has left");
    drop((a, region));
    std::fs::remove_dir_all(&root).expect("removed");
}

/// Where this process has the file of some memory mapped.
fn mappings(region: &Region) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let of = |line: &str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let maps: Vec<_> = maps.lines().map(of).collect();
    let own = format!("{:x}-", region.addr());
    let inode = maps.iter().find(|line| line[0].starts_with(&own)).map(|line| line[4].clone());
    let same = maps.iter().filter(|line| Some(&line[4]) == inode.as_ref());
    same.map(|line| line[0].clone()).collect()
}

#[test]
fn a_file_stays_mapped_until_its_process_leaves() {
    let (mut a, mut b, path, root) = neighbours("stays", 52, true);
    let reach = b.reach();
    assert_eq!(mappings(&b.region).len(), 1);
    open(&mut a, &mut b, &path, &reach);
    let opened = mappings(&b.region);
    assert_eq!(opened.len(), 2);
    for round in 0..3 {
        b.registry.revoke_answers();
        let path = DirectPath { rkey: Rkey(0x5000 + round), ..path };
        open(&mut a, &mut b, &path, &reach);
        assert!(a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true)));
        assert_eq!(mappings(&b.region), opened);
    }
    let Host { link, registry, region } = b;
    drop((link, registry));
    while a.link.receive(NOW, 16, &mut |_| {}).expect("received") > 0 {}
    assert_eq!(mappings(&region).len(), 1);
    drop((a, region));
    std::fs::remove_dir_all(&root).expect("removed");
}

/// Ordinary memory, which peers cannot map.
fn ordinary() -> (Arc<Region>, Reach) {
    let region = Region::alloc(LEN).expect("memory");
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let reach = Reach { iova: 1000, at: region.addr(), len: LEN, access };
    (region, reach)
}

#[test]
fn the_kernel_copies_short_messages_where_memory_is_ordinary() {
    let (mut a, mut b, path, root) = neighbours("ordinary", 46, true);
    let (region, reach) = ordinary();
    let write = |a: &Host, va: u64, bytes: &[u8]| {
        a.registry.write(&path, &of(va, bytes.len(), &Bytes(bytes), true))
    };
    open(&mut a, &mut b, &path, &reach);
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(LEN).collect();
    for (i, len) in [1, 5, 8, 9, 17, 4096].into_iter().enumerate() {
        region.write_at(0, &[0xee; LEN]).expect("in bounds");
        assert!(write(&a, 1000 + 100, &bytes[..len]), "{len} bytes");
        let mut there = vec![0; LEN];
        region.read_at(0, &mut there).expect("in bounds");
        assert_eq!(there[100..100 + len], bytes[..len]);
        assert!(there[..100].iter().chain(&there[100 + len..]).all(|byte| *byte == 0xee));
        assert_eq!(b.registry.passed(), 2 * i as u64 + 1);
        let target = Region::alloc(len).expect("memory");
        let mut take = |source: &dyn Source| target.write_from(0, len, source, 0).is_ok();
        // A process that gets responses may continue to write through the kernel.
        let back = DirectPath { from: path.to, to: path.from, rkey: Rkey(9) };
        let own = a.reach();
        open(&mut b, &mut a, &back, &own);
        assert!(b.registry.write(&back, &of(1000, 1, &Bytes(b"x"), true)));
        assert!(a.registry.read(&path, 1000 + 100, len, &mut take));
        let mut read = vec![0; len];
        target.read_at(0, &mut read).expect("in bounds");
        assert_eq!(read, bytes[..len]);
        b.registry.revoke_answers();
        assert!(!write(&a, 1000, b"x"), "shut");
        open(&mut a, &mut b, &path, &reach);
        let passed = b.registry.passed();
        assert!(!write(&a, 1000, &bytes[..4097]), "that is copied once, by who is written to");
        assert!(!write(&a, 1000 + LEN as u64 - 7, &bytes[..8]), "beyond the end");
        assert_eq!(b.registry.passed(), passed);
    }
    remove(a, b, &root);
}

/// For consecutive messages without a response, putting them into the ring takes less time.
#[test]
fn only_some_messages_in_a_row_go_through_the_kernel() {
    let (mut a, mut b, path, root) = neighbours("row", 47, true);
    let (_region, reach) = ordinary();
    open(&mut a, &mut b, &path, &reach);
    let write = |a: &Host| a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true));
    let in_a_row = |a: &Host| (0..100).take_while(|_| write(a)).count();
    let some = in_a_row(&a);
    assert!((1..100).contains(&some), "{some}");
    assert_eq!(in_a_row(&a), 0, "there will be more");
    assert!((0..1000).any(|_| write(&a)), "it is tried again");
    assert_eq!(in_a_row(&a), some - 1);
    let back = DirectPath { from: path.to, to: path.from, ..path };
    let own = a.reach();
    open(&mut b, &mut a, &back, &own);
    for _ in 0..10 * some {
        assert!(b.registry.write(&back, &of(1000, 1, &Bytes(b"x"), true)));
        assert!(write(&a), "there was an answer");
    }
    remove(a, b, &root);
}

/// Memory that a program shares by itself, in a file that may be truncated.
fn shared() -> (File, NonNull<c_void>) {
    let file = File::from(memfd_create(c"a program", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(LEN as u64).expect("memory");
    let len = NonZeroUsize::new(LEN).expect("not empty");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
    let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, &file, 0) };
    (file, base.expect("mapped"))
}

#[test]
fn whoever_has_a_guard_maps_what_others_share() {
    let (mut a, mut b, path, root) = neighbours("shared", 50, true);
    let (_file, base) = shared();
    // SAFETY: it stays mapped until the process ends.
    let region = unsafe { b.registry.map_shared(base.as_ptr().cast(), LEN) }.expect("adopted");
    let reach = Reach { at: region.addr(), ..b.reach() };
    let in_a_row = |a: &Host| {
        let write = |_: &usize| a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true));
        (0..100).take_while(write).count()
    };
    open(&mut a, &mut b, &path, &reach);
    assert!((1..100).contains(&in_a_row(&a)), "through the kernel");
    let is_wide = |a: &Host, len| a.registry.is_wide(&path, 1000, len, Access::REMOTE_WRITE);
    assert!(!is_wide(&a, 1));
    a.registry.guard_with(&Trusting);
    open(&mut a, &mut b, &path, &reach);
    assert_eq!(in_a_row(&a), 100);
    assert!(is_wide(&a, LEN) && !is_wide(&a, LEN + 1));
    b.registry.revoke_answers();
    assert!(!is_wide(&a, 1), "it is shut");
    assert_eq!(region.load_u64(0).expect("in bounds").to_ne_bytes()[0], b'x');
    remove(a, b, &root);
}

/// A guard for files that are never truncated.
#[derive(Debug)]
struct Trusting;

impl Guard for Trusting {
    fn watch(&self, _: u64, _: NonZeroUsize) -> Option<Box<dyn Watch>> {
        Some(Box::new(Self))
    }
}

impl Watch for Trusting {
    fn is_torn(&self) -> bool {
        false
    }
}

/// A guard that reports missing pages if its flag is set.
#[derive(Debug)]
struct Saying(AtomicBool);

impl Guard for Saying {
    fn watch(&self, _: u64, _: NonZeroUsize) -> Option<Box<dyn Watch>> {
        Some(Box::new(Said))
    }
}

#[derive(Debug)]
struct Said;

static SAYING: Saying = Saying(AtomicBool::new(false));

impl Watch for Said {
    fn is_torn(&self) -> bool {
        SAYING.0.load(Ordering::Relaxed)
    }
}

/// A page may be missing although the file is as long as before, because there is no memory left.
#[test]
fn what_was_missing_although_it_should_be_there_is_not_used() {
    let (mut a, mut b, path, root) = neighbours("torn", 51, true);
    let (_file, base) = shared();
    // SAFETY: it stays mapped until the process ends.
    let region = unsafe { b.registry.map_shared(base.as_ptr().cast(), LEN) }.expect("adopted");
    let reach = Reach { at: region.addr(), ..b.reach() };
    a.registry.guard_with(&SAYING);
    open(&mut a, &mut b, &path, &reach);
    let long = vec![7; LEN];
    let write = |a: &Host| a.registry.write(&path, &of(1000, LEN, &Bytes(&long), true));
    assert!(write(&a));
    SAYING.0.store(true, Ordering::Relaxed);
    assert!(!write(&a), "it should be there");
    open(&mut a, &mut b, &path, &reach);
    assert!(!write(&a), "nor is it mapped again");
    remove(a, b, &root);
}

/// A process that polls takes a message from its ring sooner than the kernel would copy it, unless
/// the requester awaits the response.
#[test]
fn whoever_polls_is_sent_what_nobody_waits_for() {
    let (mut a, mut b, path, root) = neighbours("polls", 48, true);
    let (_region, reach) = ordinary();
    open(&mut a, &mut b, &path, &reach);
    let back = DirectPath { from: path.to, to: path.from, ..path };
    let own = a.reach();
    open(&mut b, &mut a, &back, &own);
    let write = |a: &Host, is_awaited| {
        let answer = b.registry.write(&back, &of(1000, 1, &Bytes(b"x"), true));
        answer && a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), is_awaited))
    };
    assert!(write(&a, false), "it does not poll");
    assert_eq!(b.link.receive(NOW, 1, &mut |_| panic!("no packet")).expect("received"), 1);
    assert!(b.link.is_quiet(), "it polls in vain");
    assert!(!write(&a, false), "it polls");
    assert!(write(&a, true), "it polls, but may not answer");
    assert!(b.link.arm(NOW), "its driver thread takes over");
    assert!(write(&a, false), "no thread polls");
    remove(a, b, &root);
}

/// A process to which peers write all the time still receives packets from the rings, one at a
/// time.
#[test]
fn what_passes_does_not_hold_up_what_is_received() {
    let (mut a, mut b, path, root) = neighbours("both", 45, true);
    let reach = b.reach();
    open(&mut a, &mut b, &path, &reach);
    let back = DirectPath { from: path.to, to: path.from, ..path };
    a.registry.open(&back, &a.reach());
    a.link.send(NOW, &[]).expect("sent");
    assert!(a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true)));
    assert_eq!(b.link.receive(NOW, 1, &mut |_| panic!("no packet")).expect("received"), 2);
    assert!(
        b.registry.write(&back, &of(1000, 1, &Bytes(b"x"), true)),
        "it has heard of the other direct"
    );
    remove(a, b, &root);
}

#[test]
fn who_wants_packets_has_no_direct_accesses() {
    let (mut a, mut b, path, root) = neighbours("packets", 43, false);
    let reach = b.reach();
    open(&mut a, &mut b, &path, &reach);
    assert!(
        !a.registry.write(&path, &of(1000, 1, &Bytes(b"x"), true)),
        "it wants to see what it sends"
    );
    let back = DirectPath { from: path.to, to: path.from, ..path };
    let reach = a.reach();
    open(&mut b, &mut a, &back, &reach);
    assert!(
        !b.registry.write(&back, &of(1000, 1, &Bytes(b"x"), true)),
        "it wants to see what it gets"
    );
    remove(a, b, &root);
}

/// A source that delivers its bytes when it is allowed to.
#[derive(Debug, Default)]
struct Slow {
    is_inside: AtomicBool,
    may_go_on: AtomicBool,
}

impl Slow {
    fn await_inside(&self) {
        while !self.is_inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl Source for &Slow {
    fn fetch(&self, _: usize, landing: &mut Landing<'_>) -> bool {
        self.is_inside.store(true, Ordering::Release);
        while !self.may_go_on.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        landing.put(&[0x11; LEN]);
        true
    }
}

/// All revocations of a process so far, from one queue pair or from all.
fn all_revoked(registry: &Registry, peer: Option<Qpn>) -> Revocation {
    Revocation { since: registry.revocation_epoch(), peer }
}

/// Once a revocation has ended, no peer writes there any more, whatever was under way.
#[test]
fn a_revocation_is_over_when_the_copies_are() {
    let (mut a, mut b, path, root) = neighbours("inside", 44, true);
    let (slow, reach) = (Slow::default(), b.reach());
    open(&mut a, &mut b, &path, &reach);
    std::thread::scope(|scope| {
        let before = all_revoked(&b.registry, None);
        let writer = scope.spawn(|| a.registry.write(&path, &of(1000, LEN, &&slow, true)));
        slow.await_inside();
        b.registry.revoke_answers();
        let revoked = all_revoked(&b.registry, None);
        // It is asked often enough to query the state of the process as well.
        assert!((0..100).all(|_| !b.registry.is_quiet(revoked)), "it is inside");
        assert!(b.registry.is_quiet(before), "what was revoked before it came is over");
        let [of_peer, of_other] = [path.from.1, Qpn::new(0x12_3456)].map(Some);
        assert!(!b.registry.is_quiet(all_revoked(&b.registry, of_peer)));
        assert!(b.registry.is_quiet(all_revoked(&b.registry, of_other)), "another process");
        slow.may_go_on.store(true, Ordering::Release);
        while !b.registry.is_quiet(revoked) {
            std::thread::yield_now();
        }
        // No peer may access the memory any more.
        b.region.write_at(0, &[0xee; LEN]).expect("in bounds");
        assert!(writer.join().expect("no panic"), "it was open when it was passed");
    });
    assert!(b.read(0, LEN) == [0xee; LEN], "something came after the direct was shut");

    let (region, reach) = ordinary();
    open(&mut a, &mut b, &path, &reach);
    let slow = Slow::default();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| a.registry.write(&path, &of(1000, 4096, &&slow, true)));
        slow.await_inside();
        b.registry.revoke_answers();
        slow.may_go_on.store(true, Ordering::Release);
        assert!(!writer.join().expect("no panic"), "it has looked once more");
    });
    let mut bytes = [0; LEN];
    region.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes == [0; LEN], "something came after the direct was shut");
    remove(a, b, &root);
}
