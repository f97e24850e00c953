//! A network of hosts, switches and links, in any clock's time.
//!
//! The model is driven: [`Fabric::inject`] hands it a packet, [`Fabric::poll`] handles what is due
//! and returns what reaches a host, [`Fabric::next_at`] says when to call again. It reads no clock
//! and draws its random numbers from a seed, so the same calls give the same results. A simulator
//! drives it in virtual time, a process in real time.
//!
//! * [`Topology`]: what is connected to what, made by hand or by a constructor.
//! * Links have a rate, a propagation delay and a loss rate. Frames are stored and forwarded.
//! * Switches share a buffer between their ports ([`BufferConfig`]), pause senders by priority
//!   ([`PfcConfig`]), mark packets by the length of the egress queue ([`Ecn`]) and choose between
//!   shortest paths by a hash of the flow or packet by packet ([`Spread`]). With
//!   [`Config::telemetry`] they write the state of their ports into packets
//!   ([`Fabric::telemetry`]).
//! * InfiniBand ([`InfinibandConfig`]): credits instead of pauses, virtual lanes, forwarding
//!   tables.
//! * [`Fabric::find_deadlock`] names a cycle of ports that wait for each other.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod agenda;
mod arbiter;
mod buffer;
mod check;
mod credits;
mod deadlock;
mod ecn;
mod fabric;
mod infiniband;
mod lanes;
mod links;
mod multicast;
mod packet;
mod path;
mod pause;
mod pfc;
mod port;
mod priorities;
mod realtime;
mod routes;
mod shapes;
mod stamp;
mod stats;
mod store;
mod tap;
mod telemetry;
mod time;
mod topology;
mod trees;

pub use agenda::Agenda;
pub use arbiter::{Arbiter, VlArbitration};
pub use buffer::{BufferConfig, Headroom, PRIORITIES};
pub use credits::{CreditLane, FlowControl, blocks as credit_blocks};
pub use ecn::{Ecn, EcnConfig};
pub use fabric::{Config, Fabric, Output};
pub use infiniband::{InfinibandConfig, MANAGEMENT};
pub use multicast::MULTICAST;
pub use packet::{FlowKey, Packet};
pub use pfc::{PauseEvent, PfcConfig};
pub use priorities::PriorityMap;
pub use realtime::LinkState;
pub use routes::Spread;
pub use stats::{Count, DropReason, PortStats, Totals};
pub use tap::Passed;
pub use telemetry::TelemetryConfig;
pub use time::{Quantize, Rate, Time};
pub use topology::{Link, Node, NodeId, PortName, Route, Topology, TopologyError};
