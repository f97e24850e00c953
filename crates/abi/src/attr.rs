//! Attributes that objects are made from, changed by and queried for.

use core::ffi::{c_int, c_uint, c_void};

use super::*;

c_types! {
    struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut ibv_buf,
    }

    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: ibv_srq_type,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: ibv_wq_type,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: ibv_wq_state,
        curr_wq_state: ibv_wq_state,
        flags: u32,
        flags_mask: u32,
    }

    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }

    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
    }

    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: ibv_qp_type,
    }

    struct ibv_qp_attr {
        qp_state: ibv_qp_state,
        cur_qp_state: ibv_qp_state,
        path_mtu: ibv_mtu,
        path_mig_state: ibv_mig_state,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }

    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    struct ibv_comp_cntr_init_attr {
        comp_mask: u32,
        type_: ibv_comp_cntr_type,
        flags: u32,
    }

    struct ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }

    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut c_void>,
        free: Option<unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut c_void,
            ptr: *mut c_void,
            resource_type: u64,
        )>,
        pd_context: *mut c_void,
    }

    struct ibv_dmah_init_attr {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }
}
