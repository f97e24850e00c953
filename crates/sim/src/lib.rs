//! The simulated fabric.
