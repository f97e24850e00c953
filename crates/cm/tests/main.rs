//! The connection manager's tests from outside, in one program.

mod common;
mod connections;
mod datagrams;
mod early;
mod floods;
mod golden;
mod stale;
mod subnet;
mod swarm;
mod unpredictable;
