//! Why a call of the backend failed.

use std::{error, fmt, io};

use feroce_engine as engine;

/// Why a call of the backend failed.
#[derive(Debug)]
pub enum Error {
    /// A library of rdma-core cannot be used.
    Library(LibraryError),
    /// The library lists no device with this name.
    NoDevice(String),
    /// A call of libibverbs or librdmacm failed.
    Call {
        /// The function.
        call: &'static str,
        /// Its error number.
        error: io::Error,
    },
    /// Other objects still use the object that the call would destroy.
    Busy,
    /// Memory windows are bound to the region that the call would deregister.
    WindowsBound,
    /// A queue pair could not be modified.
    ModifyQp(ModifyQpError),
    /// The queue pair does not fit the port space of the id.
    WrongQp,
    /// The range passes the end of the memory region.
    OutOfBounds,
    /// The objects are of different devices.
    OtherDevice,
    /// Drivers of the kernel do not have this.
    Unsupported(Feature),
    /// A system call failed.
    Io(io::Error),
}

/// What the software adapter has and drivers of the kernel do not have.
///
/// Packets of their devices do not pass through this process, so no layer captures, traces or
/// disturbs them.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Capturing packets.
    Capture,
    /// Tracing packets.
    Trace,
    /// Injecting faults into received packets.
    Faults,
    /// Observing packets.
    Tap,
    /// Extended reliable connections.
    Xrc,
    /// Memory windows, which not every driver has.
    MemoryWindows,
    /// Changing a registration to memory with another virtual address.
    ReregOtherAddress,
    /// Registering a region that has no memory of its own, or the whole address space.
    NotMemory,
    /// Keeping multicasts of a queue pair from the queue pair itself.
    OwnMulticasts,
    /// Connecting queue pairs of which only the number is known.
    QpByNumber,
    /// Putting an event of the consumer into the event channel.
    OwnEvents,
    /// Addresses of InfiniBand itself: GIDs and services.
    IbAddresses,
    /// Datagrams of the port space that is for connections, too.
    IbDatagrams,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capture => "capturing packets (`pcap`)",
            Self::Trace => "tracing packets (`trace`)",
            Self::Faults => "injecting faults (`fault`)",
            Self::Tap => "a tap on packets",
            Self::Xrc => "extended reliable connections",
            Self::MemoryWindows => "memory windows",
            Self::ReregOtherAddress => "changing a registration to another address",
            Self::NotMemory => "registering what is not a piece of memory",
            Self::OwnMulticasts => "keeping own multicasts from a queue pair",
            Self::QpByNumber => "queue pairs known by number",
            Self::OwnEvents => "events of the consumer in an event channel",
            Self::IbAddresses => "addresses of InfiniBand",
            Self::IbDatagrams => "datagrams of the port space IB",
        })
    }
}

/// Why a library of rdma-core cannot be used.
#[non_exhaustive]
#[derive(Debug)]
pub enum LibraryError {
    /// The dynamic linker does not find it, or cannot load it.
    NotFound(Box<dyn error::Error + Send + Sync>),
    /// It lacks a function, so it is older than rdma-core 32.
    TooOld(Box<dyn error::Error + Send + Sync>),
    /// The kernel has no RDMA drivers.
    NoDrivers,
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(why) => {
                write!(f, "install rdma-core (Debian: libibverbs1, librdmacm1): {why}")
            }
            Self::TooOld(why) => write!(f, "install rdma-core 32 or later: {why}"),
            Self::NoDrivers => f.write_str(
                "the kernel has no RDMA drivers: load that of the adapter, or `rdma_rxe`",
            ),
        }
    }
}

impl error::Error for LibraryError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::NotFound(why) | Self::TooOld(why) => Some(&**why),
            Self::NoDrivers => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(e) => e.fmt(f),
            Self::NoDevice(name) => write!(f, "rdma-core lists no device {name:?}"),
            Self::Call { call, error } => write!(f, "{call}: {error}"),
            Self::Busy => f.write_str("other objects still use it"),
            Self::WindowsBound => f.write_str("memory windows are bound to the region"),
            Self::ModifyQp(e) => e.fmt(f),
            Self::WrongQp => f.write_str("the queue pair does not fit the port space of the id"),
            Self::OutOfBounds => f.write_str("the range passes the end of the memory region"),
            Self::OtherDevice => f.write_str("the objects are of different devices"),
            Self::Unsupported(what) => write!(f, "the backend `rdma-core` does not have {what}"),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Library(e) => Some(e),
            Self::Call { error, .. } | Self::Io(error) => Some(error),
            Self::ModifyQp(e) => Some(e),
            Self::NoDevice(_)
            | Self::Busy
            | Self::WindowsBound
            | Self::WrongQp
            | Self::OutOfBounds
            | Self::OtherDevice
            | Self::Unsupported(_) => None,
        }
    }
}

impl Error {
    /// The error number of the call that failed, if a call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { error, .. } | Self::Io(error) => error.raw_os_error(),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<nix::errno::Errno> for Error {
    fn from(e: nix::errno::Errno) -> Self {
        Self::Io(e.into())
    }
}

impl From<LibraryError> for Error {
    fn from(e: LibraryError) -> Self {
        Self::Library(e)
    }
}

impl From<ModifyQpError> for Error {
    fn from(e: ModifyQpError) -> Self {
        Self::ModifyQp(e)
    }
}

/// Why a queue pair was not modified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyQpError {
    /// It is destroyed.
    Destroyed,
    /// The driver refused the attributes.
    Refused {
        /// Its error number.
        errno: i32,
    },
}

impl fmt::Display for ModifyQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destroyed => f.write_str("the queue pair is destroyed"),
            Self::Refused { errno } => refused(*errno, f),
        }
    }
}

impl error::Error for ModifyQpError {}

/// Why a work request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The request does not fit the queue, or the queue takes none.
    Request(engine::PostError),
    /// The driver refused for another reason.
    Refused {
        /// Its error number.
        errno: i32,
    },
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(e) => e.fmt(f),
            Self::Refused { errno } => refused(*errno, f),
        }
    }
}

/// Writes that the driver refused, and the words of the system for its error number.
fn refused(errno: i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "the driver refused: {}", io::Error::from_raw_os_error(errno))
}

impl error::Error for PostError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Request(e) => Some(e),
            Self::Refused { .. } => None,
        }
    }
}

impl From<engine::PostError> for PostError {
    fn from(e: engine::PostError) -> Self {
        Self::Request(e)
    }
}
