//! Objects of verbs: what `ibv_open_device`, `ibv_create_qp` and their like return. Programs read
//! their fields, and some are locked by inline functions of `verbs.h`, so all of them are public
//! whatever the header says.

use core::ffi::{c_char, c_int, c_void};

use super::*;

c_types! {
    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct _ibv_device_ops {
        _dummy1: Option<unsafe extern "C" fn(
            device: *mut ibv_device,
            cmd_fd: c_int,
        ) -> *mut ibv_context>,
        _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
    }

    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_td {
        context: *mut ibv_context,
    }

    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        type_: ibv_mw_type,
    }

    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const c_void,
            length: usize,
        ) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(
            host_addr: *mut c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }

    struct ibv_dmah {
        context: *mut ibv_context,
    }

    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: ibv_wq_state,
        wq_type: ibv_wq_type,
        post_recv: Option<unsafe extern "C" fn(
            current: *mut ibv_wq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int>,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }

    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }
}
