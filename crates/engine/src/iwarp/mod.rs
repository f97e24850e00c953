//! The iWARP transport: RDMAP and DDP over a byte stream (RFC 5040, 5041, 5044).
//!
//! A queue pair is one TCP connection. [`Initiator`] and [`Responder`] are what both ends say
//! first (MPA); what they agree on is a [`StreamSetup`], and with it a queue pair goes to RTS.
//! From then on the driver carries bytes: what arrived goes in, what the queue pair has to say
//! comes out, and the driver tells how much of it TCP has taken.
//!
//! - `requester` turns work requests into segments and completes them: SENDs and WRITEs when TCP
//!   has taken their bytes, READs when the response is there, all in the order of the queue;
//! - `responder` places what arrives and executes READ requests; `failure` is why it stops;
//! - `landing` lends the driver the places of payload that it receives there without a copy;
//! - `extensions` executes atomics and takes immediate data (RFC 7306);
//! - `transmit` chooses what is said next; a message is never interrupted by another;
//! - `control` carries out transitions and flushes.
//!
//! Unlike in InfiniBand, nothing is acknowledged: the peer's errors arrive as a TERMINATE or as the
//! end of the stream, and what was posted is flushed then.

mod buffers;
mod control;
mod extensions;
mod failure;
mod handshake;
mod landing;
pub(crate) mod qp;
mod requester;
mod requester_state;
mod responder;
mod responder_state;
pub(crate) mod setup;
mod transmit;

pub use crate::hca::event::{StreamEnd, StreamEvent};
pub use handshake::{HandshakeConfig, HandshakeError, Initiator, Reply, Request, Responder};
pub use setup::{Begin, ReadyToReceive, StreamSetup};
