//! Types of `rdma_cma.h`, and the path records of `sa.h` in them.

use core::ffi::{c_char, c_int, c_void};

use super::*;

c_types! {
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: be16,
        slid: be16,
        raw_traffic: c_int,
        flow_label: be32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: be16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    struct ibv_path_record {
        service_id: be64,
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: be16,
        slid: be16,
        flowlabel_hoplimit: be32,
        tclass: u8,
        reversible_numpath: u8,
        pkey: be16,
        qosclass_sl: be16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }

    struct ibv_path_data {
        flags: u32,
        reserved: u32,
        path: ibv_path_record,
    }

    struct sockaddr_ib {
        sib_family: libc::sa_family_t,
        sib_pkey: be16,
        sib_flowinfo: be32,
        sib_addr: [u8; 16],
        sib_sid: be64,
        sib_sid_mask: be64,
        sib_scope_id: u64,
    }

    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: be16,
    }

    struct rdma_addr {
        src: rdma_addr__anon_src,
        dst: rdma_addr__anon_dst,
        addr: rdma_addr__addr,
    }

    union rdma_addr__anon_src {
        src_addr: libc::sockaddr,
        src_sin: libc::sockaddr_in,
        src_sin6: libc::sockaddr_in6,
        src_storage: libc::sockaddr_storage,
    }

    union rdma_addr__anon_dst {
        dst_addr: libc::sockaddr,
        dst_sin: libc::sockaddr_in,
        dst_sin6: libc::sockaddr_in6,
        dst_storage: libc::sockaddr_storage,
    }

    union rdma_addr__addr {
        ibaddr: rdma_ib_addr,
    }

    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    struct rdma_event_channel {
        fd: c_int,
    }

    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event__param,
    }

    union rdma_cm_event__param {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
        arg: u64,
    }

    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: libc::socklen_t,
        ai_dst_len: libc::socklen_t,
        ai_src_addr: *mut libc::sockaddr,
        ai_dst_addr: *mut libc::sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut libc::sockaddr,
    }
}
