//! Events and parameters of the connection manager.

use core::ptr;

use feroce_cm::rdma::{ConnParam, EventKind};
use feroce_wire::Qpn;

use super::table;
use crate::*;

table! {
    /// The kind of an event.
    EventKind, rdma_cm_event_type: cm_event, cm_event_of {
        AddrResolved = RDMA_CM_EVENT_ADDR_RESOLVED,
        AddrError = RDMA_CM_EVENT_ADDR_ERROR,
        RouteResolved = RDMA_CM_EVENT_ROUTE_RESOLVED,
        RouteError = RDMA_CM_EVENT_ROUTE_ERROR,
        ConnectRequest = RDMA_CM_EVENT_CONNECT_REQUEST,
        ConnectResponse = RDMA_CM_EVENT_CONNECT_RESPONSE,
        ConnectError = RDMA_CM_EVENT_CONNECT_ERROR,
        Unreachable = RDMA_CM_EVENT_UNREACHABLE,
        Rejected = RDMA_CM_EVENT_REJECTED,
        Established = RDMA_CM_EVENT_ESTABLISHED,
        Disconnected = RDMA_CM_EVENT_DISCONNECTED,
        DeviceRemoval = RDMA_CM_EVENT_DEVICE_REMOVAL,
        MulticastJoin = RDMA_CM_EVENT_MULTICAST_JOIN,
        MulticastError = RDMA_CM_EVENT_MULTICAST_ERROR,
        AddrChange = RDMA_CM_EVENT_ADDR_CHANGE,
        TimewaitExit = RDMA_CM_EVENT_TIMEWAIT_EXIT,
        AddrInfoResolved = RDMA_CM_EVENT_ADDRINFO_RESOLVED,
        User = RDMA_CM_EVENT_USER,
    }
}

/// Parameters of a connection, without private data.
pub fn conn_param(param: &ConnParam) -> rdma_conn_param {
    rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qpn.get(),
    }
}

/// Parameters of a connection, without private data.
pub fn conn_param_of(param: &rdma_conn_param) -> ConnParam {
    ConnParam {
        private_data: Vec::new(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq != 0,
        qpn: Qpn::new(param.qp_num),
    }
}
