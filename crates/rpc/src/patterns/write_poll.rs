//! WRITE into the receiver's memory, which the receiver polls.
//!
//! ```text
//! caller             server
//!   | WRITE body  ---->|  no completion there
//!   | WRITE flag  ---->|  the server sees the flag change
//!   |<---- WRITE body, WRITE flag
//! ```
//!
//! No receive is used and no completion is made at the receiver: its processor finds the message in
//! the cache when the flag changes. On hardware this has the lowest latency of all. Its price:
//!
//! * The receiver has to look all the time, at one place for each client. It cannot sleep.
//! * The sender must know where to write, and that the last message there was taken. One call under
//!   way makes that plain: the reply says so. Rings of many slots tell it by a counter.
//! * **When is the message whole?** Verbs promise that a WRITE is placed before a later WRITE of
//!   the same queue pair, and promise nothing about the order of bytes within one. Programs that
//!   poll the last byte of a message trust their adapter. Here the flag is a WRITE of its own,
//!   behind the body, posted with the same doorbell. It is the number of the message: a reader
//!   that sees half of it sees another number.

use std::sync::atomic::{Ordering, fence};

use feroce::{SendOp, SendWr};

use super::channel::{Channel, HEAD};
use super::error::PatternError;

/// Sends a message.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    channel.stage(message)?;
    channel.sent = channel.sent.wrapping_add(1);
    // The length is in front of the body.
    let data = channel.outgoing(HEAD - 4..HEAD + message.len());
    let body = SendWr::new(0, SendOp::Write(channel.peer_incoming(HEAD - 4)), data);
    let to = SendOp::Write(channel.peer_incoming(0));
    let flag = channel.inline_wr(to, &channel.sent.to_be_bytes());
    channel.post([body, flag])
}

/// Takes a message, if one has come.
pub fn try_recv(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let mut flag = [0; 4];
    channel.read_incoming(0, &mut flag)?;
    if u32::from_be_bytes(flag) != channel.received.wrapping_add(1) {
        // A software adapter works in the thread that polls; hardware works by itself.
        channel.progress()?;
        return Ok(false);
    }
    // The body is read after the flag.
    fence(Ordering::Acquire);
    channel.received = channel.received.wrapping_add(1);
    let mut len = [0; 4];
    channel.read_incoming(HEAD - 4, &mut len)?;
    channel.take_incoming(u32::from_be_bytes(len) as usize, into)?;
    Ok(true)
}
