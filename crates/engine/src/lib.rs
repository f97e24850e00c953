//! The host channel adapter, sans-IO.
//!
//! [`Engine`] is a whole adapter as a deterministic state machine: queue pairs of every service,
//! completion queues, shared receive queues, address handles, memory windows, multicast,
//! reliability, congestion control. It has no clock, thread, socket or randomness of its own:
//! time is an argument, packets are values, the seed is given. That is what lets one engine run
//! on UDP, on shared memory and in a simulator, and lets every failure be replayed.
//!
//! Semantics are those of the InfiniBand architecture specification, volume 1; clause numbers
//! are cited where a rule is implemented.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod cc;
mod config;
mod counters;
mod cq;
mod engine;
mod error;
mod event;
mod grh;
mod hca;
mod id;
mod mcast;
mod peer;
mod qp;
mod queue;
mod srq;
mod timer;
mod wr;

pub use cc::DcqcnConfig;
pub use config::{Config, Limits, WindowConfig};
pub use counters::{Counters, Drop, DropCounters};
pub use cq::{CqPoller, Cqe, Notify, WcFlags, WcOpcode, WcStatus};
pub use engine::{CreatedQp, Engine, ResizeError};
pub use error::{CreateError, DestroyError, ModifyQpError};
pub use event::{AsyncEvent, Event};
pub use id::{AhId, CqId, SrqId, XrcdId};
pub use qp::{AddrVec, AttrMask, LossPolicy, QpAttr, QpInitAttr, QpState, QpType};
pub use queue::{PostError, QpCap, RecvQueue, SendQueue, SrqQueue};
pub use srq::{SrqAttr, SrqInitAttr};
pub use wr::{
    Data, Dest, FlushKind, MAX_MESSAGE, MAX_SGE, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge,
    SgeList,
};
