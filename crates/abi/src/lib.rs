//! The types and constants of `<infiniband/verbs.h>`, `<infiniband/umad.h>` and
//! `<rdma/rdma_cma.h>`, under their C
//! names, as of rdma-core 65 where a structure grew.
//!
//! A type that is nested in another is named after the path to it, `ibv_send_wr__wr__rdma`. A
//! member without a name has one here, and `anon` in the name of its type. `tests/layout.rs` of
//! the drop-in library compares sizes, offsets and values with the headers of the system by these
//! names.
//!
//! Two use it, on either side of the same interface: the drop-in library, which offers it to
//! programs, and the backend that calls the libraries of the system. [`convert`] has what both
//! need: how the types of C and those of feroce become each other.

#![forbid(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of the C headers")]
#![allow(non_snake_case, reason = "the names of the C headers")]
#![allow(missing_docs, reason = "the manual pages of the C libraries document them")]
#![allow(missing_debug_implementations, reason = "pointers and unions have nothing to show")]

#[macro_use]
mod layout;

mod attr;
pub mod convert;
mod device_attr;
mod device_values;
mod objects;
mod ops;
mod private;
mod rdmacm;
mod rdmacm_values;
mod umad;
mod values;
mod work;

pub use attr::*;
pub use device_attr::*;
pub use device_values::*;
pub use layout::{Layout, Value};
pub use objects::*;
pub use ops::*;
pub use private::*;
pub use rdmacm::*;
pub use rdmacm_values::*;
pub use umad::*;
pub use values::*;
pub use work::*;

/// Every type, for comparison with the headers.
pub const LAYOUTS: &[&[Layout]] = &[
    attr::LAYOUTS,
    device_attr::LAYOUTS,
    objects::LAYOUTS,
    ops::LAYOUTS,
    rdmacm::LAYOUTS,
    umad::LAYOUTS,
    work::LAYOUTS,
];

/// Every constant, for comparison with the headers.
pub const VALUES: &[&[Value]] = &[device_values::VALUES, rdmacm_values::VALUES, values::VALUES];
