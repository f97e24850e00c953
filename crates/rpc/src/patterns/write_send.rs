//! WRITE the body, and SEND a few bytes behind it.
//!
//! ```text
//! caller             server
//!   | WRITE body ----->|  into memory that the server has offered
//!   | SEND length ---->|  a completion; the body is there already
//!   |<----- WRITE body, SEND length
//! ```
//!
//! A SEND is delivered after the WRITEs before it on the same queue pair are placed: InfiniBand,
//! RoCE and iWARP alike promise that. So a short message announces a long body, which has gone
//! straight to its place. Receives are a few bytes long. It costs one message more than
//! [`write_imm`](super::write_imm) and works everywhere; NVMe over Fabrics and iSER move their data
//! this way, and so does the rest of this crate.

use feroce::{SendOp, SendWr};

use super::channel::{Channel, HEAD};
use super::error::PatternError;

/// Sends a message.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    channel.stage(message)?;
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let data = channel.outgoing(HEAD..HEAD + message.len());
    let body = SendWr::new(0, SendOp::Write(channel.peer_incoming(HEAD)), data);
    let tell = channel.inline_wr(SendOp::Send, &len.to_be_bytes());
    channel.post([body, tell])
}

/// Takes a message, if one has come.
pub fn try_recv(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let Some(cqe) = channel.completion()? else { return Ok(false) };
    channel.take_received(&cqe, into)?;
    channel.post_again(&cqe)?;
    let len = into.as_slice().try_into().map_err(|_| PatternError::NotAPeer)?;
    channel.take_incoming(u32::from_be_bytes(len) as usize, into)?;
    Ok(true)
}
