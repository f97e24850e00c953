//! RDMA devices of the kernel's drivers, through the rdma-core libraries of the system.
//!
//! The crate loads `libibverbs.so.1` and `librdmacm.so.1` on first use, so nothing depends on them
//! at link time. Each type wraps an object of the C library in a safe interface that speaks the
//! work requests, completions and attributes of `feroce-engine`. `feroce` puts these types next to
//! its software adapter; this crate knows neither devices nor settings of `feroce`.
//!
//! - [`mod@library`] loads the libraries and declares their functions.
//! - [`handle`] holds a C object that many threads use and one destroys.
//! - [`mod@open`] lists and opens devices, [`describe`] queries one, [`events`] takes its
//!   asynchronous events; [`adapter`] is an open device with all of that.
//! - [`memory`], [`channel`], [`queues`] and [`ends`] are the objects made from it. [`chain`] and
//!   [`recv_chain`] link requests as C takes them, [`work`] converts what only unsafe code can
//!   read.
//! - [`cm`] is the connection manager of librdmacm.
//!
//! The unsafe code relies on three promises. The functions have the signatures of their manual
//! pages. The libraries may be called from any thread, as rdma-core documents. An object is
//! destroyed only while no thread is in a call on it, which [`handle::Handle`] ensures, and after
//! every object made from it, because each object holds those it was made from.

#![allow(rustdoc::private_intra_doc_links, reason = "the map above is for readers of the source")]

mod adapter;
mod chain;
mod channel;
pub mod cm;
mod describe;
mod ends;
mod error;
mod events;
mod handle;
mod library;
mod memory;
mod open;
mod queues;
mod reactor;
mod recv_chain;
mod work;

pub use adapter::{Adapter, list};
pub use channel::Channel;
pub use describe::{DeviceInfo, Listed, PortInfo};
pub use ends::{RecvEnd, SendEnd};
pub use error::{Error, Feature, LibraryError, ModifyQpError, PostError};
pub use events::Sink;
pub use memory::{Ah, Keys, Mr, Mw, Pd};
pub use queues::{Cq, Qp, Srq};

use std::ffi::c_int;
use std::io;

/// A call of the library failed and set `errno`.
fn failed(call: &'static str) -> Error {
    Error::Call { call, error: io::Error::last_os_error() }
}

/// The result of a call that returns an error number, or -1 and sets `errno`.
fn checked(call: &'static str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        libc::EBUSY => Err(Error::Busy),
        1.. => Err(Error::Call { call, error: io::Error::from_raw_os_error(code) }),
        _ => Err(failed(call)),
    }
}

/// The error number of a call that returns one, or -1 and sets `errno`.
fn errno(code: c_int) -> i32 {
    if code < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { code }
}
