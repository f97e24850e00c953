//! The subnet's tests from outside, in one program.

mod agents;
mod common;
mod nets;
mod programs;
