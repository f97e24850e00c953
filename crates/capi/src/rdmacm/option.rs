//! Settings of ids.

use core::ffi::{c_int, c_void};

use feroce::cm::IdOption;

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

pub(crate) unsafe extern "C" fn rdma_set_option(
    public: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: rdma_set_option(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_set_option(3): `value` points to `len` bytes.
    let option = unsafe { option(level.cast_unsigned(), name.cast_unsigned(), value, len) };
    status(option.and_then(|option| Ok(id.id.set_option(option)?)))
}

/// # Safety
/// `value` points to `len` bytes.
unsafe fn option(
    level: rdma_option_level,
    name: u32,
    value: *mut c_void,
    len: usize,
) -> Result<IdOption, Errno> {
    let byte = || {
        // SAFETY: `value` points to `len` bytes, which is 1 here.
        (len == 1).then(|| unsafe { value.cast::<u8>().read() }).ok_or(Errno::INVALID)
    };
    let flag = || {
        let whole = len == size_of::<c_int>();
        // SAFETY: `whole` says that `len` is at least that of a `c_int`, and `value` points to
        // `len` bytes.
        let flag = whole.then(|| unsafe { value.cast::<c_int>().read_unaligned() });
        flag.map(|flag| flag != 0).ok_or(Errno::INVALID)
    };
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => Ok(IdOption::Tos(byte()?)),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => Ok(IdOption::ReuseAddr(flag()?)),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => Ok(IdOption::AfOnly(flag()?)),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => Ok(IdOption::AckTimeout(byte()?)),
        // On Ethernet there is no subnet administrator to supply path records.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => Err(Errno::UNSUPPORTED),
        _ => Err(Errno(libc::ENOSYS)),
    }
}
