//! The host channel adapter: what the queue pairs of every transport share.
//!
//! Protection domains, memory regions and windows, completion queues, shared receive queues,
//! address handles, work queues, attributes and states of queue pairs, events, timers, counters and
//! limits. No file here imports from a transport (`ib`, `iwarp`).

pub(crate) mod attr;
pub(crate) mod config;
pub(crate) mod congestion;
pub(crate) mod congestion_params;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod cqe;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod local;
pub(crate) mod pieces;
pub(crate) mod qp;
pub(crate) mod queue;
pub(crate) mod revocation;
pub(crate) mod shared;
pub(crate) mod srq;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod timer;
pub(crate) mod wr;
