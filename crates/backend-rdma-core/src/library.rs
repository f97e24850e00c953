//! The libraries of the system, opened at run time.

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

use feroce_abi::*;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{Error, LibraryError};

/// Declares the functions of a library that are used, and how to find them.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident {
        $($function:ident: fn($($argument:ty),*) $(-> $result:ty)?,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $(pub(crate) $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the functions with these names.
                Ok(Self { $($function: *unsafe { library.get(stringify!($function)) }?,)* })
            }
        }
    };
}

functions! {
    /// Functions of libibverbs. Those that are inline in its header are called through the tables
    /// of an open device instead.
    Verbs {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device,
        ibv_free_device_list: fn(*mut *mut ibv_device),
        ibv_get_device_guid: fn(*mut ibv_device) -> be64,
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context,
        ibv_close_device: fn(*mut ibv_context) -> c_int,
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        ibv_query_port: fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int,
        ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut be16) -> c_int,
        _ibv_query_gid_table:
            fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
        ibv_ack_async_event: fn(*mut ibv_async_event),
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd,
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int,
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr,
        ibv_rereg_mr: fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int,
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int,
        ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
        ibv_destroy_ah: fn(*mut ibv_ah) -> c_int,
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel,
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int,
        ibv_get_cq_event:
            fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint),
        ibv_create_cq: fn(
            *mut ibv_context,
            c_int,
            *mut c_void,
            *mut ibv_comp_channel,
            c_int
        ) -> *mut ibv_cq,
        ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int,
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int,
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
        ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int,
        ibv_query_srq: fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int,
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int,
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        ibv_query_qp:
            fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int,
        ibv_attach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
        ibv_detach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    }
}

functions! {
    /// Functions of librdmacm.
    Rdmacm {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel,
        rdma_destroy_event_channel: fn(*mut rdma_event_channel),
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int,
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int,
        rdma_create_id: fn(
            *mut rdma_event_channel,
            *mut *mut rdma_cm_id,
            *mut c_void,
            rdma_port_space
        ) -> c_int,
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int,
        rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int,
        rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int,
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int,
        rdma_resolve_addr:
            fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int,
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int,
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int,
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int,
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int,
        rdma_establish: fn(*mut rdma_cm_id) -> c_int,
        rdma_notify: fn(*mut rdma_cm_id, ibv_event_type) -> c_int,
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int,
        rdma_join_multicast_ex:
            fn(*mut rdma_cm_id, *mut rdma_cm_join_mc_attr_ex, *mut c_void) -> c_int,
        rdma_leave_multicast: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int,
    }
}

/// librdmacm, as [`verbs`].
pub(crate) fn rdmacm(directory: Option<&Path>) -> Result<&'static Rdmacm, Error> {
    static RDMACM: OnceLock<Rdmacm> = OnceLock::new();
    load(&RDMACM, directory, "librdmacm.so.1", Rdmacm::find)
}

/// libibverbs. It is never unloaded, because its providers have threads and tables of their own.
/// Therefore the first successful call in a process decides from which directory it is loaded:
/// `directory` if given, else where the dynamic linker looks.
pub(crate) fn verbs(directory: Option<&Path>) -> Result<&'static Verbs, Error> {
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    load(&VERBS, directory, "libibverbs.so.1", Verbs::find)
}

/// The message of the dynamic linker, which libloading keeps as the source.
fn reason(e: libloading::Error) -> Box<dyn std::error::Error + Send + Sync> {
    std::error::Error::source(&e).map(ToString::to_string).map_or_else(|| e.into(), Into::into)
}

fn load<T>(
    once: &'static OnceLock<T>,
    directory: Option<&Path>,
    file: &str,
    find: fn(&Library) -> Result<T, libloading::Error>,
) -> Result<&'static T, Error> {
    if let Some(known) = once.get() {
        return Ok(known);
    }
    let path = directory.map_or_else(|| file.into(), |directory| directory.join(file));
    // SAFETY: what a library does when it is loaded is the same as for every program that is linked
    // with it, and it is never unloaded.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|e| LibraryError::NotFound(reason(e)))?;
    let found = find(&library).map_err(|e| LibraryError::TooOld(reason(e)))?;
    std::mem::forget(library);
    Ok(once.get_or_init(|| found))
}
