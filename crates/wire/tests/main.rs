//! The tests of the wire formats from outside, in one program.

mod cm;
mod common;
mod golden;
mod infiniband;
mod iwarp;
mod tshark;
mod tshark_iwarp;
