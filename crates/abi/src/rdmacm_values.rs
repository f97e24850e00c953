//! Constants of `rdma_cma.h` and `rsocket.h`.

use core::ffi::{c_int, c_uint};

c_values! {
    rdma_cm_event_type: c_uint {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
        RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
        RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
        RDMA_CM_EVENT_USER = 18,
        RDMA_CM_EVENT_INTERNAL = 19,
    }
    rdma_port_space: c_uint {
        RDMA_PS_IPOIB = 2,
        RDMA_PS_TCP = 262,
        RDMA_PS_UDP = 273,
        RDMA_PS_IB = 319,
    }
    rdma_max: c_uint {
        RDMA_MAX_RESP_RES = 255,
        RDMA_MAX_INIT_DEPTH = 255,
    }
    rdma_cm_join_mc_attr_mask: c_uint {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 0x1,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 0x2,
        RDMA_CM_JOIN_MC_ATTR_RESERVED = 0x4,
    }
    rdma_cm_mc_join_flags: c_uint {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0x0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 0x1,
        RDMA_MC_JOIN_FLAG_RESERVED = 0x2,
    }
    rdma_option_level: c_uint {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
    }
    rdma_option_id: c_uint {
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }
    rdma_option_ib: c_uint {
        RDMA_OPTION_IB_PATH = 1,
    }
    rsocket_option: c_uint {
        RDMA_SQSIZE = 0,
        RDMA_RQSIZE = 1,
        RDMA_INLINE = 2,
        RDMA_IOMAPSIZE = 3,
        RDMA_ROUTE = 4,
    }
    rdma_addrinfo_flags: c_int {
        RAI_PASSIVE = 0x1,
        RAI_NUMERICHOST = 0x2,
        RAI_NOROUTE = 0x4,
        RAI_FAMILY = 0x8,
        RAI_SA = 0x10,
        RAI_DNS = 0x20,
    }
    rdma_qkey: u32 {
        RDMA_UDP_QKEY = 0x1234567,
    }
    address_family: libc::sa_family_t {
        AF_IB = 27,
    }
    rsocket_level: c_int {
        SOL_RDMA = 0x10000,
    }
}
