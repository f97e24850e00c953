//! The subnet's tests from outside, in one program.

mod agents;
mod common;
mod data;
mod malformed;
mod nets;
mod parts;
mod programs;
mod traffic;
