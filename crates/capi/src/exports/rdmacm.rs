//! librdmacm, rsockets included.

use crate::{rdmacm, rsocket};

exports! {
    "RDMACM_1.0" {
        rdma_create_event_channel => rdmacm::channel::rdma_create_event_channel,
        rdma_destroy_event_channel => rdmacm::channel::rdma_destroy_event_channel,
        rdma_create_id => rdmacm::id::rdma_create_id,
        rdma_destroy_id => rdmacm::id::rdma_destroy_id,
        rdma_bind_addr => rdmacm::resolve::rdma_bind_addr,
        rdma_resolve_addr => rdmacm::resolve::rdma_resolve_addr,
        rdma_resolve_route => rdmacm::resolve::rdma_resolve_route,
        rdma_create_qp => rdmacm::qp::rdma_create_qp,
        rdma_destroy_qp => rdmacm::qp::rdma_destroy_qp,
        rdma_connect => rdmacm::connect::rdma_connect,
        rdma_listen => rdmacm::resolve::rdma_listen,
        rdma_accept => rdmacm::connect::rdma_accept,
        rdma_reject => rdmacm::connect::rdma_reject,
        rdma_notify => rdmacm::connect::rdma_notify,
        rdma_disconnect => rdmacm::connect::rdma_disconnect,
        rdma_get_cm_event => rdmacm::event::rdma_get_cm_event,
        rdma_ack_cm_event => rdmacm::taken::rdma_ack_cm_event,
        rdma_get_src_port => rdmacm::address::rdma_get_src_port,
        rdma_get_dst_port => rdmacm::address::rdma_get_dst_port,
        rdma_join_multicast => rdmacm::multicast::rdma_join_multicast,
        rdma_leave_multicast => rdmacm::multicast::rdma_leave_multicast,
        rdma_get_devices => rdmacm::devices::rdma_get_devices,
        rdma_free_devices => rdmacm::devices::rdma_free_devices,
        rdma_event_str => rdmacm::event::rdma_event_str,
        rdma_set_option => rdmacm::option::rdma_set_option,
        rdma_migrate_id => rdmacm::id::rdma_migrate_id,
        rdma_getaddrinfo => rdmacm::addrinfo::rdma_getaddrinfo,
        rdma_freeaddrinfo => rdmacm::addrinfo::rdma_freeaddrinfo,
        rdma_get_request => rdmacm::endpoint::rdma_get_request,
        rdma_create_ep => rdmacm::endpoint::rdma_create_ep,
        rdma_destroy_ep => rdmacm::endpoint::rdma_destroy_ep,
        rdma_create_srq => rdmacm::srq::rdma_create_srq,
        rdma_destroy_srq => rdmacm::srq::rdma_destroy_srq,
        rsocket => rsocket::calls::rsocket,
        rbind => rsocket::calls::rbind,
        rlisten => rsocket::calls::rlisten,
        raccept => rsocket::calls::raccept,
        rconnect => rsocket::calls::rconnect,
        rshutdown => rsocket::calls::rshutdown,
        rclose => rsocket::calls::rclose,
        rrecv => rsocket::transfer::rrecv,
        rrecvfrom => rsocket::transfer::rrecvfrom,
        rrecvmsg => rsocket::transfer::rrecvmsg,
        rsend => rsocket::transfer::rsend,
        rsendto => rsocket::transfer::rsendto,
        rsendmsg => rsocket::transfer::rsendmsg,
        rread => rsocket::transfer::rread,
        rreadv => rsocket::transfer::rreadv,
        rwrite => rsocket::transfer::rwrite,
        rwritev => rsocket::transfer::rwritev,
        rpoll => rsocket::poll::rpoll,
        rselect => rsocket::poll::rselect,
        rgetpeername => rsocket::calls::rgetpeername,
        rgetsockname => rsocket::calls::rgetsockname,
        rsetsockopt => rsocket::option::rsetsockopt,
        rgetsockopt => rsocket::option::rgetsockopt,
        rfcntl => rsocket::option::rfcntl,
        riomap => rsocket::iomap::riomap,
        riounmap => rsocket::iomap::riounmap,
        riowrite => rsocket::iomap::riowrite,
        rdma_create_srq_ex => rdmacm::srq::rdma_create_srq_ex,
        rdma_create_qp_ex => rdmacm::qp::rdma_create_qp_ex,
    }
    "RDMACM_1.1" {
        rdma_join_multicast_ex => rdmacm::multicast::rdma_join_multicast_ex,
    }
    "RDMACM_1.2" {
        rdma_establish => rdmacm::connect::rdma_establish,
        rdma_init_qp_attr => rdmacm::qp_attr::rdma_init_qp_attr,
    }
    "RDMACM_1.3" {
        rdma_get_remote_ece => rdmacm::ece::rdma_get_remote_ece,
        rdma_reject_ece => rdmacm::connect::rdma_reject,
        rdma_set_local_ece => rdmacm::ece::rdma_set_local_ece,
    }
    "RDMACM_1.4" {
        rdma_query_addrinfo => rdmacm::resolved::rdma_query_addrinfo,
        rdma_resolve_addrinfo => rdmacm::resolved::rdma_resolve_addrinfo,
        rdma_write_cm_event => rdmacm::resolved::rdma_write_cm_event,
    }
    "RDMACM_1.5" {
        repoll_create => rsocket::poll::repoll_create,
        repoll_ctl => rsocket::poll::repoll_ctl,
        repoll_wait => rsocket::poll::repoll_wait,
    }
}
