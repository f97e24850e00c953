//! Errors as numbers of `errno.h`, for interfaces that report errors as C does.

use std::fmt;
use std::io;

use feroce_engine::{CreateError, DestroyError, ResizeError};
use feroce_mem::{DeregError, RegError};

use super::{Error, ModifyQpError, PostError, RequestError};
use crate::cm::{BindError, CmError};

/// A number of `errno.h`.
///
/// Every error of this crate converts into the number that rdma-core reports for it, so that
/// interfaces with C calling conventions share one table.
///
/// ```
/// use feroce::{Access, Device, Errno};
///
/// let pd = Device::at(["127.0.0.41".parse()?]).open()?.alloc_pd()?;
/// let refused = pd.alloc_mr(4096, Access::REMOTE_WRITE).map_err(Errno::from);
/// assert_eq!(refused.err(), Some(Errno::INVALID));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// An argument is invalid.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// The adapter does not support the call; programs do without it.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// Another object still uses this one.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// Memory or a table is exhausted.
    pub const NO_MEMORY: Self = Self(libc::ENOMEM);

    /// The number that the last failed system call of this thread left behind.
    pub fn last() -> Self {
        io::Error::last_os_error().into()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        // An error that was given words has the one of the system as its source.
        let cause = error.get_ref().and_then(|words| words.source()?.downcast_ref::<io::Error>());
        let number = error.raw_os_error().or_else(|| cause?.raw_os_error());
        Self(number.unwrap_or(libc::EIO))
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::NoDevice(_) => Self(libc::ENODEV),
            Error::Io(e) => e.into(),
            Error::Create(e) => e.into(),
            Error::Destroy(e) => e.into(),
            Error::ModifyQp(e) => e.into(),
            Error::Register(e) => e.into(),
            Error::Deregister(e) => e.into(),
            Error::OutOfMemory | Error::Resize(ResizeError::OutOfMemory) => Self::NO_MEMORY,
            Error::Cm(e) => e.into(),
            _ => Self::INVALID,
        }
    }
}

impl From<CmError> for Errno {
    fn from(error: CmError) -> Self {
        match error {
            CmError::Port(BindError::InUse) => Self(libc::EADDRINUSE),
            CmError::Port(BindError::Exhausted | BindError::Overlaps)
            | CmError::NoDevice(_)
            | CmError::NotMulticast(_) => Self(libc::EADDRNOTAVAIL),
            CmError::Route(e) => Self(e.raw_os_error().unwrap_or(libc::ENETUNREACH)),
            CmError::Rejected { .. } => Self(libc::ECONNREFUSED),
            CmError::Unreachable | CmError::TimedOut => Self(libc::ETIMEDOUT),
            CmError::DeviceGone => Self(libc::ENODEV),
            // As on Linux: there may be one soon.
            CmError::NoSubnetManager => Self(libc::EAGAIN),
            CmError::Connected => Self(libc::EISCONN),
            CmError::NoService => Self(libc::EPROTONOSUPPORT),
            _ => Self::INVALID,
        }
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::TooMany | CreateError::OutOfMemory => Self::NO_MEMORY,
            CreateError::Unsupported(_) => Self::UNSUPPORTED,
            _ => Self::INVALID,
        }
    }
}

impl From<DestroyError> for Errno {
    fn from(error: DestroyError) -> Self {
        match error {
            DestroyError::Busy => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<ModifyQpError> for Errno {
    fn from(error: ModifyQpError) -> Self {
        match error {
            ModifyQpError::Refused { errno } => errno,
            _ => Self::INVALID,
        }
    }
}

impl From<RegError> for Errno {
    fn from(error: RegError) -> Self {
        match error {
            RegError::TableFull => Self::NO_MEMORY,
            RegError::Busy => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<DeregError> for Errno {
    fn from(error: DeregError) -> Self {
        match error {
            DeregError::WindowsBound => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Request(RequestError::QueueFull) => Self::NO_MEMORY,
            PostError::Refused { errno } => errno,
            _ => Self::INVALID,
        }
    }
}
