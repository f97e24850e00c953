//! Connections of the software adapter.

mod attr;
mod channel;
mod claim;
mod connect;
mod gsi;
mod id;
mod iwarp;
mod manager;
mod mcast;
mod native;
mod neighbour;
mod queued;
mod resolver;
mod service;
mod shared;
mod subnet;

pub(super) use channel::SoftChannel;
pub(super) use id::SoftId;
pub(super) use manager::SoftManager;
