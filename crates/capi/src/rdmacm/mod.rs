//! Connections: what programs link to as librdmacm.
//!
//! Objects are laid out as those of [`verbs`](crate::verbs): the public structure first, ours
//! behind it. The state of a connection is in the [`feroce::cm::CmId`] held there; this side fills
//! in the fields that programs read, and keeps what only C knows of: events that wait to be
//! acknowledged, objects that an id made for its queue pair, whether its calls wait.
//!
//! Events come out of the channel's descriptor as numbers of ids; [`table`] says which id of the
//! program has which number. The thread that takes an event holds the lock of the table until it
//! has counted the event, so `rdma_destroy_id` either removes the id before the event is taken, or
//! waits for its acknowledgement.

pub(crate) mod address;
pub(crate) mod addrinfo;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod devices;
pub(crate) mod ece;
pub(crate) mod endpoint;
pub(crate) mod event;
pub(crate) mod finish;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod multicast;
pub(crate) mod option;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod resolve;
pub(crate) mod resolved;
pub(crate) mod srq;
pub(crate) mod table;
pub(crate) mod taken;
