//! The verbs: what programs link to as libibverbs, one file per kind of object.
//!
//! An object that C sees is the public structure of the header with ours behind it, in one
//! allocation (see [`object`]). All state of the adapter is in the `feroce` objects held there;
//! this side has only what C asks for beyond it: numbers of events that wait to be acknowledged,
//! pointers that queries give back, a work request that is being put together.
//!
//! Control calls may allocate and wait. Posting and polling lock the one object they are about
//! and copy each request and completion once, into or out of its ring.
//!
//! Calls through `ibv_context` are in [`table`], calls by name in [`exports`](crate::exports).
//!
//! No two files import each other. [`shared`] and [`registry`] stand below [`context`], which
//! stands below all objects; [`post`], [`event`] and [`table`] stand above them.

pub(crate) mod ack;
pub(crate) mod adapter;
pub(crate) mod ah;
pub(crate) mod buf;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_event;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod dmabuf;
pub(crate) mod event;
pub(crate) mod fork;
pub(crate) mod guarded;
pub(crate) mod identity;
pub(crate) mod import;
mod mapped;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod object;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod qp_ex;
pub(crate) mod query;
pub(crate) mod rate;
pub(crate) mod registry;
pub(crate) mod shared;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod sysfs;
pub(crate) mod table;
pub(crate) mod wait;
pub(crate) mod xrc;
