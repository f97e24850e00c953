//! Everything that programs can link to, by name and version.
//!
//! A line of a table names a symbol and the Rust function behind it, under the version node that
//! it came with:
//!
//! ```text
//! "IBVERBS_1.1" {
//!     ibv_alloc_pd => verbs::pd::ibv_alloc_pd,
//!     ibv_set_ece => stub::code,
//! }
//! ```
//!
//! The function is `extern "C"`, of any visibility, without `#[unsafe(no_mangle)]`: an unversioned
//! symbol of the same name would stand in the way of the versioned one. Calls that are not
//! supported point to one of the answers in [`stub`](crate::stub), by the call's convention. To
//! support a call, write the function and put its path in place of the stub; nothing else knows.

#[macro_use]
mod table;

mod ibumad;
mod ibverbs;
mod private;
mod rdmacm;
