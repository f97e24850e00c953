//! Work requests, completions and addresses.

use core::ffi::{c_int, c_uint, c_void};

use super::*;

c_types! {
    union ibv_gid {
        raw: [u8; 16],
        global: ibv_gid__global,
    }

    struct ibv_gid__global {
        subnet_prefix: be64,
        interface_id: be64,
    }

    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    struct ibv_fd_arr {
        arr: *mut c_int,
        count: u32,
    }

    struct ibv_grh {
        version_tclass_flow: be32,
        paylen: be16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        imm: ibv_send_wr__anon_imm,
        wr: ibv_send_wr__wr,
        qp_type: ibv_send_wr__qp_type,
        op: ibv_send_wr__anon_op,
    }

    union ibv_send_wr__anon_imm {
        imm_data: be32,
        invalidate_rkey: u32,
    }

    union ibv_send_wr__wr {
        rdma: ibv_send_wr__wr__rdma,
        atomic: ibv_send_wr__wr__atomic,
        ud: ibv_send_wr__wr__ud,
    }

    struct ibv_send_wr__wr__rdma {
        remote_addr: u64,
        rkey: u32,
    }

    struct ibv_send_wr__wr__atomic {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    struct ibv_send_wr__wr__ud {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    union ibv_send_wr__qp_type {
        xrc: ibv_send_wr__qp_type__xrc,
    }

    struct ibv_send_wr__qp_type__xrc {
        remote_srqn: u32,
    }

    union ibv_send_wr__anon_op {
        bind_mw: ibv_send_wr__anon_op__bind_mw,
        tso: ibv_send_wr__anon_op__tso,
    }

    struct ibv_send_wr__anon_op__bind_mw {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_send_wr__anon_op__tso {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: ibv_ops_wr_opcode,
        flags: c_int,
        tm: ibv_ops_wr__tm,
    }

    struct ibv_ops_wr__tm {
        unexpected_cnt: u32,
        handle: u32,
        add: ibv_ops_wr__tm__add,
    }

    struct ibv_ops_wr__tm__add {
        recv_wr_id: u64,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        tag: u64,
        mask: u64,
    }

    struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        imm: ibv_wc__anon_imm,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    union ibv_wc__anon_imm {
        imm_data: be32,
        invalidated_rkey: u32,
    }

    struct ibv_wc_tm_info {
        tag: u64,
        priv_: u32,
    }

    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    struct ibv_async_event {
        element: ibv_async_event__element,
        event_type: ibv_event_type,
    }

    union ibv_async_event__element {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }
}
