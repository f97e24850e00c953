//! The types and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, under their C
//! names, as of rdma-core 65 where a structure grew.
//!
//! A type that is nested in another is named after the path to it, `ibv_send_wr__wr__rdma`. A
//! member without a name has one here, and `anon` in the name of its type. `tests/layout.rs`
//! compares sizes, offsets and values with the headers of the system by these names.

#![allow(non_camel_case_types, reason = "the names of the C headers")]
#![allow(non_snake_case, reason = "the names of the C headers")]
#![allow(dead_code, unused_imports, reason = "the headers are here whole, whoever uses them")]

#[macro_use]
mod layout;

mod attr;
mod device_attr;
mod device_values;
mod objects;
mod ops;
mod private;
mod rdmacm;
mod rdmacm_values;
mod values;
mod work;

pub(crate) use attr::*;
pub(crate) use device_attr::*;
pub(crate) use device_values::*;
pub(crate) use layout::{Layout, Value};
pub(crate) use objects::*;
pub(crate) use ops::*;
pub(crate) use private::*;
pub(crate) use rdmacm::*;
pub(crate) use rdmacm_values::*;
pub(crate) use values::*;
pub(crate) use work::*;

/// Every type, for comparison with the headers.
pub(crate) const LAYOUTS: &[&[Layout]] = &[
    attr::LAYOUTS,
    device_attr::LAYOUTS,
    objects::LAYOUTS,
    ops::LAYOUTS,
    rdmacm::LAYOUTS,
    work::LAYOUTS,
];

/// Every constant, for comparison with the headers.
pub(crate) const VALUES: &[&[Value]] =
    &[device_values::VALUES, rdmacm_values::VALUES, values::VALUES];
