//! Numbers and texts in byte strings. Reading beyond the end yields zeros, and writing there does
//! nothing, so that no input can panic.

/// `N` bytes at an offset.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let found = bytes.get(at..).unwrap_or_default();
    let len = found.len().min(N);
    out[..len].copy_from_slice(&found[..len]);
    out
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub(super) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Writes what fits.
pub(super) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    let room = out.get_mut(at..).unwrap_or_default();
    let len = room.len().min(bytes.len());
    room[..len].copy_from_slice(&bytes[..len]);
}

/// Writes a text into a field of fixed length, padded with `pad`.
pub(super) fn put_text(out: &mut [u8], at: usize, len: usize, text: &str, pad: u8) {
    let room = out.get_mut(at..at + len).unwrap_or_default();
    room.fill(pad);
    put(room, 0, text.as_bytes());
}

/// A text in a field of fixed length, without its padding. Bytes that are no UTF-8 are replaced.
pub(super) fn text(bytes: &[u8], at: usize, len: usize) -> String {
    let field = bytes.get(at..).unwrap_or_default();
    let field = &field[..field.len().min(len)];
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}
