//! The record of a multicast group that an id has joined.

use core::ffi::c_void;
use std::sync::Arc;

use feroce::Gid;

use crate::verbs::ack::Acks;

/// A group that an id has joined.
pub(crate) struct Group {
    pub(crate) gid: Gid,
    /// The value of the program that events of the group carry.
    pub(crate) context: *mut c_void,
    /// Its events that are not acknowledged.
    pub(crate) acks: Arc<Acks>,
}

// SAFETY: the pointer is a value of the program, which is handed back and never followed.
unsafe impl Send for Group {}
