//! Tests of `feroce-nvme`: what Linux says on the wire, and both ends of this crate together.

mod bad_input;
mod golden;
mod malformed;
mod paths;
mod together;
mod worlds;
