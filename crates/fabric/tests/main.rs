//! The tests of switches and links from outside, in one program.

mod infiniband;
mod multicast;
mod opensm;
mod pauses;
mod properties;
mod timing;
