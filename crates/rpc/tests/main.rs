//! Calls in a simulated world, with losses, cancellations and ends at any time; and the patterns.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod bad_input;
mod calls;
mod ends;
mod harness;
mod patterns;
mod priorities;
