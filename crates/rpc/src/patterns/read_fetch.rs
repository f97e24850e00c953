//! The caller READs the reply.
//!
//! ```text
//! caller             server
//!   | WRITE request -->|  as in write-poll
//!   | READ reply? ---->|  not yet: the adapter answers, the program does not
//!   | READ reply? ---->|  there it is
//! ```
//!
//! A server that answers many clients is busy with sending: each reply is a work request, a
//! doorbell and a completion. Here it leaves the reply in its own memory, and each client fetches
//! its own (*remote fetching*). The adapter of the server answers READs without its processor.
//! The price is a round trip more, and one for each look that comes too early: handlers must be
//! fast. Systems in the field fall back to sending when a reply takes long.
//!
//! **When is the reply whole?** A READ that overlaps the server's stores may see some of them, in
//! any order. The server stores the number of the reply last; a READ that *begins* after a number
//! was seen finds the whole reply. The first READ brings a short reply along with the number, to
//! save the second one; so a short reply carries a checksum, and one that does not fit is read
//! again.

use std::sync::atomic::{Ordering, fence};

use feroce::{SendOp, SendWr};

use super::channel::{Channel, HEAD};
use super::error::PatternError;
pub use super::write_poll::{send as send_request, try_recv as try_recv_request};

/// Bytes of a reply that come with the first READ.
const GUESS: usize = 256;

/// FNV-1a, which is short and does for a few hundred bytes.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Leaves a reply for the caller to fetch.
pub fn publish(channel: &mut Channel, reply: &[u8]) -> Result<(), PatternError> {
    channel.stage(reply)?;
    channel.sent = channel.sent.wrapping_add(1);
    let sum = checksum(&reply[..reply.len().min(GUESS)]);
    channel.write_outgoing(8, &sum.to_be_bytes())?;
    // The number is stored after all else.
    fence(Ordering::Release);
    channel.write_outgoing(0, &channel.sent.to_be_bytes())
}

/// Looks for the reply at the server, and takes it if it is there.
pub fn try_fetch(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let guess = HEAD + GUESS.min(channel.longest());
    read(channel, 0..guess)?;
    let mut head = [0; HEAD];
    channel.read_incoming(0, &mut head)?;
    let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    if word(0) != channel.received.wrapping_add(1) {
        return Ok(false);
    }
    let len = word(HEAD - 4) as usize;
    if len > GUESS {
        // The number was there before this READ begins. The length may have been read too early.
        read(channel, HEAD - 4..HEAD)?;
        let mut len = [0; 4];
        channel.read_incoming(HEAD - 4, &mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        channel.fits(len)?;
        read(channel, HEAD..HEAD + len)?;
        channel.take_incoming(len, into)?;
    } else {
        channel.take_incoming(len, into)?;
        if checksum(into) != word(8) {
            return Ok(false);
        }
    }
    channel.received = channel.received.wrapping_add(1);
    Ok(true)
}

/// READs a part of the peer's outgoing memory into the same part of our incoming memory.
fn read(channel: &mut Channel, range: std::ops::Range<usize>) -> Result<(), PatternError> {
    let from = SendOp::Read(channel.peer_at(range.start));
    let into = channel.incoming(range);
    channel.post([SendWr::new(0, from, into)])?;
    channel.settle()
}
