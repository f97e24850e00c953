//! Received payload: in the packet, or still in the memory of the sending process.

use feroce_mem::{FetchError, Loan, Write};
use feroce_train::RemotePayload;
use feroce_wire::{Op, Psn};

/// A received packet whose BTH was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxPacket<'a> {
    pub(crate) op: Op,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    /// The bytes after the BTH, without padding: headers, and the payload unless it is `remote`.
    pub(crate) bytes: &'a [u8],
    /// Payload in the memory of the sender. The packet then stands for a run of packets.
    pub(crate) remote: Option<&'a RemotePayload<'a>>,
}

impl<'a> RxPacket<'a> {
    /// The payload, where `bytes` is what follows all headers; `None` if it is in both places.
    #[inline]
    pub(super) fn payload(
        remote: Option<RemotePayload<'a>>,
        bytes: &'a [u8],
    ) -> Option<RxPayload<'a>> {
        match remote {
            None => Some(RxPayload::Here(bytes)),
            Some(remote) => bytes.is_empty().then_some(RxPayload::RemotePayload(remote)),
        }
    }
}

/// Payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum RxPayload<'a> {
    Here(&'a [u8]),
    RemotePayload(RemotePayload<'a>),
}

impl RxPayload<'_> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::RemotePayload(remote) => remote.len,
        }
    }

    /// How many packets it is the payload of.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        match self {
            Self::Here(_) => 1,
            Self::RemotePayload(remote) => remote.packets,
        }
    }

    /// Copies all of it to the start of `to`.
    #[inline]
    pub(super) fn place(&self, to: &Loan<'_, Write>) -> Result<(), FetchError> {
        match self {
            Self::Here(bytes) => Ok(to.copy_in(bytes)?),
            Self::RemotePayload(remote) => to.fetch(remote.source, remote.offset, remote.len),
        }
    }

    /// Copies `len` bytes from `from` on to the start of `to`.
    #[inline]
    pub(super) fn copy(
        &self,
        from: usize,
        len: usize,
        to: &Loan<'_, Write>,
    ) -> Result<(), FetchError> {
        match self {
            Self::Here(bytes) => {
                let bytes = from.checked_add(len).and_then(|end| bytes.get(from..end));
                Ok(to.copy_in(bytes.ok_or(FetchError::OutOfBounds)?)?)
            }
            Self::RemotePayload(remote) => to.fetch(remote.source, remote.offset + from, len),
        }
    }
}
