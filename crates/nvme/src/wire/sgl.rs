//! The description of a command's data: NVMe Base 4.1.2, keyed descriptors by RDMA Transport 2.

use super::bytes::{array, byte, le32, le64, put};

/// Offset in the capsule: data block descriptor, sub type offset.
const IN_CAPSULE: u8 = 0x01;
/// Keyed data block descriptor, sub type address.
const KEYED: u8 = 0x40;
/// The same; the key is to be invalidated by the response.
const KEYED_INVALIDATE: u8 = 0x4f;

/// A scatter/gather list descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sgl(pub [u8; 16]);

/// What a descriptor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SglKind {
    /// Memory of the host, which the target reads or writes.
    Keyed {
        /// Address of the first byte.
        addr: u64,
        /// Bytes, at most 2^24 - 1.
        len: u32,
        /// Key of the host's memory.
        key: u32,
        /// Whether the response invalidates the key.
        invalidate: bool,
    },
    /// Behind the command, in the same capsule.
    InCapsule {
        /// Offset of the first byte, from the end of the command.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Another type, which this transport does not have.
    Unknown(u8),
}

impl Sgl {
    /// Memory of the host. The length has 24 bits.
    pub fn keyed(addr: u64, len: u32, key: u32, invalidate: bool) -> Self {
        let mut out = [0; 16];
        put(&mut out, 0, &addr.to_le_bytes());
        put(&mut out, 8, &len.to_le_bytes()[..3]);
        put(&mut out, 11, &key.to_le_bytes());
        out[15] = if invalidate { KEYED_INVALIDATE } else { KEYED };
        Self(out)
    }

    /// No data.
    pub fn none() -> Self {
        Self::keyed(0, 0, 0, false)
    }

    /// Data at the beginning of the capsule's data.
    pub fn in_capsule(len: u32) -> Self {
        let mut out = [0; 16];
        put(&mut out, 8, &len.to_le_bytes());
        out[15] = IN_CAPSULE;
        Self(out)
    }

    /// What it says.
    pub fn kind(&self) -> SglKind {
        let bytes = &self.0;
        match byte(bytes, 15) {
            IN_CAPSULE => SglKind::InCapsule { offset: le64(bytes, 0), len: le32(bytes, 8) },
            id @ (KEYED | KEYED_INVALIDATE) => SglKind::Keyed {
                addr: le64(bytes, 0),
                len: le32(bytes, 8) & 0xff_ffff,
                key: u32::from_le_bytes(array(bytes, 11)),
                invalidate: id == KEYED_INVALIDATE,
            },
            id => SglKind::Unknown(id),
        }
    }
}
