//! A simulated fabric: engines on a virtual wire in virtual time.
//!
//! Everything that happens follows from a seed, so every failure can be replayed. The swarm runs
//! one world per seed: two to four engines, random programs of verbs, and a wire that loses,
//! doubles, reorders, delays and damages packets; oracles say what must be true all the same.
#![forbid(unsafe_code)]

pub mod agenda;
mod app;
mod control;
pub mod dice;
mod finish;
mod flow;
pub mod knobs;
mod mishap;
mod node;
pub mod oracle;
mod plan;
mod program;
mod swarm;
pub mod trace;
mod windows;
pub mod wire;
mod world;

pub use node::{RxStyle, Style};
pub use program::program;
pub use swarm::{Failure, Options, Sabotage, Summary, check, compare_trains, run};
