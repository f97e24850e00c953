//! Constants that describe devices, ports and their events.

use core::ffi::{c_int, c_uint};

c_values! {
    ibv_gid_type: c_uint {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
    ibv_node_type: c_int {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }
    ibv_transport_type: c_int {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }
    ibv_device_cap_flags: c_uint {
        IBV_DEVICE_RESIZE_MAX_WR = 0x1,
        IBV_DEVICE_BAD_PKEY_CNTR = 0x2,
        IBV_DEVICE_BAD_QKEY_CNTR = 0x4,
        IBV_DEVICE_RAW_MULTI = 0x8,
        IBV_DEVICE_AUTO_PATH_MIG = 0x10,
        IBV_DEVICE_CHANGE_PHY_PORT = 0x20,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 0x40,
        IBV_DEVICE_CURR_QP_STATE_MOD = 0x80,
        IBV_DEVICE_SHUTDOWN_PORT = 0x100,
        IBV_DEVICE_INIT_TYPE = 0x200,
        IBV_DEVICE_PORT_ACTIVE_EVENT = 0x400,
        IBV_DEVICE_SYS_IMAGE_GUID = 0x800,
        IBV_DEVICE_RC_RNR_NAK_GEN = 0x1000,
        IBV_DEVICE_SRQ_RESIZE = 0x2000,
        IBV_DEVICE_N_NOTIFY_CQ = 0x4000,
        IBV_DEVICE_MEM_WINDOW = 0x20000,
        IBV_DEVICE_UD_IP_CSUM = 0x40000,
        IBV_DEVICE_XRC = 0x100000,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 0x200000,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 0x800000,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 0x1000000,
        IBV_DEVICE_RC_IP_CSUM = 0x2000000,
        IBV_DEVICE_RAW_IP_CSUM = 0x4000000,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 0x20000000,
    }
    ibv_fork_status: c_uint {
        IBV_FORK_DISABLED = 0,
        IBV_FORK_ENABLED = 1,
        IBV_FORK_UNNEEDED = 2,
    }
    ibv_atomic_cap: c_uint {
        IBV_ATOMIC_NONE = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_ATOMIC_GLOB = 2,
    }
    ibv_dm_mask: c_uint {
        IBV_DM_MASK_HANDLE = 0x1,
    }
    ibv_odp_general_caps: c_uint {
        IBV_ODP_SUPPORT = 1,
        IBV_ODP_SUPPORT_IMPLICIT = 2,
    }
    ibv_odp_transport_cap_bits: c_uint {
        IBV_ODP_SUPPORT_SEND = 0x1,
        IBV_ODP_SUPPORT_RECV = 0x2,
        IBV_ODP_SUPPORT_WRITE = 0x4,
        IBV_ODP_SUPPORT_READ = 0x8,
        IBV_ODP_SUPPORT_ATOMIC = 0x10,
        IBV_ODP_SUPPORT_SRQ_RECV = 0x20,
        IBV_ODP_SUPPORT_FLUSH = 0x40,
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 0x80,
    }
    ibv_rx_hash_function_flags: c_uint {
        IBV_RX_HASH_FUNC_TOEPLITZ = 0x1,
    }
    ibv_rx_hash_fields: c_uint {
        IBV_RX_HASH_SRC_IPV4 = 0x1,
        IBV_RX_HASH_DST_IPV4 = 0x2,
        IBV_RX_HASH_SRC_IPV6 = 0x4,
        IBV_RX_HASH_DST_IPV6 = 0x8,
        IBV_RX_HASH_SRC_PORT_TCP = 0x10,
        IBV_RX_HASH_DST_PORT_TCP = 0x20,
        IBV_RX_HASH_SRC_PORT_UDP = 0x40,
        IBV_RX_HASH_DST_PORT_UDP = 0x80,
        IBV_RX_HASH_IPSEC_SPI = 0x100,
        IBV_RX_HASH_INNER = 0x80000000,
    }
    ibv_raw_packet_caps: c_uint {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 0x1,
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 0x2,
        IBV_RAW_PACKET_CAP_IP_CSUM = 0x4,
        IBV_RAW_PACKET_CAP_DELAY_DROP = 0x8,
    }
    ibv_tm_cap_flags: c_uint {
        IBV_TM_CAP_RC = 0x1,
    }
    ibv_pci_atomic_op_size: c_uint {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1,
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 2,
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 4,
    }
    ibv_mtu: c_uint {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }
    ibv_port_state: c_uint {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    ibv_link_layer: c_uint {
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
    }
    ibv_port_cap_flags: c_uint {
        IBV_PORT_SM = 0x2,
        IBV_PORT_NOTICE_SUP = 0x4,
        IBV_PORT_TRAP_SUP = 0x8,
        IBV_PORT_OPT_IPD_SUP = 0x10,
        IBV_PORT_AUTO_MIGR_SUP = 0x20,
        IBV_PORT_SL_MAP_SUP = 0x40,
        IBV_PORT_MKEY_NVRAM = 0x80,
        IBV_PORT_PKEY_NVRAM = 0x100,
        IBV_PORT_LED_INFO_SUP = 0x200,
        IBV_PORT_SYS_IMAGE_GUID_SUP = 0x800,
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 0x1000,
        IBV_PORT_EXTENDED_SPEEDS_SUP = 0x4000,
        IBV_PORT_CAP_MASK2_SUP = 0x8000,
        IBV_PORT_CM_SUP = 0x10000,
        IBV_PORT_SNMP_TUNNEL_SUP = 0x20000,
        IBV_PORT_REINIT_SUP = 0x40000,
        IBV_PORT_DEVICE_MGMT_SUP = 0x80000,
        IBV_PORT_VENDOR_CLASS_SUP = 0x100000,
        IBV_PORT_DR_NOTICE_SUP = 0x200000,
        IBV_PORT_CAP_MASK_NOTICE_SUP = 0x400000,
        IBV_PORT_BOOT_MGMT_SUP = 0x800000,
        IBV_PORT_LINK_LATENCY_SUP = 0x1000000,
        IBV_PORT_CLIENT_REG_SUP = 0x2000000,
        IBV_PORT_IP_BASED_GIDS = 0x4000000,
    }
    ibv_port_cap_flags2: c_uint {
        IBV_PORT_SET_NODE_DESC_SUP = 0x1,
        IBV_PORT_INFO_EXT_SUP = 0x2,
        IBV_PORT_VIRT_SUP = 0x4,
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 0x8,
        IBV_PORT_LINK_WIDTH_2X_SUP = 0x10,
        IBV_PORT_LINK_SPEED_HDR_SUP = 0x20,
        IBV_PORT_LINK_SPEED_NDR_SUP = 0x400,
        IBV_PORT_LINK_SPEED_XDR_SUP = 0x1000,
    }
    ibv_event_type: c_uint {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }
    ibv_rate: c_uint {
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }
    ibv_sysfs_max: c_uint {
        IBV_SYSFS_NAME_MAX = 0x40,
        IBV_SYSFS_PATH_MAX = 0x100,
    }
    ibv_values_mask: c_uint {
        IBV_VALUES_MASK_RAW_CLOCK = 0x1,
        IBV_VALUES_MASK_RESERVED = 0x2,
    }
}
