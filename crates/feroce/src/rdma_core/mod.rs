//! The other backend: devices of the kernel's drivers, by way of rdma-core.
//!
//! The libraries of the system are opened when somebody wants them and not before, so that nothing
//! depends on them. What is here are objects of C with a safe face: each public type of the crate
//! holds either one of ours or one of these, and calls it.
//!
//! - [`library`] opens the libraries and knows their functions.
//! - [`handle`] is an object of C that may be used by many and destroyed by one.
//! - [`adapter`] is an open device, [`describe`] says what it is like.
//! - [`memory`], [`queues`] and [`events`] are what is made from it, [`work`] turns requests and
//!   completions into those of C and back.
//! - [`cm`] are connections, by way of `librdmacm.so.1`.
//!
//! All `unsafe` code of the backend rests on three promises. Functions have the signatures of their
//! manual pages. The library is safe to call from any thread, as rdma-core says of itself. And an
//! object is destroyed only when nobody is in a call on it, which [`handle::Handle`] sees to, and
//! after everything made from it, for which the public types hold what they were made from.

mod adapter;
mod chain;
pub(crate) mod cm;
mod describe;
mod events;
mod handle;
mod library;
mod memory;
mod queues;
mod reactor;
mod work;

pub(crate) use adapter::{Adapter, list};
pub(crate) use events::Channel;
pub(crate) use memory::{Ah, Keys, Mr, Mw, Pd};
pub(crate) use queues::{Cq, Qp, RecvEnd, SendEnd, Srq};

use std::ffi::c_int;
use std::io;

use feroce_engine::DestroyError;

use crate::Error;

/// What the backend does not have.
pub(crate) const XRC: &str = "extended reliable connections";

/// A call of the library failed, and `errno` says why.
fn failed(call: &'static str) -> Error {
    Error::Verbs { call, error: io::Error::last_os_error() }
}

/// What a call of the library answers that returns the number of an error, or -1 and `errno`.
fn checked(call: &'static str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        libc::EBUSY => Err(DestroyError::Busy.into()),
        1.. => Err(Error::Verbs { call, error: io::Error::from_raw_os_error(code) }),
        _ => Err(failed(call)),
    }
}

/// The number of an error that a call answered with.
fn errno(code: c_int) -> i32 {
    if code < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { code }
}
