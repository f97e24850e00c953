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
mod busy_poll;
mod channel;
pub mod cm;
mod config;
mod context;
mod cq;
mod deadline;
mod device;
mod driver;
mod error;
mod fabric_port;
mod inbox;
mod life;
mod mr;
mod pd;
mod pool;
mod qp;
mod router;
mod runtime;
pub mod safety;
mod sigbus;
#[cfg(feature = "sim")]
pub mod sim;
mod srq;
mod stack;
mod subnet_admin;
mod subnet_port;
mod summary;
mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
mod virtual_time;
pub mod watch;
mod xrc;

pub use ah::Ah;
pub use attr::{
    AtomicCap, DeviceAttr, DeviceCaps, LaneSpeed, LinkWidth, PhysState, PortAttr, PortCaps,
    PortState,
};
pub use channel::CompChannel;
pub use config::{Backend, Lint, SettingError, SettingPlace, SettingSource, Settings};
pub use context::{Context, WeakContext};
pub use cq::Cq;
pub use device::{Device, DeviceKind};
pub use error::{Errno, Error, ModifyQpError, PostError};
#[doc(inline)]
pub use feroce_backend_rdma_core::{Feature, LibraryError};
#[doc(inline)]
pub use feroce_engine::{
    Ack, AddrVec, AsyncEvent, AttrMask, Config as EngineConfig, CongestionConfig,
    CongestionControl, ConnectXConfig, Counters, CqId, Cqe, CreateError, CustomCongestion, Data,
    DcqcnConfig, Dest, DestroyError, DropCounters, FlushKind, HpccConfig, Limits, Loss, LossPolicy,
    Notify, QpAttr, QpCap, QpCounters, QpInitAttr, QpState, QpType, RecvWr, Remote, ResizeError,
    SendFlags, SendOp, SendWr, Sge, SgeList, SrqAttr, SrqId, SwiftConfig, TimelyConfig,
    TransportKind, WcFlags, WcOpcode, WcStatus, WindowConfig,
};
#[doc(inline)]
pub use feroce_engine::{ModifyQpError as TransitionError, PostError as RequestError};
#[doc(inline)]
pub use feroce_link::{Direction, FaultConfig, Seen, Tap};
#[doc(inline)]
pub use feroce_mem::{Access, Bind, DeregError, Iova, MwType, RegError, Region};
#[doc(inline)]
pub use feroce_train::{Framing, GidEntry, Hop, InlineBytes, Instant, LinkLayer};
/// Packets to bytes and back, for programs that look at packets.
pub use feroce_wire as wire;
#[doc(inline)]
pub use feroce_wire::{Gid, Imm, Lid, Lkey, Pkey, Pmtu, Psn, Qkey, Qpn, Rkey, Srqn};
pub use inbox::Inbox;
pub use mr::{Mr, Mw, Rereg};
pub use pd::Pd;
pub use pool::{Buf, Exposed, Pool};
pub use qp::{Endpoint, Qp, QpBuilder, QpHandle, Receiver, Sender};
pub use router::{Refused, Routed, RoutedBuf, Router};
pub use runtime::runtime_dir;
pub use srq::Srq;
pub use xrc::Xrcd;
