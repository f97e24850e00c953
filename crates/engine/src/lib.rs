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

mod engine;
mod hca;
mod ib;
pub mod iwarp;

pub use engine::Engine;
pub use engine::control::CreatedQp;
pub use engine::report::{QpReport, Report};
pub use hca::attr::{AddrVec, AttrMask, LossPolicy, QpAttr, QpInitAttr};
pub use hca::config::{Config, Limits, TransportKind, WindowConfig};
pub use hca::congestion::{Ack, CongestionConfig, CongestionControl, CustomCongestion, Loss};
pub use hca::congestion_params::{
    ConnectXConfig, DcqcnConfig, HpccConfig, SwiftConfig, TimelyConfig,
};
pub use hca::counters::{Counters, Drop, DropCounters, QpCounters, StreamCounters};
pub use hca::cq::{CqGauge, CqPoller, CqReport, Notify};
pub use hca::cqe::{Cqe, WcFlags, WcOpcode, WcStatus};
pub use hca::error::{CreateError, DestroyError, ModifyQpError, ResizeError};
pub use hca::event::{AsyncEvent, Event};
pub use hca::id::{AhId, CqId, SrqId, XrcdId};
pub use hca::queue::{PostError, QpCap, RecvQueue, SendQueue, SrqQueue};
pub use hca::srq::{SrqAttr, SrqInitAttr};
pub use hca::state::{QpState, QpType};
pub use hca::wr::{
    Data, Dest, FlushKind, MAX_MESSAGE, MAX_SGE, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge,
    SgeList,
};
pub use ib::cc::create_congestion_control;
pub use ib::completer::SilentPeer;
pub use ib::direct_access::DirectPosted;
