//! The simulator's tests from outside, in one program.

mod congestion;
mod fabric_swarm;
mod infiniband;
mod priorities;
mod recovery;
mod scenario;
mod swarm;
