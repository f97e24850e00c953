//! What can go wrong outside the data path.

use std::fmt;
use std::io;

use feroce_engine::{CreateError, DestroyError, ModifyQpError, ResizeError};
use feroce_mem::{DeregError, OutOfBounds, OutOfMemory, RegError};

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
    /// A library that the backend needs is not there, or is too old.
    Library(String),
    /// A call of libibverbs or librdmacm failed.
    Verbs {
        /// The function.
        call: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The backend cannot do this.
    Unsupported(&'static str),
    /// There is not that much memory.
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
            Self::Library(why) => f.write_str(why),
            Self::Verbs { call, error } => write!(f, "{call}: {error}"),
            Self::Unsupported(what) => {
                write!(f, "the backend `rdma-core` does not have {what}; `feroce` does")
            }
            Self::OutOfMemory => f.write_str("not enough memory for a region of this size"),
            Self::OutOfBounds => f.write_str("the range passes the end of the memory region"),
        }
    }
}

impl std::error::Error for Error {}

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
