//! WRITE with immediate data: the body goes to its place, and a completion tells of it.
//!
//! ```text
//! caller                    server
//!   | WRITE_WITH_IMM ------->|  body in memory, completion with 32 bits
//!   |<------- WRITE_WITH_IMM |
//! ```
//!
//! The sender says where the bytes go, as with a WRITE, and the receiver learns of it by a
//! completion, as with a SEND; both in one message. The 32 bits say what is where: here the length.
//! Each one consumes a receive, whose buffer is not used, so receives may be empty and a shared
//! receive queue costs no memory.
//!
//! iWARP has no immediate data. A protocol that is to work there uses
//! [`write_send`](super::write_send).

use feroce::{Imm, SendOp, SendWr};

use super::channel::{Channel, HEAD};
use super::error::PatternError;

/// Sends a message.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    channel.stage(message)?;
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let data = channel.outgoing(HEAD..HEAD + message.len());
    let to = SendOp::WriteImm(channel.peer_incoming(HEAD), Imm(len));
    channel.post([SendWr::new(0, to, data)])
}

/// Takes a message, if one has come.
pub fn try_recv(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let Some(cqe) = channel.completion()? else { return Ok(false) };
    channel.post_again(&cqe)?;
    channel.take_incoming(cqe.imm.0 as usize, into)?;
    Ok(true)
}
