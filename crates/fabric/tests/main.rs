//! The tests of switches and links from outside, in one program.

mod infiniband;
mod pauses;
mod properties;
mod timing;
