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

use feroce_engine::CreateError;

use crate::Error;

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
            _ => Err(mixed()),
        }
    }
}

/// Two objects of the same backend.
pub(crate) type Zipped<'a, S, K, T, L> = Either<(&'a S, &'a T), (&'a K, &'a L)>;

/// The caller combines objects of different backends.
pub(crate) fn mixed() -> Error {
    CreateError::Invalid("the objects are of different backends").into()
}

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
