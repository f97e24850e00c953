//! The simulated fabric.
#![forbid(unsafe_code)]
