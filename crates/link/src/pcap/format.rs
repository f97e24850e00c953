//! Blocks of the pcapng format, as the draft of the IETF describes them.
//!
//! Everything is little-endian; a block is a type, its length, its body and its length again; an
//! option is a code, a length and a value that is padded to four bytes.

/// Section header block: begins a file.
const SHB: u32 = 0x0a0d_0d0a;
/// Interface description block.
const IDB: u32 = 1;
/// Enhanced packet block.
const EPB: u32 = 6;

/// Tells readers the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Bytes of a section header block before its options.
const SHB_FIXED: usize = 24;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// The program that writes the file, as its first block names it.
pub(super) const APPLICATION: &str = concat!("feroce ", env!("CARGO_PKG_VERSION"));

/// What the packets of a file begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkType {
    Ethernet = 1,
    /// An IPv4 or IPv6 header.
    RawIp = 101,
    /// A record in the format of Endace's cards (ERF), which says what it holds.
    Erf = 197,
}

/// Which way a packet went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    In = 1,
    Out = 2,
}

/// Appends the block that begins a file.
pub(super) fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SHB, |out| {
        out.extend(BYTE_ORDER.to_le_bytes());
        out.extend(1_u16.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        // The length of the section is not known.
        out.extend(u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, application.as_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Whether a file that begins with `head` is a capture of feroce, of this version or another.
pub(super) fn is_ours(head: &[u8]) -> bool {
    let mut ours = Vec::new();
    section_header(&mut ours, APPLICATION);
    // Type, byte order and version of the format; lengths differ with the version of feroce.
    let same = |at: core::ops::Range<usize>| head.get(at.clone()) == ours.get(at);
    let named = head.get(SHB_FIXED + 4..).is_some_and(|value| value.starts_with(b"feroce "));
    same(0..4) && same(8..SHB_FIXED + 2) && named
}

/// Appends the description of an interface whose packets have times in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, link_type: LinkType, name: &str) {
    block(out, IDB, |out| {
        out.extend((link_type as u16).to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        // No limit to the length of packets.
        out.extend(0_u32.to_le_bytes());
        if !name.is_empty() {
            option(out, IF_NAME, name.as_bytes());
        }
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

/// Appends a packet of an interface, in the order in which they were described; `nanos` counts from
/// the epoch of Unix.
pub(super) fn packet(
    out: &mut Vec<u8>,
    (interface, nanos): (u32, u64),
    direction: Direction,
    comment: &str,
    write: impl FnOnce(&mut Vec<u8>),
) {
    block(out, EPB, |out| {
        out.extend(interface.to_le_bytes());
        out.extend(((nanos >> 32) as u32).to_le_bytes());
        out.extend((nanos as u32).to_le_bytes());
        let lengths = out.len();
        out.extend([0; 8]);
        write(out);
        let len = (out.len() - lengths - 8) as u32;
        out[lengths..lengths + 4].copy_from_slice(&len.to_le_bytes());
        out[lengths + 4..lengths + 8].copy_from_slice(&len.to_le_bytes());
        pad(out, len as usize);
        option(out, EPB_FLAGS, &(direction as u32).to_le_bytes());
        option(out, OPT_COMMENT, comment.as_bytes());
        option(out, OPT_END, &[]);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend(len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

/// Rounds up to four bytes what had `len` of them.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + (len.wrapping_neg() & 3), 0);
}
