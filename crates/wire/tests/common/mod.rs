//! Classic pcap files, read and written by hand.
#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

const MAGIC: u32 = 0xa1b2_c3d4;
const LINKTYPE_ETHERNET: u32 = 1;

/// The captures beside the tests, by name, in order.
pub(crate) fn captures() -> Vec<(String, PathBuf)> {
    captures_in(Path::new("tests/captures"))
}

/// The captures of a folder of this crate, by name, in order.
pub(crate) fn captures_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found: Vec<_> = fs::read_dir(dir)
        .expect("captures directory")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .map(|path| (path.file_stem().expect("stem").to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
}

/// The frames of a little-endian Ethernet capture.
pub(crate) fn read(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0), MAGIC, "{}: not a classic little-endian pcap", path.display());
    assert_eq!(word(20), LINKTYPE_ETHERNET, "{}: not Ethernet", path.display());
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, original) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, original, "{}: cut frame", path.display());
        frames.push(bytes[at + 16..at + 16 + captured].to_vec());
        at += 16 + captured;
    }
    frames
}

/// Writes Ethernet frames, one second apart.
pub(crate) fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut out = Vec::new();
    out.extend(MAGIC.to_le_bytes());
    out.extend([2, 0, 4, 0]);
    out.extend([0; 8]);
    out.extend(65_535_u32.to_le_bytes());
    out.extend(LINKTYPE_ETHERNET.to_le_bytes());
    for (second, frame) in frames.iter().enumerate() {
        let len = u32::try_from(frame.len()).expect("short frame").to_le_bytes();
        out.extend(u32::try_from(second).expect("few frames").to_le_bytes());
        out.extend([0; 4]);
        out.extend(len);
        out.extend(len);
        out.extend(frame);
    }
    fs::write(path, out).expect("write capture");
}
