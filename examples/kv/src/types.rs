//! What goes through the log, and what the methods of a node take and return.

use std::io::Cursor;

use serde::{Deserialize, Serialize};

/// Longest key.
pub const MAX_KEY: usize = 128;
/// Longest value. As many entries as openraft sends at once fit into a message.
pub const MAX_VALUE: usize = 2048;

openraft::declare_raft_types!(
    /// The types of the store, for openraft.
    pub Types:
        D = Put,
        R = Applied,
);

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Put {
    /// Which client.
    pub client: u64,
    /// Which of the client's PUTs: one that is repeated has the same number, and is applied once.
    pub number: u64,
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

impl Put {
    /// Whether it may enter the log.
    pub(crate) fn fits(&self) -> bool {
        self.key.len() <= MAX_KEY && self.value.len() <= MAX_VALUE
    }
}

/// What applying an entry results in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// The index of the entry in the log; that of the first, if the PUT was repeated. Zero for
    /// entries that are none.
    pub version: u64,
}

/// Methods of a node.
pub(crate) mod method {
    pub(crate) const APPEND: u32 = 1;
    pub(crate) const VOTE: u32 = 2;
    pub(crate) const SNAPSHOT: u32 = 3;
    pub(crate) const PUT: u32 = 16;
    pub(crate) const GET: u32 = 17;
    pub(crate) const LEASE: u32 = 18;
}

/// Answer to a client: the result, or which node is the leader, if this one knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToClient<T> {
    Done(T),
    AskInstead(Option<u64>),
    TooLong,
}

/// A lease: where the table is, and for how long it may be read after the request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) buckets: u32,
    pub(crate) lasts_us: u64,
}

/// A value and its version.
pub(crate) type Value = (u64, Vec<u8>);
