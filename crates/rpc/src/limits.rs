//! What the two ends agree on when they connect, as private data of the connection manager.

use feroce::QpCap;

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

    /// Sizes of a queue pair. A call takes four sends at most: a reading and a writing, a reply,
    /// and the answer to a cancellation. As many may wait for their acknowledgement.
    pub(crate) fn cap(self, receives: usize) -> QpCap {
        let sends = 8 * u32::from(self.window) + 16;
        let receives = u32::try_from(receives).unwrap_or(u32::MAX);
        QpCap { max_inline: INLINE as u32, ..QpCap::new(sends, receives) }
    }
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
