//! What a train carries: granted memory, or bytes that were copied when the work was posted.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use feroce_mem::{CrcPrefix, Grant, Read, Source};

/// Bytes that travel inside a work request instead of being fetched from registered memory.
///
/// Up to [`InlineBytes::SMALL`] bytes need no allocation.
///
/// ```
/// # use feroce_train::InlineBytes;
/// let bytes = InlineBytes::new(b"small");
/// assert_eq!(bytes.as_slice(), b"small");
/// ```
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone)]
pub struct InlineBytes(Repr);

#[derive(Clone)]
enum Repr {
    Small { len: u8, bytes: [u8; InlineBytes::SMALL] },
    Shared(Arc<[u8]>),
}

impl InlineBytes {
    /// Longest data that is stored without allocating.
    pub const SMALL: usize = 62;

    /// Copies `data`.
    #[inline]
    pub fn new(data: &[u8]) -> Self {
        if data.len() <= Self::SMALL {
            let mut bytes = [0; Self::SMALL];
            bytes[..data.len()].copy_from_slice(data);
            Self(Repr::Small { len: data.len() as u8, bytes })
        } else {
            Self(Repr::Shared(Arc::from(data)))
        }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Small { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Repr::Shared(bytes) => bytes,
        }
    }

    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for InlineBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} inline bytes", self.len())
    }
}

/// The payload of a train, as one logical run of bytes.
#[derive(Debug, Default)]
pub enum Payload {
    /// No bytes.
    #[default]
    Empty,
    /// Bytes `offset..` of inline data.
    Inline {
        /// The whole inline data of the work request.
        data: InlineBytes,
        /// Where this train starts in it.
        offset: usize,
    },
    /// One granted range.
    One(Grant<Read>),
    /// Granted ranges, gathered in order.
    Gather(Vec<Grant<Read>>),
    /// Whole packets, headers and padding included, each as long as the first: short messages
    /// that leave together.
    Packets {
        /// The packets, one after the other.
        bytes: Vec<u8>,
        /// Length of each.
        len: usize,
    },
}

impl Payload {
    /// Whether it is in registered memory.
    #[inline]
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::One(_) | Self::Gather(_))
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// Returns false, with `out` partly written, if the payload ends before that.
    #[inline]
    #[must_use]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        match self {
            Self::Empty => out.is_empty(),
            Self::Inline { data, offset: start } => {
                let from = start.saturating_add(offset);
                match data.as_slice().get(from..).and_then(|tail| tail.get(..out.len())) {
                    Some(bytes) => {
                        out.copy_from_slice(bytes);
                        true
                    }
                    None => false,
                }
            }
            Self::One(grant) => grant.copy_out(offset, out).is_ok(),
            Self::Gather(grants) => gather(grants, offset, out),
            // What they carry lies between their headers.
            Self::Packets { .. } => false,
        }
    }

    /// As [`Payload::copy_out`], and returns the CRC-32 of the prefix, extended by the
    /// copy. `None`, and nothing is copied, unless that can be done in one pass.
    #[inline]
    pub(crate) fn copy_out_hashed(
        &self,
        offset: usize,
        out: &mut [u8],
        prefix: CrcPrefix,
    ) -> Option<u32> {
        match self {
            Self::One(grant) => grant.copy_out_hashed(offset, out, prefix),
            _ => None,
        }
    }

    /// Packet `i`, if it is written out already.
    #[inline]
    pub(crate) fn packet(&self, i: u32) -> Option<&[u8]> {
        match self {
            Self::Packets { bytes, len } => bytes.get(i as usize * len..)?.get(..*len),
            _ => None,
        }
    }
}

/// Copies from a list of grants as if they were one run of bytes.
fn gather(grants: &[Grant<Read>], mut offset: usize, mut out: &mut [u8]) -> bool {
    for grant in grants {
        if out.is_empty() {
            break;
        }
        let available = grant.len().saturating_sub(offset);
        if available == 0 {
            offset -= grant.len();
            continue;
        }
        let (now, later) = out.split_at_mut(available.min(out.len()));
        if grant.copy_out(offset, now).is_err() {
            return false;
        }
        offset = 0;
        out = later;
    }
    out.is_empty()
}

/// The payload of a run of packets that is still where its sender has it.
///
/// All packets of the run but the last have as many bytes of it as the path MTU says. Their headers
/// are those of one packet with the opcode that [`Op::through`](feroce_wire::Op::through) gives,
/// the PSN of the first, `solicited` of the last, `ack_req` if one of them has it, and no padding.
#[derive(Clone, Copy, Debug)]
pub struct RemotePayload<'a> {
    /// Where the bytes come from.
    pub source: &'a dyn Source,
    /// The first byte in the source.
    pub offset: usize,
    /// How many there are.
    pub len: usize,
    /// How many packets it is the payload of; at least 1.
    pub packets: u32,
}

impl<'a> RemotePayload<'a> {
    /// What is left without the first `packets` packets of `len` bytes each; `None` if nothing is.
    pub fn without(self, packets: u32, len: usize) -> Option<Self> {
        let left = self.packets.checked_sub(packets).filter(|left| *left > 0)?;
        let skipped = (packets as usize).checked_mul(len)?;
        let len = self.len.checked_sub(skipped)?;
        Some(Self { offset: self.offset + skipped, len, packets: left, ..self })
    }
}
