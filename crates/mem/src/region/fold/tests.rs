use std::vec;
use std::vec::Vec;

use crc32fast::Hasher;
use feroce_wire::iwarp::Crc32c;

use super::{Way, copy_crc32c, copy_out, takes, way};
use crate::region::CrcPrefix;

/// Every way of this processor, not only the best.
fn ways() -> impl Iterator<Item = Way> {
    let best = way();
    [Way::Wide, Way::Narrow].into_iter().filter(move |way| {
        // Who can fold four lanes can fold one.
        best == Some(*way) || best.is_some() && *way == Way::Narrow
    })
}

#[test]
fn every_way_copies_and_covers_the_same() {
    let bytes: Vec<u8> = (0..9000).map(|i| (i * 31 + (i >> 8) * 7 + 3) as u8).collect();
    for way in ways() {
        for (shift, len) in
            (0..65).flat_map(|shift| (512..1600).step_by(16).map(move |n| (shift, n)))
        {
            assert!(takes(len));
            let (mut covered, mut hashed) = (vec![0; shift + len], vec![0; shift + len]);
            // SAFETY: the processor can this way, and both have as many bytes.
            let crc = unsafe {
                copy_crc32c(way, bytes[7..].as_ptr(), covered[shift..].as_mut_ptr(), len, 77)
            };
            let mut expected = Crc32c::resume(77);
            expected.update(&bytes[7..][..len]);
            assert_eq!(crc, expected.finish(), "{way:?}: {len} bytes to {shift}");
            assert_eq!(covered[shift..], bytes[7..][..len]);

            let prefix = CrcPrefix { crc: 5, bytes: *b"twelve bytes" };
            let last = u64::from_ne_bytes(*bytes[7..][..len].last_chunk().expect("eight bytes"));
            // SAFETY: the processor can this way, and there are as many bytes to read.
            let crc =
                unsafe { copy_out(way, bytes[7..].as_ptr(), &mut hashed[shift..], last, prefix) };
            let mut expected = Hasher::new_with_initial(5);
            expected.update(b"twelve bytes");
            expected.update(&bytes[7..][..len]);
            assert_eq!(crc, expected.finalize(), "{way:?}: {len} bytes to {shift}");
            assert_eq!(hashed[shift..], bytes[7..][..len]);
        }
    }
}
