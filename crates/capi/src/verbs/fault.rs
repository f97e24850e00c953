//! Errors, as C wants them: the one place that knows `errno`.

use core::ffi::c_int;
use core::ptr;

use feroce::cm::{BindError, CmError};
use feroce::{CreateError, DeregError, DestroyError, Error, ModifyQpError, PostError, RegError};

use crate::errno;

/// A number of `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault(pub(crate) c_int);

impl Fault {
    /// The program asked for something that makes no sense.
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    /// The adapter does not have it; programs go without.
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// Something still uses it.
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// There is no room.
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
}

/// For calls that return a pointer.
pub(crate) fn pointer<T>(made: Result<*mut T, Fault>) -> *mut T {
    made.unwrap_or_else(|fault| {
        errno::set(fault.0);
        ptr::null_mut()
    })
}

/// For verbs that return the error itself. They set `errno` as well, as programs expect that have
/// only ever seen one or the other.
pub(crate) fn code(done: Result<(), Fault>) -> c_int {
    done.map_or_else(
        |fault| {
            errno::set(fault.0);
            fault.0
        },
        |()| 0,
    )
}

/// For calls that return -1.
pub(crate) fn status(done: Result<(), Fault>) -> c_int {
    done.map_or_else(
        |fault| {
            errno::set(fault.0);
            -1
        },
        |()| 0,
    )
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::NoDevice(_) => Self(libc::ENODEV),
            Error::Io(e) => Self(e.raw_os_error().unwrap_or(libc::EIO)),
            Error::Create(e) => e.into(),
            Error::Destroy(e) => e.into(),
            Error::ModifyQp(e) => e.into(),
            Error::Register(e) => e.into(),
            Error::Deregister(e) => e.into(),
            Error::OutOfMemory => Self::NO_MEMORY,
            Error::Cm(e) => e.into(),
            _ => Self::INVALID,
        }
    }
}

impl From<CmError> for Fault {
    fn from(error: CmError) -> Self {
        match error {
            CmError::Port(BindError::InUse) => Self(libc::EADDRINUSE),
            CmError::Port(BindError::Exhausted | BindError::Overlaps) | CmError::Address(_) => {
                Self(libc::EADDRNOTAVAIL)
            }
            CmError::Route(e) => Self(e.raw_os_error().unwrap_or(libc::ENETUNREACH)),
            CmError::Rejected { .. } => Self(libc::ECONNREFUSED),
            CmError::Unreachable => Self(libc::ETIMEDOUT),
            CmError::DeviceGone => Self(libc::ENODEV),
            _ => Self::INVALID,
        }
    }
}

impl From<CreateError> for Fault {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::TooMany => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

impl From<DestroyError> for Fault {
    fn from(error: DestroyError) -> Self {
        match error {
            DestroyError::Busy => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<ModifyQpError> for Fault {
    fn from(_: ModifyQpError) -> Self {
        Self::INVALID
    }
}

impl From<RegError> for Fault {
    fn from(error: RegError) -> Self {
        match error {
            RegError::TableFull => Self::NO_MEMORY,
            RegError::Busy => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<DeregError> for Fault {
    fn from(error: DeregError) -> Self {
        match error {
            DeregError::WindowsBound => Self::BUSY,
            _ => Self::INVALID,
        }
    }
}

impl From<PostError> for Fault {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}
