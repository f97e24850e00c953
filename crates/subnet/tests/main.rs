//! The subnet's tests from outside, in one program.

mod agents;
mod common;
mod data;
mod nets;
mod programs;
