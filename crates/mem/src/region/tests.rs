use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;

/// Surroundings that must not change.
const CANARY: u8 = 0xc5;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 97).unwrap() + 1).collect()
}

fn contents(region: &Region) -> Vec<u8> {
    let mut all = vec![0; region.len()];
    region.read_at(0, &mut all).unwrap();
    all
}

#[test]
fn copies_of_every_length_at_every_alignment() {
    for len in 0..=80 {
        for align in 0..8 {
            let region = Region::alloc(128).unwrap();
            region.write_at(0, &[CANARY; 128]).unwrap();
            let data = pattern(len);
            let at = 16 + align;
            region.write_at(at, &data).unwrap();
            let all = contents(&region);
            assert_eq!(all[at..at + len], data, "length {len} at {align}");
            assert!(all[..at].iter().all(|&b| b == CANARY), "length {len} at {align}");
            assert!(all[at + len..].iter().all(|&b| b == CANARY), "length {len} at {align}");

            let mut out = [CANARY; 96];
            region.read_at(at, &mut out[8..8 + len]).unwrap();
            assert_eq!(out[8..8 + len], data, "length {len} at {align}");
            assert!(out[..8].iter().chain(&out[8 + len..]).all(|&b| b == CANARY));
        }
    }
}

#[test]
fn the_last_word_is_the_largest_that_fits() {
    for addr in 64..72 {
        for len in 0..=80 {
            let word = last_word(addr, len);
            let largest = [8, 4, 2, 1].into_iter().find(|&w| w <= len && (addr + len) % w == 0);
            assert_eq!(word, largest.unwrap_or(0), "length {len} at {addr}");
        }
    }
    for len in [1, 2, 4, 8] {
        assert_eq!(last_word(64, len), len, "an aligned power of two is one word");
    }
}

#[test]
fn allocations_are_zeroed_and_page_aligned() {
    for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
        let region = Region::alloc(len).unwrap();
        assert_eq!(region.len(), len);
        assert_eq!(region.is_empty(), len == 0);
        assert_eq!(region.addr() % 4096, 0);
        assert!(contents(&region).iter().all(|&b| b == 0));
        region.write_at(0, &pattern(len)).unwrap();
        assert_eq!(contents(&region), pattern(len));
    }
}

#[test]
fn absurd_sizes_are_errors() {
    for len in [usize::MAX, usize::MAX - 4096, isize::MAX as usize, 1 << 60] {
        assert_eq!(Region::alloc(len).unwrap_err(), OutOfMemory);
    }
}

#[test]
fn accesses_stay_in_bounds() {
    let region = Region::alloc(16).unwrap();
    for (offset, len) in [(17, 0), (16, 1), (15, 2), (0, 17), (usize::MAX, 1), (usize::MAX, 17)] {
        let mut buf = vec![0; len];
        assert_eq!(region.read_at(offset, &mut buf), Err(OutOfBounds));
        assert_eq!(region.write_at(offset, &buf), Err(OutOfBounds));
    }
    assert_eq!(region.write_at(16, &[]), Ok(()));
    assert_eq!(region.load_u64(16), Err(AccessError::OutOfBounds));
    assert_eq!(region.store_u64(9, 1), Err(AccessError::OutOfBounds));
    assert_eq!(region.fetch_add_u64(4, 1), Err(AccessError::Misaligned));
    assert_eq!(region.compare_exchange_u64(1, 0, 1), Err(AccessError::Misaligned));
}

#[test]
fn words_are_in_host_order() {
    let region = Region::alloc(16).unwrap();
    region.store_u64(8, 40).unwrap();
    assert_eq!(contents(&region)[8..], 40_u64.to_ne_bytes());
    assert_eq!(region.fetch_add_u64(8, 2), Ok(40));
    assert_eq!(region.compare_exchange_u64(8, 41, 7), Ok(Err(42)));
    assert_eq!(region.compare_exchange_u64(8, 42, u64::MAX), Ok(Ok(42)));
    assert_eq!(region.fetch_add_u64(8, 1), Ok(u64::MAX));
    assert_eq!(region.load_u64(8), Ok(0));
}

#[test]
fn a_null_region_is_zero_everywhere() {
    let region = Region::null();
    for offset in [0, 8, 1 << 40, usize::MAX - 15] {
        region.write_at(offset, &[1; 8]).unwrap();
        let mut out = [CANARY; 8];
        region.read_at(offset, &mut out).unwrap();
        assert_eq!(out, [0; 8]);
    }
    region.store_u64(64, 5).unwrap();
    assert_eq!(region.load_u64(64), Ok(0));
    assert_eq!(region.fetch_add_u64(64, 5), Ok(0));
    assert_eq!(region.compare_exchange_u64(64, 5, 6), Ok(Ok(0)));
    assert_eq!(region.load_u64(3), Err(AccessError::Misaligned));
    assert_eq!(region.read_at(usize::MAX - 7, &mut [0; 8]), Err(OutOfBounds));
}

/// Raw memory of `len` words, freed by the region.
fn raw_words(len: usize) -> (Arc<Region>, *mut u64) {
    struct Words(Box<[AtomicU64]>);
    let words = Words((0..len).map(|_| AtomicU64::new(0)).collect());
    let start = words.0[0].as_ptr();
    // SAFETY: `words` is kept with the region and is never used by reference again.
    let region = unsafe { Region::from_raw(start.cast(), len * 8, Some(Box::new(words))) };
    (region, start)
}

#[test]
fn a_raw_region_is_the_memory_given() {
    let (region, start) = raw_words(4);
    assert_eq!((region.addr(), region.len()), (start.addr() as u64, 32));
    region.write_at(8, &7_u64.to_ne_bytes()).unwrap();
    let second = start.wrapping_add(1);
    // SAFETY: the second of four words, alive as long as `region`.
    assert_eq!(unsafe { second.read_volatile() }, 7);
}

#[test]
fn what_a_raw_region_keeps_goes_with_it() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let gone = Arc::new(AtomicBool::new(false));
    let keep = Box::new(Flag(Arc::clone(&gone)));
    // SAFETY: an empty range.
    let region = unsafe { Region::from_raw(ptr::null_mut(), 0, Some(keep)) };
    let second = Arc::clone(&region);
    drop(region);
    assert!(!gone.load(Ordering::Relaxed));
    drop(second);
    assert!(gone.load(Ordering::Relaxed));
}

#[test]
fn the_whole_address_space_is_a_region() {
    let (memory, start) = raw_words(4);
    // SAFETY: only the words, kept alive by `memory`, are touched.
    let all = unsafe { Region::from_raw(ptr::null_mut(), usize::MAX, None) };
    assert_eq!((all.addr(), all.len()), (0, usize::MAX));
    all.write_at(start.expose_provenance() + 4, &[1, 2, 3]).unwrap();
    assert_eq!(contents(&memory)[3..8], [0, 1, 2, 3, 0]);
    assert_eq!(all.fetch_add_u64(start.addr() + 8, 3), Ok(0));
    assert_eq!(memory.load_u64(8), Ok(3));
    assert_eq!(all.write_at(usize::MAX - 1, &[0; 2]), Err(OutOfBounds));
}

#[test]
fn who_sees_the_last_byte_sees_all() {
    const LEN: usize = 61;
    const ROUNDS: u8 = 250;
    for at in 0..4 {
        let region = Region::alloc(128).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    region.write_at(at, &[round; LEN]).unwrap();
                    thread::yield_now();
                }
            });
            let mut last = [0];
            while last[0] < ROUNDS {
                region.read_at(at + LEN - 1, &mut last).unwrap();
                let mut whole = [0; LEN];
                region.read_at(at, &mut whole).unwrap();
                assert!(whole.iter().all(|&b| b >= last[0]), "{last:?} before {whole:?}");
                thread::yield_now();
            }
        });
    }
}

#[test]
fn an_aligned_word_is_never_torn() {
    let region = Region::alloc(64).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20_000_u64 {
                let word = (round % 256) * 0x0101_0101_0101_0101;
                region.write_at(8, &word.to_ne_bytes()).unwrap();
            }
        });
        for _ in 0..20_000 {
            let mut word = [0; 8];
            region.read_at(8, &mut word).unwrap();
            assert!(word.iter().all(|&b| b == word[0]), "torn: {word:?}");
        }
    });
}

/// Bytes, or not.
#[derive(Debug)]
struct Bytes(Vec<u8>, bool);

impl Source for Bytes {
    fn fetch(&self, offset: usize, landing: &mut Landing<'_>) -> bool {
        let wanted = &self.0[offset..offset + landing.len()];
        // In two parts, and more than there is room for.
        let (one, two) = wanted.split_at(wanted.len() / 2);
        landing.put(one);
        landing.put(&[two, &[CANARY; 9]].concat());
        self.1
    }
}

/// Bytes at hand.
#[derive(Debug)]
struct AtHand<'a>(&'a [u8]);

impl Source for AtHand<'_> {
    fn bytes(&self) -> Option<&[u8]> {
        Some(self.0)
    }

    fn fetch(&self, _: usize, _: &mut Landing<'_>) -> bool {
        unreachable!("the bytes are at hand")
    }
}

#[test]
fn bytes_at_hand_need_no_landing() {
    let bytes: Vec<u8> = (1..=24).collect();
    let source = AtHand(&bytes);
    for (at, len) in (0..9).flat_map(|at| (0..=20).map(move |len| (at, len))) {
        let region = Region::alloc(40).unwrap();
        region.write_from(at, len, &source, 3).unwrap();
        let mut expected = [0; 40];
        expected[at..at + len].copy_from_slice(&bytes[3..3 + len]);
        let mut found = [0; 40];
        region.read_at(0, &mut found).unwrap();
        assert_eq!(found, expected, "{len} bytes at {at}");
    }
    let region = Region::alloc(40).unwrap();
    assert_eq!(region.write_from(0, 22, &source, 3), Err(FetchError::Gone));
    assert_eq!(region.write_from(0, 1, &source, usize::MAX), Err(FetchError::Gone));
    assert_eq!(region.write_from(39, 2, &source, 0), Err(FetchError::OutOfBounds));
}

#[test]
fn a_source_fills_what_it_should_and_nothing_else() {
    for len in 0..=40 {
        for align in 0..8 {
            let region = Region::alloc(96).unwrap();
            region.write_at(0, &[CANARY; 96]).unwrap();
            let source = Bytes(pattern(len + 3), true);
            let at = 16 + align;
            region.write_from(at, len, &source, 3).unwrap();
            let all = contents(&region);
            assert_eq!(all[at..at + len], source.0[3..], "length {len} at {align}");
            assert!(all[..at].iter().chain(&all[at + len..]).all(|&b| b == CANARY));
        }
    }
    let (region, source) = (Region::alloc(8).unwrap(), Bytes(pattern(64), true));
    assert_eq!(region.write_from(1, 8, &source, 0), Err(FetchError::OutOfBounds));
}

#[test]
fn the_last_word_does_not_come_from_a_source_that_is_gone() {
    let region = Region::alloc(64).unwrap();
    let source = Bytes(pattern(64), false);
    assert_eq!(region.write_from(0, 64, &source, 0), Err(FetchError::Gone));
    assert_eq!(region.load_u64(56).unwrap(), 0, "who waits for it waits on");
}

/// Whether these bytes can be read and hashed in one pass here.
fn can_be_hashed(addr: u64, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_possible = fold::way().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    let is_possible = false;
    is_possible && len >= 512 && len.is_multiple_of(16) && addr.is_multiple_of(8)
}

fn hash(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// A CRC, and bytes that are others with each.
fn prefix(crc: u32) -> CrcPrefix {
    let bytes = core::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ crc.to_le_bytes()[i % 4]);
    CrcPrefix { crc, bytes }
}

/// Reads `len` bytes at `at` to `shift` of a buffer, and looks at everything.
fn check_hashed(region: &Region, bytes: &[u8], (at, len, shift): (usize, usize, usize), crc: u32) {
    let mut out = vec![CANARY; shift + len + 64];
    let prefix = prefix(crc);
    let hashed = region.read_hashed_at(at, &mut out[shift..shift + len], prefix);
    let is_read = can_be_hashed(region.addr() + at as u64, len);
    let expected = || hash(hash(crc, &prefix.bytes), &bytes[at..at + len]);
    assert_eq!(hashed, is_read.then(expected), "{len} at {at}");
    let (before, rest) = out.split_at(shift);
    let (read, after) = rest.split_at(len);
    if is_read {
        assert_eq!(read, &bytes[at..at + len], "{len} at {at} to {shift}");
    }
    let untouched = if is_read { &[] } else { read };
    assert!(before.iter().chain(untouched).chain(after).all(|&b| b == CANARY));
}

#[test]
fn every_length_is_hashed_or_left_alone() {
    let (region, bytes) = (Region::alloc(8192).unwrap(), pattern(8192));
    region.write_at(0, &bytes).unwrap();
    for len in (0..1200).chain(4080..4120) {
        // What is aligned how differs from one to the next.
        check_hashed(&region, &bytes, (8 * (len % 9), len, 4 * (len % 17)), len as u32);
    }
    for (at, shift) in (0..64).flat_map(|at| (0..64).map(move |shift| (at, shift))) {
        check_hashed(&region, &bytes, (at, 4096, shift), 0);
    }
    assert_eq!(
        region.read_hashed_at(4096 + 8, &mut vec![0; 4096], prefix(0)),
        None,
        "out of bounds"
    );
}

proptest! {
    #[test]
    fn what_is_hashed_is_what_is_read(
        bytes in proptest::collection::vec(any::<u8>(), 8192),
        at in 0_usize..64,
        lanes in 0_usize..300,
        shift in 0_usize..64,
        crc: u32,
    ) {
        let region = Region::alloc(bytes.len()).unwrap();
        region.write_at(0, &bytes).unwrap();
        check_hashed(&region, &bytes, (at, 16 * lanes, shift), crc);
    }
}

/// A packet that is sent while its memory changes has the checksum of what is in it.
#[test]
fn what_changes_meanwhile_is_hashed_as_it_was_read() {
    let (region, done) = (Region::alloc(4096).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut fill = 0_u8;
            while !done.load(Ordering::Relaxed) {
                fill = fill.wrapping_add(1);
                region.write_at(0, &[fill; 4096]).unwrap();
            }
        });
        let mut out = vec![0; 4096];
        for _ in 0..20_000 {
            if let Some(hashed) = region.read_hashed_at(0, &mut out, prefix(7)) {
                assert_eq!(hashed, hash(hash(7, &prefix(7).bytes), &out));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
