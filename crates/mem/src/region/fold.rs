//! Copying and hashing in one pass.
//!
//! A copy followed by a hash reads every byte twice. Here the CRC is computed from the registers
//! through which the bytes pass. It therefore covers exactly the bytes that were copied, even if
//! another thread or process changes the memory meanwhile.
//!
//! The method is that of Gopal and others, *Fast CRC computation for generic polynomials using
//! PCLMULQDQ instruction*, Intel 2009. A message is a polynomial. 16 bytes of it, multiplied by x^n
//! modulo the polynomial of the CRC, are added to the 16 bytes that stand n bits later, and
//! removed. In the end 16 bytes are left, which have the CRC of the whole message.

use core::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_prefetch, _mm_set_epi64x,
    _mm_setzero_si128, _mm_xor_si128, _mm512_castsi512_si128, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_set_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512, _mm512_zextsi128_si512,
};
use core::{mem, ptr};

use crc32fast::Hasher;
use feroce_wire::iwarp::Crc32c;

use super::CrcPrefix;

/// Bytes that the main loop copies in one iteration, and that one instruction copies at most and at
/// least.
const TURN: usize = 4 * BLOCK;
const BLOCK: usize = 64;
const LANE: usize = 16;

/// Lanes that are folded side by side where one instruction folds one.
const SUMS: usize = 8;

/// How far ahead the loop prefetches. The hardware prefetcher does not cross the end of a page, and
/// packets are often as long as a page, so that the next packet begins on the next page.
const AHEAD: usize = 1024;

/// The shortest copy for which this is faster.
const SHORTEST: usize = 2 * TURN;

/// Whether so many bytes can be copied in this way.
#[inline]
pub(super) fn takes(len: usize) -> bool {
    len >= SHORTEST && len.is_multiple_of(LANE)
}

/// How many lanes one instruction folds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Four.
    Wide,
    /// One: processors without `vpclmulqdq`, or without registers of 64 bytes.
    Narrow,
}

/// How this processor can, best.
#[inline]
pub(super) fn way() -> Option<Way> {
    if !std::is_x86_feature_detected!("pclmulqdq") || !std::is_x86_feature_detected!("avx") {
        return None;
    }
    let is_wide =
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vpclmulqdq");
    Some(if is_wide { Way::Wide } else { Way::Narrow })
}

/// A CRC of 32 bits that takes the lowest bit of a byte first.
trait Polynomial {
    /// The polynomial without x^32, the coefficient of x^31 in the lowest bit.
    const REVERSED: u32;

    /// The CRC of these bytes, in front of which nothing stands, not even what a CRC begins with.
    fn of_lane(bytes: [u8; LANE]) -> u32;
}

/// CRC-32, of packets.
struct Ethernet;

impl Polynomial for Ethernet {
    const REVERSED: u32 = 0xedb8_8320;

    #[inline]
    fn of_lane(bytes: [u8; LANE]) -> u32 {
        let mut hasher = Hasher::new_with_initial(!0);
        hasher.update(&bytes);
        hasher.finalize()
    }
}

/// CRC-32C, of FPDUs.
struct Castagnoli;

impl Polynomial for Castagnoli {
    const REVERSED: u32 = 0x82f6_3b78;

    #[inline]
    fn of_lane(bytes: [u8; LANE]) -> u32 {
        let mut crc = Crc32c::resume(!0);
        crc.update(&bytes);
        crc.finish()
    }
}

/// Copies from `src` to fill `out`, and returns the CRC-32 of the prefix, extended by the
/// copy. `last` is the last word, which was loaded before.
///
/// # Safety
///
/// The processor can this [way]. `src` is valid for reads of `out.len()` bytes that meet the
/// invariant of [`Region`](super::Region), and it [takes](takes) so many.
#[target_feature(enable = "avx,pclmulqdq")]
pub(super) unsafe fn copy_out(
    way: Way,
    src: *const u8,
    out: &mut [u8],
    last: u64,
    prefix: CrcPrefix,
) -> u32 {
    let (dst, len) = (out.as_mut_ptr(), out.len());
    debug_assert!(takes(len), "the caller has seen to it");
    let carried = fold_lane::<Ethernet>(lane_of(prefix));
    let at = len - LANE;
    // SAFETY: both have as many bytes, a lane less than `takes` demands of all.
    let sum = unsafe { copy_lanes::<Ethernet>(way, src, dst, at, carried) };
    // SAFETY: a lane is left.
    let word: i64 = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
    out[at + 8..].copy_from_slice(&last.to_ne_bytes());
    let lane = _mm_set_epi64x(last as i64, word);
    crc_of::<Ethernet>(_mm_xor_si128(fold_lane::<Ethernet>(sum), lane))
}

/// Copies `len` bytes from `src` to `dst`, and returns the CRC-32C of what `crc` covers, extended
/// by the copy.
///
/// # Safety
///
/// The processor can this [way]. `src` is valid for reads and `dst` for writes of `len` bytes, and
/// it [takes](takes) so many. One of them may be registered memory that meets the invariant of
/// [`Region`](super::Region).
#[target_feature(enable = "avx,pclmulqdq")]
pub(super) unsafe fn copy_crc32c(
    way: Way,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    crc: u32,
) -> u32 {
    debug_assert!(takes(len), "the caller has seen to it");
    // What precedes changes the first four bytes.
    let carried = _mm_set_epi64x(0, i64::from(!crc));
    // SAFETY: by contract.
    crc_of::<Castagnoli>(unsafe { copy_lanes::<Castagnoli>(way, src, dst, len, carried) })
}

/// Copies `len` bytes, and returns sixteen that have their CRC, if `carried` is added to the first.
///
/// # Safety
///
/// The processor can this [way]. `src` is valid for reads and `dst` for writes of `len` bytes. They
/// are a lane less than it [takes](takes), or more, and whole lanes.
#[inline]
#[target_feature(enable = "avx,pclmulqdq")]
unsafe fn copy_lanes<P: Polynomial>(
    way: Way,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    mut carried: __m128i,
) -> __m128i {
    // Stores that cross cache lines are slow. Up to the first cache line, copy lane by lane.
    let head = Some(dst.align_offset(BLOCK)).filter(|head| head.is_multiple_of(LANE)).unwrap_or(0);
    let mut at = 0;
    while at < head {
        // SAFETY: `head` is shorter than a block, and so than both.
        let lane: __m128i = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        carried = fold_lane::<P>(_mm_xor_si128(lane, carried));
        at += LANE;
    }
    let (src, dst, len) = (src.wrapping_add(at), dst.wrapping_add(at), len - at);
    let blocks = len - len % BLOCK;
    let mut sum = match way {
        // SAFETY: the processor can; head and four blocks are no longer than both.
        Way::Wide => unsafe { copy_wide::<P>(src, dst, blocks, carried) },
        // SAFETY: as above.
        Way::Narrow => unsafe { copy_narrow::<P>(src, dst, blocks, carried) },
    };
    let mut at = blocks;
    while at < len {
        // SAFETY: a lane from `at` on ends before both do.
        let lane = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        sum = _mm_xor_si128(fold_lane::<P>(sum), lane);
        at += LANE;
    }
    sum
}

/// As [`copy_lanes`], four lanes at once.
///
/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `len` bytes, which are whole blocks, four or
/// more.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq")]
unsafe fn copy_wide<P: Polynomial>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    carried: __m128i,
) -> __m128i {
    let mut at = 0;
    let mut sums = [_mm512_setzero_si512(); 4];
    for sum in &mut sums {
        // SAFETY: there are four blocks.
        *sum = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        at += BLOCK;
    }
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(carried));
    while at + TURN <= len {
        for sum in &mut sums {
            // SAFETY: four times a block from `at` on end before both do.
            let block = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
            // A hint: the pointer need not be valid.
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + AHEAD).cast());
            *sum = fold(*sum, all(const { by::<P>(4 * 512) }), block);
            at += BLOCK;
        }
    }
    let [a, b, c, d] = sums;
    let d = fold(a, all(const { by::<P>(3 * 512) }), d);
    let d = fold(b, all(const { by::<P>(2 * 512) }), d);
    let mut sum = fold(c, all(const { by::<P>(512) }), d);
    while at < len {
        // SAFETY: a block from `at` on ends before both do.
        let block = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        sum = fold(sum, all(const { by::<P>(512) }), block);
        at += BLOCK;
    }
    lanes_to_one::<P>(sum)
}

/// As [`copy_lanes`], lane by lane, with a sum for each of [`SUMS`] lanes: one multiplication need
/// not wait for the other.
///
/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `len` bytes, which are whole blocks, two or
/// more.
#[target_feature(enable = "avx,pclmulqdq")]
unsafe fn copy_narrow<P: Polynomial>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    carried: __m128i,
) -> __m128i {
    let mut at = 0;
    let mut sums = [_mm_setzero_si128(); SUMS];
    for sum in &mut sums {
        // SAFETY: there are as many lanes, two blocks.
        *sum = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        at += LANE;
    }
    sums[0] = _mm_xor_si128(sums[0], carried);
    while at + SUMS * LANE <= len {
        // A hint: the pointer need not be valid.
        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + AHEAD).cast());
        _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + AHEAD + BLOCK).cast());
        for sum in &mut sums {
            // SAFETY: as many lanes from `at` on end before both do.
            let lane = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
            *sum = _mm_xor_si128(fold_by(*sum, const { by::<P>(128 * SUMS as u32) }), lane);
            at += LANE;
        }
    }
    let [first, rest @ ..] = sums;
    let mut sum = first;
    for next in rest {
        sum = _mm_xor_si128(fold_lane::<P>(sum), next);
    }
    while at < len {
        // SAFETY: a lane from `at` on ends before both do.
        let lane = unsafe { pass(src.wrapping_add(at), dst.wrapping_add(at)) };
        sum = _mm_xor_si128(fold_lane::<P>(sum), lane);
        at += LANE;
    }
    sum
}

/// The prefix as a lane: four zeros, which do not change a CRC at its start, and the bytes, of
/// which the first four have the CRC added.
#[inline]
#[target_feature(enable = "sse2")]
fn lane_of(CrcPrefix { crc, bytes: [a, b, c, d, rest @ ..] }: CrcPrefix) -> __m128i {
    let first = u64::from(u32::from_le_bytes([a, b, c, d]) ^ !crc) << 32;
    _mm_set_epi64x(i64::from_le_bytes(rest), first as i64)
}

/// Copies one value, in one load that the compiler does not repeat.
///
/// # Safety
///
/// `src` and `dst` are valid for a read and a write of as many bytes.
#[inline(always)]
unsafe fn pass<T: Copy>(src: *const u8, dst: *mut u8) -> T {
    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Anywhere<T>(T);
    // SAFETY: by contract; it need not be aligned.
    let value = unsafe { ptr::read_volatile(src.cast::<Anywhere<T>>()) };
    // SAFETY: by contract; it need not be aligned.
    unsafe { ptr::write(dst.cast(), value) };
    value.0
}

/// Adds four lanes, each `k` further on, to `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(sum: __m512i, k: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(sum, k, 0x00);
    let high = _mm512_clmulepi64_epi128(sum, k, 0x11);
    // The exclusive or of all three.
    _mm512_ternarylogic_epi64(low, high, next, 0x96)
}

/// What a lane adds to the next.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_lane<P: Polynomial>(sum: __m128i) -> __m128i {
    fold_by(sum, const { by::<P>(128) })
}

/// What a lane adds to another.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_by(sum: __m128i, (low, high): (i64, i64)) -> __m128i {
    let k = _mm_set_epi64x(high, low);
    _mm_xor_si128(_mm_clmulepi64_si128(sum, k, 0x00), _mm_clmulepi64_si128(sum, k, 0x11))
}

/// Adds the first three lanes to the last.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn lanes_to_one<P: Polynomial>(sum: __m512i) -> __m128i {
    let k = lanes(const { [by::<P>(3 * 128), by::<P>(2 * 128), by::<P>(128), (0, 0)] });
    let moved = fold(sum, k, _mm512_setzero_si512());
    let first = _mm512_castsi512_si128(moved);
    let second = _mm512_extracti32x4_epi32(moved, 1);
    let third = _mm512_extracti32x4_epi32(moved, 2);
    let last = _mm512_extracti32x4_epi32(sum, 3);
    _mm_xor_si128(_mm_xor_si128(first, second), _mm_xor_si128(third, last))
}

/// The CRC of sixteen bytes that stand for a message, whatever it began with.
#[inline]
fn crc_of<P: Polynomial>(sum: __m128i) -> u32 {
    // SAFETY: both are sixteen bytes of any kind.
    P::of_lane(unsafe { mem::transmute::<__m128i, [u8; LANE]>(sum) })
}

/// The same for every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn all(k: (i64, i64)) -> __m512i {
    lanes([k; 4])
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes([a, b, c, d]: [(i64, i64); 4]) -> __m512i {
    _mm512_set_epi64(d.1, d.0, c.1, c.0, b.1, b.0, a.1, a.0)
}

/// What moves a lane `bits` further on: its first half, which stands 64 bits before its second,
/// and that. The product of two numbers of reversed bits is one bit short, and reduced modulo the
/// polynomial it would be 32 bits further on: hence the exponents.
const fn by<P: Polynomial>(bits: u32) -> (i64, i64) {
    (power(P::REVERSED, bits + 32), power(P::REVERSED, bits - 32))
}

/// x^n modulo the polynomial of the CRC, in 33 bits, the coefficient of x^0 first.
const fn power(reversed: u32, n: u32) -> i64 {
    let (mut power, mut i) = (0x8000_0000_u32, 0);
    while i < n {
        let carry = (power & 1).wrapping_neg();
        power = (power >> 1) ^ (carry & reversed);
        i += 1;
    }
    (power as i64) << 1
}

#[cfg(test)]
mod tests;
