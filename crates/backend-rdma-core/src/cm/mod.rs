//! The connection manager of librdmacm.
//!
//! Ids of the library have no queue pair there. The caller makes it, on a device that it has
//! opened, and the id brings it up with the attributes that the library gives, as the library does
//! with a queue pair of its own. Events name ids by the number that the caller gave them.

mod channel;
mod event;
mod id;
mod param;

pub use channel::Channel;
pub use event::{Arrived, Event, UdPath};
pub use id::Id;
