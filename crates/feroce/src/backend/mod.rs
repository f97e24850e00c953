//! The two backends: the software adapter, and the kernel's drivers through rdma-core.
//!
//! Every public object holds an [`Either`] with the object of its backend. The objects of both
//! backends have the same methods; [`either!`] calls the one that is there, so this file is the
//! only one that tells the backends apart. The compiler makes it one branch, which the processor
//! predicts, and no indirect call: posting and polling pay nothing else for the second backend.
//!
//! An operation on several objects belongs to one of them and gets the others with
//! [`Either::zip`], [`Either::soft`] or [`Either::kernel`], which fail if the caller mixes the
//! backends.

pub(crate) mod kernel;
pub(crate) mod soft;

use std::sync::Arc;

use feroce_backend_rdma_core as rdma_core;
use feroce_wire::{Lkey, Qpn, Rkey};

use crate::Error;
use crate::driver::ChannelQueue;
use kernel::{KernelAdapter, KernelCq, KernelMr, KernelPd, KernelQp, KernelSrq};
use soft::{
    SoftAdapter, SoftAh, SoftCq, SoftMr, SoftMw, SoftPd, SoftQp, SoftReceiver, SoftSender, SoftSrq,
};

/// What the public objects hold.
pub(crate) type Adapter = Either<Arc<SoftAdapter>, Arc<KernelAdapter>>;
pub(crate) type AhSide = Either<SoftAh, rdma_core::Ah>;
pub(crate) type ChannelSide = Either<Arc<ChannelQueue>, Arc<rdma_core::Channel>>;
pub(crate) type CqSide = Either<SoftCq, KernelCq>;
pub(crate) type MrSide = Either<SoftMr, KernelMr>;
pub(crate) type MwSide = Either<SoftMw, rdma_core::Mw>;
pub(crate) type PdSide = Either<SoftPd, KernelPd>;
pub(crate) type QpSide = Either<SoftQp, KernelQp>;
pub(crate) type RecvSide = Either<SoftReceiver, rdma_core::RecvEnd>;
pub(crate) type SendSide = Either<SoftSender, rdma_core::SendEnd>;
pub(crate) type SrqSide = Either<SoftSrq, KernelSrq>;

/// Keys of a registration, and where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    /// Address of the first byte, as work requests count.
    pub(crate) addr: u64,
}

/// The queues that a queue pair is created with.
pub(crate) struct QueueSides<'a> {
    pub(crate) send_cq: &'a CqSide,
    pub(crate) recv_cq: &'a CqSide,
    pub(crate) srq: Option<&'a SrqSide>,
}

/// A queue pair that a backend has just created.
pub(crate) struct CreatedSides {
    pub(crate) qpn: Qpn,
    pub(crate) qp: QpSide,
    pub(crate) sender: SendSide,
    /// None if it takes receives from a shared queue.
    pub(crate) receiver: Option<RecvSide>,
}

/// An object of the software adapter, or of a driver of the kernel.
#[derive(Clone, Debug)]
pub(crate) enum Either<S, K> {
    Soft(S),
    Kernel(K),
}

impl<S, K> Either<S, K> {
    /// The object, if it is of the software adapter.
    pub(crate) fn soft(&self) -> Option<&S> {
        match self {
            Self::Soft(soft) => Some(soft),
            Self::Kernel(_) => None,
        }
    }

    /// The object, if it is of a driver of the kernel.
    pub(crate) fn kernel(&self) -> Option<&K> {
        match self {
            Self::Soft(_) => None,
            Self::Kernel(kernel) => Some(kernel),
        }
    }

    /// Both objects, if they are of the same backend.
    pub(crate) fn zip<'a, T, L>(
        &'a self,
        other: &'a Either<T, L>,
    ) -> Result<Zipped<'a, S, K, T, L>, Error> {
        match (self, other) {
            (Self::Soft(one), Either::Soft(other)) => Ok(Either::Soft((one, other))),
            (Self::Kernel(one), Either::Kernel(other)) => Ok(Either::Kernel((one, other))),
            _ => Err(Error::OtherDevice),
        }
    }
}

/// Two objects of the same backend.
pub(crate) type Zipped<'a, S, K, T, L> = Either<(&'a S, &'a T), (&'a K, &'a L)>;

/// Evaluates an expression with the object of either backend.
macro_rules! either {
    ($either:expr, $object:pat => $call:expr) => {
        match $either {
            $crate::backend::Either::Soft($object) => $call,
            $crate::backend::Either::Kernel($object) => $call,
        }
    };
}

/// Evaluates an expression with the object of either backend, and keeps the results apart.
macro_rules! map_either {
    ($either:expr, $object:pat => $call:expr) => {
        match $either {
            $crate::backend::Either::Soft($object) => $crate::backend::Either::Soft($call),
            $crate::backend::Either::Kernel($object) => $crate::backend::Either::Kernel($call),
        }
    };
}

pub(crate) use {either, map_either};
