//! Errors, one small enum per operation.

use core::error::Error;
use core::fmt;

/// The allocator has no room for a region of this size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// The range leaves the region or the grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBounds;

/// Why bytes did not come from a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FetchError {
    /// The range leaves the memory it was asked of.
    OutOfBounds,
    /// The source does not have them, or not any more.
    Gone,
}

/// The access flags contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidAccess;

/// Why memory could not be touched. Towards a peer, each becomes a remote access error or a
/// remote invalid request; locally, a local protection error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AccessError {
    /// No memory has this key now.
    BadKey,
    /// The key belongs to another protection domain.
    WrongPd,
    /// The key belongs to a type 2 window bound to another queue pair.
    WrongQp,
    /// The memory was not registered or bound for this operation.
    NotPermitted,
    /// The range leaves the memory that the key names.
    OutOfBounds,
    /// An atomic operation needs eight bytes at a multiple of eight.
    Misaligned,
}

/// Why memory could not be registered.
///
/// ```
/// # use feroce_mem::{Access, RegError};
/// let error: RegError = Access::REMOTE_ATOMIC.validate().unwrap_err().into();
/// assert!(error.to_string().contains("need local write access"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RegError {
    /// The range leaves the region.
    OutOfBounds,
    /// The access flags contradict each other.
    InvalidAccess,
    /// The table holds as many entries as it may.
    TableFull,
    /// The addresses of the range would pass the end of the 64-bit space.
    IovaOverflow,
    /// No memory region has this key now.
    UnknownKey,
    /// The key is not of a kind that can be registered again.
    WrongKind,
    /// Memory windows are bound to the region.
    Busy,
    /// The owner of the table knows no such protection domain.
    UnknownPd,
}

/// Why a key could not be retired.
///
/// ```
/// # use feroce_mem::DeregError;
/// assert!(DeregError::WindowsBound.to_string().contains("windows"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeregError {
    /// Nothing of this kind has this key now.
    Unknown,
    /// Memory windows are bound to the region.
    WindowsBound,
}

/// Why a window could not be bound, or a key mapped or invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BindError {
    /// Nothing that can be bound, mapped or invalidated has this key now.
    BadKey,
    /// No mapped memory region has the local key.
    BadMr,
    /// Window, memory region and queue pair are not all of one protection domain.
    WrongPd,
    /// The operation does not exist for this type of window or region.
    WrongType,
    /// The window is bound, or the region mapped, and must be invalidated first.
    NotFree,
    /// The new key has another index than the window.
    BadNewKey,
    /// A type 2 window cannot be bound to nothing.
    ZeroLength,
    /// The access flags contradict each other, or are none that a window can have.
    InvalidAccess,
    /// The memory region does not permit windows, or not windows with these rights.
    NotPermitted,
    /// The range leaves the memory region.
    OutOfBounds,
    /// The addresses of the range would pass the end of the 64-bit space.
    IovaOverflow,
    /// Memory windows are bound to the region.
    WindowsBound,
}

/// Implements `Display` and `Error` from one message per value.
macro_rules! messages {
    ($($name:ident: $text:literal;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }

        impl Error for $name {}
    )*};
    ($name:ident { $($value:ident => $text:literal,)* }) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$value => $text,)*
                })
            }
        }

        impl Error for $name {}
    };
}

messages! {
    OutOfMemory: "not enough memory for a region of this size";
    OutOfBounds: "the range leaves the memory it was asked of";
    InvalidAccess: "remote write and remote atomic access need local write access";
}

messages! { FetchError {
    OutOfBounds => "the range leaves the memory it was asked of",
    Gone => "the bytes are not to be had any more",
} }

messages! { AccessError {
    BadKey => "no memory has this key",
    WrongPd => "the key belongs to another protection domain",
    WrongQp => "the memory window is bound to another queue pair",
    NotPermitted => "the memory was not registered for this operation",
    OutOfBounds => "the range leaves the memory that the key names",
    Misaligned => "an atomic operation needs 8 bytes at a multiple of 8",
} }

messages! { RegError {
    OutOfBounds => "the range leaves the region",
    InvalidAccess => "remote write and remote atomic access need local write access",
    TableFull => "no more memory regions or windows can be created: end some first",
    IovaOverflow => "the addresses of the range would pass the end of the 64-bit space",
    UnknownKey => "no memory region has this key",
    WrongKind => "only an ordinary memory region can be registered again",
    Busy => "memory windows are bound to the memory region: invalidate or free them first",
    UnknownPd => "there is no such protection domain",
} }

messages! { DeregError {
    Unknown => "nothing of this kind has this key",
    WindowsBound => "memory windows are bound to the memory region: invalidate or free them first",
} }

messages! { BindError {
    BadKey => "nothing that could be bound or invalidated has this key",
    BadMr => "no mapped memory region has this local key",
    WrongPd => "window, memory region and queue pair are of different protection domains",
    WrongType => "this type of window or memory region does not have this operation",
    NotFree => "the window or memory region must be invalidated first",
    BadNewKey => "the new key may differ from the old only in its low 8 bits",
    ZeroLength => "a type 2 window cannot be bound to a range of length 0",
    InvalidAccess => "these access flags cannot be given",
    NotPermitted => "the memory region was not registered for such a window",
    OutOfBounds => "the range leaves the memory region",
    IovaOverflow => "the addresses of the range would pass the end of the 64-bit space",
    WindowsBound => "memory windows are bound to the memory region",
} }

impl From<OutOfBounds> for FetchError {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

impl From<OutOfBounds> for AccessError {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

impl From<InvalidAccess> for RegError {
    fn from(_: InvalidAccess) -> Self {
        Self::InvalidAccess
    }
}

impl From<InvalidAccess> for BindError {
    fn from(_: InvalidAccess) -> Self {
        Self::InvalidAccess
    }
}
