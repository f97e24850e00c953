//! A replicated key-value store: [openraft] decides, `feroce-rpc` carries its messages, and readers
//! use RDMA READ.
//!
//! * A **PUT** is a call to the leader. It is answered when the entry is in the logs of a majority,
//!   on their disks, and the leader has applied it.
//! * A **GET** is one READ of the leader's memory, in which its program takes no part. The leader
//!   keeps its values in a [table](table) of which readers know the layout. Each entry has its
//!   version, the index in the log, and a checksum: a reader that catches a half-written entry
//!   notices, and reads again.
//!
//! # Why a READ does not return old values
//!
//! The memory of a node that was the leader once can be read as well as that of the leader, also
//! while its process is stopped. So a reader needs a promise that there is no other leader: a
//! [lease](client::Client::get).
//!
//! 1. The reader notes its clock, and asks the leader for a lease.
//! 2. The leader has a majority confirm that it is the leader, and waits until it has applied what
//!    was committed before. Each follower that confirms votes for no other node for as long as the
//!    election timeout (openraft: `leader_lease`), also if it is killed and started again
//!    meanwhile; the leader itself refuses votes while leases that it gave out last (`node.rs`).
//! 3. Every majority has one of these in common. So for the time of the lease, which begins with
//!    the clock that the reader has noted and is half as long as the election timeout, no other
//!    node becomes leader, and what is acknowledged is in the leader's table before.
//!
//! A value counts if its READ has completed before the lease has ended. Clocks of the hosts need
//! not agree; they only must not differ in speed by half.
//!
//! # What survives
//!
//! Log and vote are in a database file (redb) that is synchronised before openraft hears that they
//! are written. A node that is killed starts from its snapshot and its log. A PUT whose answer is
//! lost is repeated by the client under the same number, and the store applies it once.

mod call;
pub mod client;
mod log;
mod network;
pub mod node;
mod state;
pub mod table;
mod types;

pub use call::manager;
pub use client::Client;
pub use log::Log;
pub use node::Options;
pub use state::Machine;
pub use types::{Applied, MAX_KEY, MAX_VALUE, Put, Types};

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The nodes of a store, by number.
pub type Peers = BTreeMap<u64, SocketAddr>;
