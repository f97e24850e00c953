//! SEND whose bytes are in the work request.
//!
//! As [`send`](super::send), but the processor copies a short message into the work request itself.
//! An adapter then need not fetch the message from memory, which on hardware saves a PCI Express
//! round trip of some hundred nanoseconds; and the sender may use its buffer again at once, without
//! registration and without waiting for the completion. Software adapters save less: the copy takes
//! the place of another.
//!
//! A queue pair has a limit ([`QpCap::max_inline`](feroce::QpCap)); here it is 256 bytes. What is
//! longer is sent from registered memory.

use feroce::SendOp;

use super::channel::{Channel, INLINE};
use super::error::PatternError;
pub use super::send::try_recv;

/// Sends a message: inline if it is short enough.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    if message.len() > INLINE {
        return super::send::send(channel, message);
    }
    channel.fits(message.len())?;
    channel.post([channel.inline_wr(SendOp::Send, message)])
}
