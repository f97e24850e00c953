//! Atomics of several adapters of one host at the same word: none is lost.

mod common;

use std::fs::File;
use std::num::NonZeroUsize;

use common::{ALL, Host, connect};
use feroce::{Iova, Mr, Qp, SendOp, SendWr, WcStatus};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

const ROUNDS: u64 = 2000;
const LEN: usize = 4096;

/// Registers memory of a file, at an address of its own.
fn register(host: &Host, file: &File) -> Mr {
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let len = NonZeroUsize::new(LEN).expect("not empty");
    // SAFETY: a new mapping takes nothing from anybody.
    let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, file, 0) }.expect("mapped");
    // SAFETY: it stays until the process ends, and nothing else leads to it.
    unsafe { host.pd.register_raw(base.as_ptr().cast(), LEN, Iova::Natural, ALL) }.expect("memory")
}

/// Adds one again and again to the first word of some memory.
fn add(from: &Host, qp: &mut Qp, target: &Mr) {
    let op = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    for _ in 0..ROUNDS {
        qp.post_send([SendWr::new(1, op, from.mr.data(0..8))]).expect("posted");
        assert_eq!(from.wait().status, WcStatus::Success);
    }
}

/// Two responders have the word in common, each with two requesters. All have one address.
#[test]
fn atomics_of_two_adapters_at_one_word() {
    let file = File::from(memfd_create(c"in common", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.set_len(LEN as u64).expect("memory");
    let responders = [Host::new(177, 1), Host::new(177, 1)];
    let targets = responders.each_ref().map(|host| register(host, &file));
    let pairs: Vec<_> = (0..4)
        .map(|i| {
            let (from, to) = (Host::new(177, 1), &responders[i % 2]);
            let (mut here, mut there) = (from.rc(), to.rc());
            connect(&mut here, &mut there);
            (from, here, there, &targets[i % 2])
        })
        .collect();
    std::thread::scope(|scope| {
        for (from, mut here, there, target) in pairs {
            scope.spawn(move || {
                add(&from, &mut here, target);
                drop(there);
            });
        }
    });
    let mut word = [0; 8];
    targets[0].read_at(0, &mut word).expect("in bounds");
    assert_eq!(u64::from_ne_bytes(word), 4 * ROUNDS);
}
