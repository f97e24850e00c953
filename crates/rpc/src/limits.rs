//! What the two ends agree on when they connect, as private data of the connection manager.

use feroce::QpCap;
use feroce::cm::{CmError, ConnParam};

use crate::error::{Error, Rejection};
use crate::header::{LONG, VERSION};

/// What private data begins with.
const MAGIC: [u8; 4] = *b"fRPC";

/// Longest message that is sent inline, header included.
pub(crate) const INLINE: usize = 256;

/// Limits of an end, or what two ends have agreed on: the smaller of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Calls that may be under way on a connection at the same time. Both ends have two receives
    /// posted for each: no message ever finds none.
    pub window: u16,
    /// Longest body that is sent as a message. Longer ones are read or written where they are.
    pub eager: u32,
    /// Longest body at all.
    pub longest: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 32, eager: 8 << 10, longest: 1 << 20 }
    }
}

impl Limits {
    /// As private data.
    pub(crate) fn emit(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.eager.to_be_bytes());
        bytes.extend(self.longest.to_be_bytes());
        bytes
    }

    /// Parameters of a connection. No message finds the peer without a receive, so one that does
    /// is a mistake of the peer; it may not make this end try again for ever.
    pub(crate) fn param(self) -> ConnParam {
        ConnParam { private_data: self.emit(), rnr_retry_count: 6, ..ConnParam::default() }
    }

    /// What both ends can do; `None` if the peer does not speak this protocol or version.
    pub(crate) fn agree(self, private_data: &[u8]) -> Option<Self> {
        let rest = private_data.strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?;
        let (window, rest) = rest.split_first_chunk()?;
        let (eager, rest) = rest.split_first_chunk()?;
        let window = u16::from_be_bytes(*window).min(self.window);
        let eager = u32::from_be_bytes(*eager).min(self.eager);
        let longest = u32::from_be_bytes(*rest.first_chunk()?).min(self.longest);
        (window > 0).then_some(Self { window, eager, longest })
    }

    /// Receives that an end has posted: a request or a reply, and a cancellation or its answer, for
    /// each call.
    pub(crate) fn receives(self) -> usize {
        2 * usize::from(self.window)
    }

    /// Length of a message.
    pub(crate) fn message_len(self) -> usize {
        LONG + self.eager as usize
    }

    /// Sends that a queue pair has room for. A call takes four at most: a reading and a writing, a
    /// reply, and the answer to a cancellation. As many may wait for their acknowledgement.
    pub(crate) fn sends(self) -> usize {
        8 * usize::from(self.window) + 16
    }

    /// Sizes of a queue pair.
    pub(crate) fn cap(self, receives: usize) -> QpCap {
        let sends = u32::try_from(self.sends()).unwrap_or(u32::MAX);
        let receives = u32::try_from(receives).unwrap_or(u32::MAX);
        QpCap { max_inline: INLINE as u32, ..QpCap::new(sends, receives) }
    }
}

/// Private data of a server that does not accept a connection.
pub(crate) fn rejection(why: Rejection) -> Vec<u8> {
    [&MAGIC[..], &[VERSION, why.code()]].concat()
}

/// Why a connection could not be made, as the private data of a rejection tells it.
pub(crate) fn connect_error(error: feroce::Error) -> Error {
    if let feroce::Error::Cm(CmError::Rejected { private_data, .. }) = &error
        && let Some(&[_, code, ..]) = private_data.strip_prefix(&MAGIC)
        && let Some(why) = Rejection::from_code(code)
    {
        return Error::Rejected(why);
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_each_limit_holds() {
        let one = Limits { window: 8, eager: 1000, longest: 5000 };
        let other = Limits { window: 9, eager: 900, longest: 4000 };
        let agreed = Limits { window: 8, eager: 900, longest: 4000 };
        // The field is padded with zeros.
        let padded = [other.emit(), vec![0; 40]].concat();
        assert_eq!(one.agree(&padded), Some(agreed));
        assert_eq!(one.agree(&[0; 64]), None);
        assert_eq!(one.agree(b"fRPC"), None);
        let none = Limits { window: 0, ..other };
        assert_eq!(one.agree(&none.emit()), None);
    }
}
