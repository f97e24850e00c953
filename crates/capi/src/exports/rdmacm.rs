//! librdmacm, rsockets included.

use crate::stub;

exports! {
    "RDMACM_1.0" {
        rdma_create_event_channel => stub::null,
        rdma_destroy_event_channel => stub::zero,
        rdma_create_id => stub::minus_one,
        rdma_destroy_id => stub::minus_one,
        rdma_bind_addr => stub::minus_one,
        rdma_resolve_addr => stub::minus_one,
        rdma_resolve_route => stub::minus_one,
        rdma_create_qp => stub::minus_one,
        rdma_destroy_qp => stub::zero,
        rdma_connect => stub::minus_one,
        rdma_listen => stub::minus_one,
        rdma_accept => stub::minus_one,
        rdma_reject => stub::minus_one,
        rdma_notify => stub::minus_one,
        rdma_disconnect => stub::minus_one,
        rdma_get_cm_event => stub::minus_one,
        rdma_ack_cm_event => stub::minus_one,
        rdma_get_src_port => stub::minus_one,
        rdma_get_dst_port => stub::minus_one,
        rdma_join_multicast => stub::minus_one,
        rdma_leave_multicast => stub::minus_one,
        rdma_get_devices => stub::no_list,
        rdma_free_devices => stub::zero,
        rdma_event_str => stub::null,
        rdma_set_option => stub::minus_one,
        rdma_migrate_id => stub::minus_one,
        rdma_getaddrinfo => stub::minus_one,
        rdma_freeaddrinfo => stub::zero,
        rdma_get_request => stub::minus_one,
        rdma_create_ep => stub::minus_one,
        rdma_destroy_ep => stub::zero,
        rdma_create_srq => stub::minus_one,
        rdma_destroy_srq => stub::minus_one,
        rsocket => stub::minus_one,
        rbind => stub::minus_one,
        rlisten => stub::minus_one,
        raccept => stub::minus_one,
        rconnect => stub::minus_one,
        rshutdown => stub::minus_one,
        rclose => stub::minus_one,
        rrecv => stub::minus_one,
        rrecvfrom => stub::minus_one,
        rrecvmsg => stub::minus_one,
        rsend => stub::minus_one,
        rsendto => stub::minus_one,
        rsendmsg => stub::minus_one,
        rread => stub::minus_one,
        rreadv => stub::minus_one,
        rwrite => stub::minus_one,
        rwritev => stub::minus_one,
        rpoll => stub::minus_one,
        rselect => stub::minus_one,
        rgetpeername => stub::minus_one,
        rgetsockname => stub::minus_one,
        rsetsockopt => stub::minus_one,
        rgetsockopt => stub::minus_one,
        rfcntl => stub::minus_one,
        riomap => stub::minus_one,
        riounmap => stub::minus_one,
        riowrite => stub::minus_one,
        rdma_create_srq_ex => stub::minus_one,
        rdma_create_qp_ex => stub::minus_one,
    }
    "RDMACM_1.1" {
        rdma_join_multicast_ex => stub::minus_one,
    }
    "RDMACM_1.2" {
        rdma_establish => stub::minus_one,
        rdma_init_qp_attr => stub::minus_one,
    }
    "RDMACM_1.3" {
        rdma_get_remote_ece => stub::minus_one,
        rdma_reject_ece => stub::minus_one,
        rdma_set_local_ece => stub::minus_one,
    }
    "RDMACM_1.4" {
        rdma_query_addrinfo => stub::minus_one,
        rdma_resolve_addrinfo => stub::minus_one,
        rdma_write_cm_event => stub::minus_one,
    }
    "RDMACM_1.5" {
        repoll_create => stub::minus_one,
        repoll_ctl => stub::minus_one,
        repoll_wait => stub::minus_one,
    }
}
