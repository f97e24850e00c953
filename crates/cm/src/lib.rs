//! The connection manager: finds out who talks to whom before queue pairs talk.
//!
//! Two layers, both without clock, thread, socket or randomness of their own:
//!
//! * [`Manager`] speaks the communication management protocol of InfiniBand (IBTA vol1 chapter
//!   12) in datagrams of queue pair 1: connections (REQ, REP, RTU, MRA, REJ, DREQ, DREP) and
//!   service resolution for datagrams (SIDR).
//! * [`rdma`] is what the RDMA connection manager of Linux adds: ports, addresses in the private
//!   data, the attributes that a queue pair must get, multicast addresses, names of events.
//!
//! Its owner calls, in this order: `handle_mad` for what arrived, `handle_timeout` when the time
//! of `poll_timeout` has come, calls of the consumer; then `poll_mad` until there is nothing left
//! to send, and `poll_event` until there is nothing left to tell. Every call may move the deadline.
//!
//! **Every connection ends with exactly one final event**: [`Event::Rejected`],
//! [`Event::Unreachable`] or [`Event::Disconnected`], whatever is lost, doubled or reordered and
//! whenever the peer dies; unless the consumer destroyed it, after which nothing is told of it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod conn;
mod counters;
mod early;
mod event;
mod listen;
mod manager;
mod out;
mod params;
pub mod rdma;
mod retry;
mod sidr;
mod table;

pub use config::Config;
pub use counters::Counters;
pub use event::{Cause, Event, Incoming, IncomingSidr};
pub use listen::{Accepts, ListenError, ListenId};
pub use manager::{CallError, Manager};
pub use out::Transmit;
pub use params::{Accept, Ask, ConnId, Connect, PathParams, Peer, QpPlan, Reply, Transport};
pub use retry::{ack_timeout, code_ns};
