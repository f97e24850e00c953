//! The simulator's tests from outside, in one program.

mod congestion;
mod dscp;
mod fabric_swarm;
mod infiniband;
mod recovery;
mod scenario;
mod swarm;
