//! What the headers leave incomplete or do not show: types of libibverbs and its providers whose
//! layout programs rely on all the same, and types that are only passed by pointer.

use core::ffi::{c_int, c_uint, c_void};

use super::*;

/// 16 bits in network byte order.
pub type be16 = u16;
/// 32 bits in network byte order.
pub type be32 = u32;
/// 64 bits in network byte order.
pub type be64 = u64;

/// What a device really is. Provider libraries look behind the public part to see whether a
/// device is theirs: `ops` is compared with their own table, and must not be NULL.
#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const c_void,
    pub refcount: c_int,
    pub entry: [*mut c_void; 2],
    pub sysfs: *mut c_void,
    pub core_support: u64,
}

const _: () = assert!(core::mem::offset_of!(verbs_device, ops) == 664);
const _: () = assert!(size_of::<verbs_device>() == 712);

/// The value of `ibv_context::abi_compat` that says that a `verbs_context` lies around it.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// `ibv_port_attr` as it was when `ibv_query_port` was a function: it ends with `flags`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct _compat_ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
}

const _: () = assert!(size_of::<_compat_ibv_port_attr>() == 48);

/// Kind of a GID as `ibv_query_gid_type` tells it, which is not how `ibv_gid_entry` does.
pub type ibv_gid_type_sysfs = c_uint;
pub const IBV_GID_TYPE_SYSFS_IB_ROCE_V1: ibv_gid_type_sysfs = 0;
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: ibv_gid_type_sysfs = 1;

/// What a parent domain's allocator returns to leave the work to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// Declares types that are only passed by pointer, since no call that uses them is supported.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            pub struct $name {
                opaque: [u8; 0],
            }
        )*
    };
}

opaque! {
    ibv_buf
    ibv_counter_attach_attr
    ibv_counters
    ibv_counters_init_attr
    ibv_flow
    ibv_flow_action
    ibv_flow_action_esp_attr
    ibv_flow_attr
    verbs_ex_private
}
