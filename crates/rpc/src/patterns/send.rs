//! SEND into a posted receive.
//!
//! ```text
//! caller            server
//!   | SEND request -->|  into the next receive; a completion says so
//!   |<---- SEND reply |
//! ```
//!
//! The plainest pattern: the sender knows nothing of the receiver's memory, and the receiver
//! decides where a message goes when it posts a receive. Receives can be shared among many
//! connections (a shared receive queue), so memory grows with the traffic and not with the number
//! of clients.
//!
//! * The receiver must have posted a receive before the message arrives. If it has none, the
//!   sender is told to wait (RNR) and tries again after a timer, or fails. So programs count
//!   *credits*: the sender never has more messages under way than the receiver has receives. Here
//!   one message is under way and two receives are posted.
//! * Every receive is as long as the longest message. That is why long bodies travel by another
//!   pattern.
//! * The completion wakes a receiver that sleeps: no processor is used while nothing happens.

use feroce::SendOp;

use super::channel::{Channel, HEAD};
use super::error::PatternError;

/// Sends a message.
pub fn send(channel: &mut Channel, message: &[u8]) -> Result<(), PatternError> {
    channel.stage(message)?;
    let data = channel.outgoing(HEAD..HEAD + message.len());
    channel.post([feroce::SendWr::new(0, SendOp::Send, data)])
}

/// Takes a message, if one has come.
pub fn try_recv(channel: &mut Channel, into: &mut Vec<u8>) -> Result<bool, PatternError> {
    let Some(cqe) = channel.completion()? else { return Ok(false) };
    channel.take_received(&cqe, into)?;
    // The credit goes back before the message is answered.
    channel.post_again(&cqe)?;
    Ok(true)
}
