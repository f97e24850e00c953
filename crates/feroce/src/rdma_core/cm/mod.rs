//! Connections, by way of librdmacm.
//!
//! Ids of the library have no queue pair there: it is made by us, on a device that we have opened,
//! and brought up with the attributes that the library says. That is what the library does with a
//! queue pair of its own, and so ids work with every [`Context`](crate::Context).

mod channel;
mod id;
mod manager;
mod param;

pub(crate) use channel::Channel;
pub(crate) use id::Id;
pub(crate) use manager::Manager;
