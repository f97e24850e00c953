//! Each message by the pattern that suits its length.
//!
//! * up to 255 bytes: [`inline`](super::inline),
//! * up to 8 KiB: [`send`](super::send), because a copy costs less than a second message,
//! * longer: [`write_send`](super::write_send), because a second message costs less than receives
//!   of that length and a copy out of them.
//!
//! The first byte of a SEND says which. Libraries that do not know the messages of their users do
//! this, and so does the rest of this crate ([`Client`](crate::Client)), where the limits depend on
//! what the two ends have agreed on. There the receiver READs long requests when it has room for
//! them, instead of offering room to every client beforehand.

use feroce::{SendOp, SendWr};

use super::channel::{Channel, HEAD, INLINE};
use super::error::PatternError;

/// Longest message that is sent as it is.
const EAGER: usize = 8 << 10;

const HERE: u8 = 0;
const WRITTEN: u8 = 1;

/// Sends a message.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    channel.fits(message.len())?;
    let len = message.len();
    if len < INLINE {
        let mut bytes = [HERE; INLINE];
        bytes[1..=len].copy_from_slice(message);
        return channel.post([channel.inline_wr(SendOp::Send, &bytes[..=len])]);
    }
    channel.stage(message)?;
    if len <= EAGER {
        channel.write_outgoing(HEAD - 1, &[HERE])?;
        let data = channel.outgoing(HEAD - 1..HEAD + len);
        return channel.post([SendWr::new(0, SendOp::Send, data)]);
    }
    let data = channel.outgoing(HEAD..HEAD + len);
    let body = SendWr::new(0, SendOp::Write(channel.peer_incoming(HEAD)), data);
    let mut tell = [WRITTEN; 5];
    tell[1..].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    let tell = channel.inline_wr(SendOp::Send, &tell);
    channel.post([body, tell])
}

/// Takes a message, if one has come.
pub fn try_recv(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let Some(cqe) = channel.completion()? else { return Ok(false) };
    channel.take_received(&cqe, into)?;
    channel.post_again(&cqe)?;
    match into.split_first() {
        Some((&HERE, _)) => {
            into.remove(0);
        }
        Some((&WRITTEN, len)) => {
            let len = len.try_into().map_err(|_| PatternError::NotAPeer)?;
            channel.take_incoming(u32::from_be_bytes(len) as usize, into)?;
        }
        _ => return Err(PatternError::NotAPeer),
    }
    Ok(true)
}
