//! The kernel's netlink interface for RDMA (`NETLINK_RDMA`), for programs that ask there what
//! devices there are: `rdma` of iproute2, and monitors.
//!
//! A program that opens such a socket gets a netlink socket of the family that the kernel keeps for
//! programs (`NETLINK_USERSOCK`), so that binding it, its options, its address and waiting for it
//! are the kernel's affair ([`socket`]). Only what it sends is taken here ([`interposed`]) and
//! answered at once, by the calling thread, from what this process knows ([`gather`], [`facts`]).
//! [`message`], [`numbers`], [`objects`] and [`nldev`] are the format of the messages; they touch
//! nothing but bytes.

mod facts;
mod gather;
mod interposed;
mod message;
mod nldev;
mod numbers;
mod objects;
mod socket;
