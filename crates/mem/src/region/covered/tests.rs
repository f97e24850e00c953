use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::vec;
use std::vec::Vec;

use feroce_wire::iwarp::Crc32c;
use proptest::prelude::*;

use crate::{OutOfBounds, Region};

const CANARY: u8 = 0xa5;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7 + 3) as u8).collect()
}

fn extended(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::resume(crc);
    crc.update(bytes);
    crc.finish()
}

/// Reads and writes `len` bytes at `at` of a region, from and to `shift` of a buffer, and looks at
/// everything.
fn check(bytes: &[u8], (at, len, shift): (usize, usize, usize), before: u32) {
    let size = at + len + 64;
    let (from, to) = (Region::alloc(size).unwrap(), Region::alloc(size).unwrap());
    from.write_at(0, &bytes[..size]).unwrap();
    to.write_at(0, &vec![CANARY; size]).unwrap();
    let expected = extended(before, &bytes[at..at + len]);

    let mut out = vec![CANARY; shift + len + 64];
    let mut crc = Crc32c::resume(before);
    from.read_covered_at(at, &mut out[shift..shift + len], &mut crc).unwrap();
    assert_eq!(crc.finish(), expected, "{len} read at {at} to {shift}");
    assert_eq!(out[shift..shift + len], bytes[at..at + len], "{len} read at {at} to {shift}");
    assert!(out[..shift].iter().chain(&out[shift + len..]).all(|&b| b == CANARY));

    let mut crc = Crc32c::resume(before);
    to.write_covered_at(at, &out[shift..shift + len], &mut crc).unwrap();
    assert_eq!(crc.finish(), expected, "{len} written at {at} from {shift}");
    let mut written = vec![0; size];
    to.read_at(0, &mut written).unwrap();
    assert_eq!(written[at..at + len], bytes[at..at + len], "{len} written at {at} from {shift}");
    assert!(written[..at].iter().chain(&written[at + len..]).all(|&b| b == CANARY));
}

#[test]
fn every_length_is_copied_and_covered() {
    let bytes = pattern(8192);
    for len in (0..1200).chain(4080..4120) {
        // What is aligned how differs from one to the next.
        check(&bytes, (len % 9, len, len % 17), len as u32);
    }
    for (at, shift) in (0..17).flat_map(|at| (0..64).map(move |shift| (at, shift))) {
        check(&bytes, (at, 1442, shift), 0);
    }
}

#[test]
fn nothing_outside_the_region_is_touched() {
    let region = Region::alloc(4096).unwrap();
    let mut crc = Crc32c::new();
    assert_eq!(region.read_covered_at(1, &mut [0; 4096], &mut crc), Err(OutOfBounds));
    assert_eq!(region.write_covered_at(4090, &[1; 7], &mut crc), Err(OutOfBounds));
    assert_eq!(crc, Crc32c::new());
    Region::null().write_covered_at(7, b"123456789", &mut crc).unwrap();
    assert_eq!(crc.finish(), 0xe306_9283);
    let mut zeros = [1; 32];
    let mut crc = Crc32c::new();
    Region::null().read_covered_at(7, &mut zeros, &mut crc).unwrap();
    assert_eq!((zeros, crc.finish()), ([0; 32], 0x8a91_36aa));
}

proptest! {
    #[test]
    fn what_is_covered_is_what_is_copied(
        bytes in proptest::collection::vec(any::<u8>(), 10_000),
        at in 0_usize..64,
        len in 0_usize..9000,
        shift in 0_usize..64,
        before: u32,
    ) {
        check(&bytes, (at, len, shift), before);
    }
}

/// A segment that is sent while its memory changes has the CRC of what is in it.
#[test]
fn what_changes_meanwhile_is_covered_as_it_was_read() {
    let (region, done) = (Region::alloc(4096).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut fill = 0_u8;
            while !done.load(Ordering::Relaxed) {
                fill = fill.wrapping_add(1);
                region.write_at(0, &[fill; 4096]).unwrap();
            }
        });
        // Short ones take two passes.
        for len in [4091, 300] {
            let mut out = vec![0; len];
            for _ in 0..10_000 {
                let mut crc = Crc32c::resume(7);
                region.read_covered_at(0, &mut out, &mut crc).unwrap();
                assert_eq!(crc.finish(), extended(7, &out));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
