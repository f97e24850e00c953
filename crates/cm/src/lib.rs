//! The connection manager: exchanges what two queue pairs must know of each other before they
//! communicate.
//!
//! Two layers, both without clock, thread, socket or randomness of their own:
//!
//! * [`Manager`] speaks the communication management protocol of InfiniBand (IBTA vol1 chapter
//!   12) in datagrams of queue pair 1: connections (REQ, REP, RTU, MRA, REJ, DREQ, DREP) and
//!   service resolution for datagrams (SIDR).
//! * [`rdma`] is what the RDMA connection manager of Linux adds: ports, addresses in the private
//!   data, the attributes that a queue pair must get, multicast addresses, names of events.
//!
//! Its owner calls, in this order: `handle_mad` for received datagrams, `handle_timeout` when the
//! deadline of `poll_timeout` has passed, and the calls of the consumer; then `poll_mad` until
//! there is no datagram left to send, and `poll_event` until there is no event left to report.
//! Every call may move the deadline.
//!
//! **Every connection ends with exactly one final event**: [`Event::Rejected`],
//! [`Event::Unreachable`] or [`Event::Disconnected`]. This holds if messages are lost, duplicated
//! or reordered, and if the peer dies at any time. The exception is a connection that the consumer
//! destroys, of which the manager reports no further event.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod conn;
mod counters;
mod early;
mod event;
mod half_open;
mod listen;
mod manager;
mod out;
mod params;
mod question;
pub mod rdma;
mod retry;
mod table;

pub use config::Config;
pub use counters::Counters;
pub use event::{Cause, Event, Incoming, IncomingSidr};
pub use listen::{Accepts, ListenError, ListenId, Serves};
pub use manager::{CallError, Manager};
pub use out::Transmit;
pub use params::{Accept, Ask, ConnId, Connect, PathParams, Peer, QpPlan, Reply, Transport};
pub use retry::{ack_timeout, code_ns};
