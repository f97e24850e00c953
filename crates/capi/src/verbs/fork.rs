//! Processes that fork.
//!
//! Registered memory needs no protection from fork: no device keeps addresses of pages, and the
//! parent goes on with the memory that it sees. In a child, contexts that it inherits are opened
//! again when they are first used ([`Context::adapter`](super::context::Context::adapter)); queue
//! pairs and queues stay the parent's, and can only be destroyed.

use core::ffi::{c_int, c_void};

pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> crate::abi::ibv_fork_status {
    crate::abi::IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
