//! A simulated network of hosts in virtual time.
//!
//! Everything that happens follows from a seed, so every failure can be replayed. The parts:
//!
//! * [`kernel`] is the event kernel: a clock, an agenda, hosts (an engine for each shard) and a
//!   fabric. It knows neither what runs on the hosts nor what must be true.
//! * [`Fabric`] carries packets between the ports of hosts. [`Mesh`] is a full mesh that loses,
//!   duplicates, reorders, delays and damages packets.
//! * [`oracle`] holds the models that real memory and real completions are compared with.
//! * The swarm runs one seed: its planner draws random programs of verbs, its applications post
//!   them and compare every completion with the oracles.
//! * [`scenario`] runs flows over a network of switches, [`check_fabric`] random ones.
#![forbid(unsafe_code)]

pub mod dice;
mod fabric;
mod fabric_swarm;
pub mod kernel;
pub mod mesh;
pub mod oracle;
pub mod scenario;
mod swarm;

pub use fabric::{Batch, Delivery, Fabric};
pub use fabric_swarm::check_fabric;
pub use mesh::Mesh;
pub use swarm::{Failure, Options, Sabotage, Summary, check, compare_trains, program, run};
