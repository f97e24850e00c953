//! libibverbs, librdmacm and libibumad in one shared library, on the software adapter of `feroce`.
//!
//! Nothing here is called from Rust. [`exports`] is the table of everything that C programs can
//! link to; [`abi`] are the types of the C headers; what the calls do is in the modules beside
//! them, and that is marshalling: pointers to references, errors to `errno`.
//!
//! The library never unwinds into C: every exported function is `extern "C"`, and a panic in one
//! of those aborts.

mod caller;
mod errno;
mod exports;
mod files;
mod leave;
mod log;
mod memory;
mod netlink;
mod next;
mod rdmacm;
mod rsocket;
mod stub;
mod umad;
mod verbs;
mod zeroed;

/// The types of the C headers.
use feroce_abi as abi;
