//! Errors of control operations and of posting.

mod errno;

use std::{error, fmt, io};

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{CreateError, DestroyError, ResizeError};
use feroce_engine::{ModifyQpError as TransitionError, PostError as RequestError};
use feroce_mem::{DeregError, OutOfBounds, OutOfMemory, RegError};
use rdma_core::{Feature, LibraryError};

use crate::cm::CmError;
use crate::config::SettingError;
pub use errno::Errno;

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
    Setting(SettingError),
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
    /// The objects are of different devices or backends, and the call takes them together.
    OtherDevice,
    /// The backend does not have this.
    Unsupported(Feature),
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
            Self::Setting(e) => e.fmt(f),
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
            Self::OtherDevice => f.write_str(
                "objects of different devices cannot be used together: make them from one context",
            ),
            Self::Unsupported(feature) => {
                write!(f, "the backend `rdma-core` does not have {feature}; `feroce` does")
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
            Self::Setting(e) => Some(e),
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
            | Self::OtherDevice
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
    SettingError => Setting,
}

impl From<TransitionError> for Error {
    fn from(e: TransitionError) -> Self {
        Self::ModifyQp(e.into())
    }
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
            rdma_core::Error::ModifyQp(e) => Self::ModifyQp(e.into()),
            rdma_core::Error::WrongQp => Self::Cm(CmError::NoQp),
            rdma_core::Error::OutOfBounds => Self::OutOfBounds,
            rdma_core::Error::OtherDevice => Self::OtherDevice,
            rdma_core::Error::Unsupported(feature) => Self::Unsupported(feature),
            rdma_core::Error::Io(e) => Self::Io(e),
        }
    }
}

/// Why a work request was not posted.
///
/// ```
/// # use feroce::{Data, Device, PostError, QpCap, QpState, RequestError, SendOp, SendWr};
/// # let context = Device::at(["127.0.0.42".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// let refused = qp.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]);
/// assert_eq!(refused, Err(PostError::Request(RequestError::BadState(QpState::Reset))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The request does not fit the queue, or the queue takes none at this moment.
    Request(RequestError),
    /// A driver of the kernel refused the request for another reason.
    Refused {
        /// Its error number.
        errno: Errno,
    },
}

/// Why a queue pair could not be modified.
///
/// ```
/// # use feroce::{Device, ModifyQpError, QpAttr, QpCap, QpState, TransitionError};
/// # let context = Device::at(["127.0.0.42".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// match qp.modify(&QpAttr::to(QpState::Rts)) {
///     Err(ModifyQpError::Transition(TransitionError::NoTransition { from, .. })) => {
///         assert_eq!(from, QpState::Reset); // Init and Rtr come between
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyQpError {
    /// The queue pair does not have this transition, or not with these attributes.
    Transition(TransitionError),
    /// A driver of the kernel refused; it does not say which attribute is the reason.
    Refused {
        /// Its error number.
        errno: Errno,
    },
}

impl From<RequestError> for PostError {
    fn from(e: RequestError) -> Self {
        Self::Request(e)
    }
}

impl From<rdma_core::PostError> for PostError {
    fn from(e: rdma_core::PostError) -> Self {
        match e {
            rdma_core::PostError::Request(e) => Self::Request(e),
            rdma_core::PostError::Refused { errno } => Self::Refused { errno: Errno(errno) },
        }
    }
}

impl From<TransitionError> for ModifyQpError {
    fn from(e: TransitionError) -> Self {
        Self::Transition(e)
    }
}

impl From<rdma_core::ModifyQpError> for ModifyQpError {
    fn from(e: rdma_core::ModifyQpError) -> Self {
        match e {
            rdma_core::ModifyQpError::Destroyed => Self::Transition(TransitionError::Unknown),
            rdma_core::ModifyQpError::Refused { errno } => Self::Refused { errno: Errno(errno) },
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(e) => e.fmt(f),
            Self::Refused { errno } => write!(f, "the driver refused the request: {errno}"),
        }
    }
}

impl fmt::Display for ModifyQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transition(e) => e.fmt(f),
            Self::Refused { errno } => write!(f, "the driver refused the attributes: {errno}"),
        }
    }
}

impl error::Error for PostError {
    /// The error that a variant wraps.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Request(e) => Some(e),
            Self::Refused { errno } => Some(errno),
        }
    }
}

impl error::Error for ModifyQpError {
    /// The error that a variant wraps.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Transition(e) => Some(e),
            Self::Refused { errno } => Some(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// The texts of an error and of its sources, outermost first.
    fn chain(error: &dyn error::Error) -> Vec<String> {
        std::iter::successors(Some(error), |&error| error.source())
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_driver_that_refuses_is_told_from_a_request_that_does_not_fit() {
        let refused = PostError::from(rdma_core::PostError::Refused { errno: libc::EIO });
        assert_eq!(refused, PostError::Refused { errno: Errno(libc::EIO) });
        assert_eq!(Errno::from(refused), Errno(libc::EIO));
        let full = PostError::from(rdma_core::PostError::Request(RequestError::QueueFull));
        assert_eq!(full, PostError::from(RequestError::QueueFull));
        assert_eq!(Errno::from(full), Errno::NO_MEMORY);

        let refused =
            rdma_core::Error::ModifyQp(rdma_core::ModifyQpError::Refused { errno: libc::ENODEV });
        assert_eq!(Errno::from(Error::from(refused)), Errno(libc::ENODEV));
        let gone = ModifyQpError::from(rdma_core::ModifyQpError::Destroyed);
        assert_eq!(gone, ModifyQpError::Transition(TransitionError::Unknown));
    }

    #[test]
    fn every_wrapped_error_is_a_source() {
        let errno = Errno(libc::EPERM);
        let refused = Error::from(ModifyQpError::Refused { errno });
        let [all, modify, system] = &chain(&refused)[..] else { panic!("{refused:?}") };
        assert_eq!(all, modify);
        assert!(modify.ends_with(system) && system.contains("not permitted"), "{modify}");

        let full = PostError::from(RequestError::QueueFull);
        let source = full.source().and_then(|e| e.downcast_ref::<RequestError>());
        assert_eq!(source, Some(&RequestError::QueueFull));

        let unread = SettingError::Unreadable {
            path: "feroce.toml".into(),
            error: io::ErrorKind::NotFound.into(),
        };
        assert_eq!(chain(&Error::from(unread)).len(), 3);
    }
}
