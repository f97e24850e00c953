//! The InfiniBand transport: RC, UC, UD and XRC (IBTA vol1 chapter 9), over RoCE or InfiniBand
//! links.
//!
//! One file per role: `requester` turns send work requests into trains, `ack_policy` says when it
//! requests an acknowledgement, `account` keeps the accounts of what was sent, `completer` takes
//! the responses, `repair` sends again the one packet that the peer misses, `responder` puts the
//! requests of the peer in order, `execute` executes them and `replies` answers them. `fast_path`
//! and `coalesce` are the requester's short cuts for short messages, `direct_access` copies
//! directly between processes of a host. `unreliable` is UC and UD. `control` is modify, query and
//! the ways into error, `transition` its table.
//!
//! Below the roles stand the types that they work on: `qp`, `requester_state` with `outstanding`
//! (the requests in flight) and `repair_state`, `responder_state` with `reply_queue`, `receive`,
//! `reorder_queue` (what arrived too early) and `replay` (what answers duplicates), and `port` with
//! `destination` (bytes in flight to each peer address) and `mcast`. No type imports a role. `cc`
//! has the algorithms of congestion control, `congestion` is what the requester does with them.

pub(crate) mod cc;
pub(crate) mod destination;
pub(crate) mod grh;
pub(crate) mod mcast;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod rx_payload;

mod account;
mod ack_policy;
mod buffers;
mod coalesce;
pub(crate) mod completer;
mod congestion;
mod control;
pub(crate) mod direct_access;
mod execute;
mod fast_path;
mod outstanding;
mod receive;
mod receive_queue;
mod reorder_queue;
mod repair;
mod repair_state;
mod replay;
mod replies;
mod reply_queue;
mod requester;
mod requester_state;
mod responder;
mod responder_state;
mod train_layout;
mod transition;
mod unreliable;
