//! RDMA in user space, without RDMA hardware, kernel modules or root.
//!
//! A [`Context`] is an open device: a software host channel adapter that speaks RoCEv2 on the
//! addresses of a network interface. The objects and calls are those of the verbs, under the
//! names the field uses: [`Pd`], [`Mr`], [`Cq`], [`Qp`], [`Srq`], [`Ah`]. Posting and polling
//! never wait. The posting or polling thread drives the adapter, and a driver thread covers the
//! rest.
//! [`safety`] says what programs cannot get wrong.
//!
//! The same programs run on network adapters that the kernel has a driver for, or on its Soft-RoCE:
//! the setting `backend` ([`Backend`]) says which.
//!
//! ```
//! use feroce::{Access, Device, QpCap, SendOp, SendWr, WcStatus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let a = Device::at(["127.0.0.11".parse()?]).open()?;
//! let b = Device::at(["127.0.0.12".parse()?]).open()?;
//! let (pd_a, pd_b) = (a.alloc_pd()?, b.alloc_pd()?);
//! let (cq_a, cq_b) = (a.create_cq(16)?, b.create_cq(16)?);
//! let mut qa = pd_a.rc_qp(&cq_a, &cq_a, QpCap::new(8, 8)).create()?;
//! let mut qb = pd_b.rc_qp(&cq_b, &cq_b, QpCap::new(8, 8)).create()?;
//! qa.connect(&qb.endpoint()?)?;
//! qb.connect(&qa.endpoint()?)?;
//!
//! let source = pd_a.alloc_mr(4096, Access::LOCAL_WRITE)?;
//! let target = pd_b.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! source.write_at(0, b"hello")?;
//! qa.post_send([SendWr::new(1, SendOp::Write(target.remote(0)), source.data(0..5))])?;
//! assert_eq!(cq_a.wait()?.status, WcStatus::Success);
//! let mut bytes = [0; 5];
//! target.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```

mod ah;
mod attr;
mod backend;
mod channel;
pub mod cm;
mod config;
mod context;
mod cq;
mod device;
mod driver;
mod errno;
mod error;
mod life;
mod mr;
mod pd;
mod qp;
mod runtime;
pub mod safety;
mod sigbus;
mod srq;
mod stack;
mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
mod xrc;

pub use ah::Ah;
pub use attr::{
    AtomicCap, DeviceAttr, DeviceCaps, LaneSpeed, LinkWidth, PhysState, PortAttr, PortCaps,
    PortState,
};
pub use channel::CompChannel;
pub use config::{Backend, Settings};
pub use context::{Context, WeakContext};
pub use cq::Cq;
pub use device::{Device, DeviceKind};
pub use errno::Errno;
pub use error::{Error, PostError};
#[doc(inline)]
pub use feroce_backend_rdma_core::LibraryError;
#[doc(inline)]
pub use feroce_engine::{
    AddrVec, AsyncEvent, AttrMask, Config as EngineConfig, Counters, CqId, Cqe, CreateError, Data,
    DcqcnConfig, Dest, DestroyError, DropCounters, FlushKind, Limits, LossPolicy, ModifyQpError,
    Notify, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Remote, ResizeError, SendFlags,
    SendOp, SendWr, Sge, SgeList, SrqAttr, SrqId, WcFlags, WcOpcode, WcStatus, WindowConfig,
};
#[doc(inline)]
pub use feroce_link::{Direction, FaultConfig, Seen, Tap};
#[doc(inline)]
pub use feroce_mem::{Access, Bind, DeregError, Iova, MwType, RegError, Region};
#[doc(inline)]
pub use feroce_train::{Framing, GidEntry, InlineBytes, Instant, LinkLayer};
/// Packets to bytes and back, for programs that look at packets.
pub use feroce_wire as wire;
#[doc(inline)]
pub use feroce_wire::{Gid, Imm, Lid, Lkey, Pkey, Pmtu, Psn, Qkey, Qpn, Rkey, Srqn};
pub use mr::{Mr, Mw, Rereg};
pub use pd::Pd;
pub use qp::{Endpoint, Qp, QpBuilder, QpHandle, Receiver, Sender};
pub use runtime::runtime_dir;
pub use srq::Srq;
pub use xrc::Xrcd;
