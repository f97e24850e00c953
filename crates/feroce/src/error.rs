//! Errors of control operations and of posting.

use std::{error, fmt, io};

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{CreateError, DestroyError, ModifyQpError, QpState, ResizeError};
use feroce_mem::{DeregError, OutOfBounds, OutOfMemory, RegError};
use rdma_core::LibraryError;

use crate::cm::CmError;

/// Why a control operation failed. Outcomes of work requests are not errors but completions.
///
/// ```
/// use feroce::{Access, Device, Error};
///
/// let pd = Device::at(["127.0.0.36".parse()?]).open()?.alloc_pd()?;
/// match pd.alloc_mr(4096, Access::REMOTE_WRITE) {
///     Err(Error::Register(why)) => println!("{why}"), // remote write needs local write
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug)]
pub enum Error {
    /// No such device.
    NoDevice(String),
    /// The port has no address with this index.
    NoAddress(u16),
    /// A setting could not be understood.
    Setting(String),
    /// The operating system refused.
    Io(io::Error),
    /// An object could not be made.
    Create(CreateError),
    /// An object could not be destroyed.
    Destroy(DestroyError),
    /// A queue could not be resized.
    Resize(ResizeError),
    /// A queue pair could not be modified.
    ModifyQp(ModifyQpError),
    /// Memory could not be registered.
    Register(RegError),
    /// A registration could not be ended.
    Deregister(DeregError),
    /// A call of the connection manager failed.
    Cm(CmError),
    /// A library that the backend needs cannot be used.
    Library(LibraryError),
    /// A call of libibverbs or librdmacm failed.
    Verbs {
        /// The function.
        call: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The backend cannot do this.
    Unsupported(&'static str),
    /// The system has too little memory.
    OutOfMemory,
    /// Beyond the end of the region.
    OutOfBounds,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice(name) => {
                write!(f, "no device {name:?}: `feroce devices` lists those there are")
            }
            Self::NoAddress(index) => {
                write!(f, "the port has no address with index {index}: `Context::port` lists them")
            }
            Self::Setting(why) => f.write_str(why),
            Self::Io(e) => e.fmt(f),
            Self::Create(e) => e.fmt(f),
            Self::Destroy(e) => e.fmt(f),
            Self::Resize(e) => e.fmt(f),
            Self::ModifyQp(e) => e.fmt(f),
            Self::Register(e) => e.fmt(f),
            Self::Deregister(e) => e.fmt(f),
            Self::Cm(e) => e.fmt(f),
            Self::Library(e) => e.fmt(f),
            Self::Verbs { call, error } => write!(f, "{call}: {error}"),
            Self::Unsupported(what) => {
                write!(f, "the backend `rdma-core` does not have {what}; `feroce` does")
            }
            Self::OutOfMemory => f.write_str("not enough memory for a region of this size"),
            Self::OutOfBounds => f.write_str("the range passes the end of the memory region"),
        }
    }
}

impl error::Error for Error {
    /// The error that a variant wraps.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(e) | Self::Verbs { error: e, .. } => Some(e),
            Self::Create(e) => Some(e),
            Self::Destroy(e) => Some(e),
            Self::Resize(e) => Some(e),
            Self::ModifyQp(e) => Some(e),
            Self::Register(e) => Some(e),
            Self::Deregister(e) => Some(e),
            Self::Cm(e) => Some(e),
            Self::Library(e) => Some(e),
            Self::NoDevice(_)
            | Self::NoAddress(_)
            | Self::Setting(_)
            | Self::Unsupported(_)
            | Self::OutOfMemory
            | Self::OutOfBounds => None,
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(impl From<$type> for Error {
            fn from(e: $type) -> Self {
                Self::$variant(e)
            }
        })*
    };
}

from! {
    io::Error => Io,
    CreateError => Create,
    DestroyError => Destroy,
    ResizeError => Resize,
    ModifyQpError => ModifyQp,
    RegError => Register,
    DeregError => Deregister,
    CmError => Cm,
}

impl From<nix::errno::Errno> for Error {
    fn from(e: nix::errno::Errno) -> Self {
        Self::Io(e.into())
    }
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfBounds> for Error {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

impl From<rdma_core::Error> for Error {
    fn from(e: rdma_core::Error) -> Self {
        match e {
            rdma_core::Error::Library(e) => Self::Library(e),
            rdma_core::Error::NoDevice(name) => Self::NoDevice(name),
            rdma_core::Error::Call { call, error } => Self::Verbs { call, error },
            rdma_core::Error::Busy => Self::Destroy(DestroyError::Busy),
            rdma_core::Error::WindowsBound => Self::Deregister(DeregError::WindowsBound),
            rdma_core::Error::ModifyQp(e) => Self::ModifyQp(e),
            rdma_core::Error::WrongQp => Self::Cm(CmError::NoQp),
            rdma_core::Error::OutOfBounds => Self::OutOfBounds,
            rdma_core::Error::Unsupported(what) => Self::Unsupported(what),
            rdma_core::Error::Io(e) => Self::Io(e),
        }
    }
}

/// Why a work request was not posted.
///
/// ```
/// # use feroce::{Data, Device, PostError, QpCap, QpState, SendOp, SendWr};
/// # let context = Device::at(["127.0.0.42".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// let refused = qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]);
/// assert_eq!(refused, Err(PostError::BadState(QpState::Reset)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The queue holds as many requests as it was created for.
    QueueFull,
    /// More scatter/gather elements than the queue was created for.
    TooManySges,
    /// More inline data than the queue pair was created for.
    InlineTooLong,
    /// Inline data on an operation that returns data, or on a local one.
    InlineNotAllowed,
    /// The service of the queue pair does not have this operation.
    OpNotSupported,
    /// The destination does not fit the service: datagrams need one, connections have one.
    BadDestination,
    /// The queue pair takes no requests in its state.
    BadState(QpState),
    /// Atomic operations work on exactly eight bytes.
    BadAtomicLength,
    /// A driver of the kernel refused the request.
    Refused {
        /// Its error number.
        errno: i32,
    },
}

impl From<feroce_engine::PostError> for PostError {
    fn from(e: feroce_engine::PostError) -> Self {
        use feroce_engine::PostError as Engine;
        match e {
            Engine::QueueFull => Self::QueueFull,
            Engine::TooManySges => Self::TooManySges,
            Engine::InlineTooLong => Self::InlineTooLong,
            Engine::InlineNotAllowed => Self::InlineNotAllowed,
            Engine::OpNotSupported => Self::OpNotSupported,
            Engine::BadDestination => Self::BadDestination,
            Engine::BadState(state) => Self::BadState(state),
            Engine::BadAtomicLength => Self::BadAtomicLength,
        }
    }
}

impl From<rdma_core::PostError> for PostError {
    fn from(e: rdma_core::PostError) -> Self {
        match e {
            rdma_core::PostError::Request(e) => e.into(),
            rdma_core::PostError::Refused { errno } => Self::Refused { errno },
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull => f.write_str("queue full: poll completions before posting more"),
            Self::TooManySges => f.write_str(
                "more SGEs than the queue was created for: raise `max_send_sge` or \
                             `max_recv_sge`",
            ),
            Self::InlineTooLong => f.write_str(
                "more inline data than the queue was created for: raise `max_inline`, \
                             or use registered memory",
            ),
            Self::InlineNotAllowed => {
                f.write_str("this operation cannot take inline data: use registered memory")
            }
            Self::OpNotSupported => f.write_str("this type of queue pair lacks the operation"),
            Self::BadDestination => f.write_str(
                "the destination does not fit: datagrams name an address handle, XRC a shared \
                 receive queue, connections nothing",
            ),
            Self::BadState(s) => {
                write!(f, "nothing can be posted in {s:?}: move the queue pair on first")
            }
            Self::Refused { errno } => write!(f, "the driver refused with error {errno}"),
            Self::BadAtomicLength => f.write_str("atomic operations need exactly 8 bytes"),
        }
    }
}

impl error::Error for PostError {}
