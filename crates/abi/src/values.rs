//! Constants of objects, work requests and completions.

use core::ffi::{c_int, c_uint};

c_values! {
    ibv_wc_status: c_uint {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    ibv_wc_opcode: c_uint {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5,
        IBV_WC_LOCAL_INV = 6,
        IBV_WC_TSO = 7,
        IBV_WC_FLUSH = 8,
        IBV_WC_ATOMIC_WRITE = 9,
        IBV_WC_RECV = 128,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        IBV_WC_TM_ADD = 130,
        IBV_WC_TM_DEL = 131,
        IBV_WC_TM_SYNC = 132,
        IBV_WC_TM_RECV = 133,
        IBV_WC_TM_NO_TAG = 134,
        IBV_WC_DRIVER1 = 135,
        IBV_WC_DRIVER2 = 136,
        IBV_WC_DRIVER3 = 137,
    }
    ibv_wc_shift: c_uint {
        IBV_WC_IP_CSUM_OK_SHIFT = 2,
    }
    ibv_create_cq_wc_flags: c_uint {
        IBV_WC_EX_WITH_BYTE_LEN = 0x1,
        IBV_WC_EX_WITH_IMM = 0x2,
        IBV_WC_EX_WITH_QP_NUM = 0x4,
        IBV_WC_EX_WITH_SRC_QP = 0x8,
        IBV_WC_EX_WITH_SLID = 0x10,
        IBV_WC_EX_WITH_SL = 0x20,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 0x40,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 0x80,
        IBV_WC_EX_WITH_CVLAN = 0x100,
        IBV_WC_EX_WITH_FLOW_TAG = 0x200,
        IBV_WC_EX_WITH_TM_INFO = 0x400,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 0x800,
    }
    ibv_wc_flag_set: c_uint {
        IBV_WC_STANDARD_FLAGS = 127,
    }
    ibv_wc_flag_range: c_uint {
        IBV_CREATE_CQ_SUP_WC_FLAGS = 4095,
    }
    ibv_wc_flags: c_uint {
        IBV_WC_GRH = 0x1,
        IBV_WC_WITH_IMM = 0x2,
        IBV_WC_IP_CSUM_OK = 0x4,
        IBV_WC_WITH_INV = 0x8,
        IBV_WC_TM_SYNC_REQ = 0x10,
        IBV_WC_TM_MATCH = 0x20,
        IBV_WC_TM_DATA_VALID = 0x40,
    }
    ibv_access_flags: c_uint {
        IBV_ACCESS_LOCAL_WRITE = 0x1,
        IBV_ACCESS_REMOTE_WRITE = 0x2,
        IBV_ACCESS_REMOTE_READ = 0x4,
        IBV_ACCESS_REMOTE_ATOMIC = 0x8,
        IBV_ACCESS_MW_BIND = 0x10,
        IBV_ACCESS_ZERO_BASED = 0x20,
        IBV_ACCESS_ON_DEMAND = 0x40,
        IBV_ACCESS_HUGETLB = 0x80,
        IBV_ACCESS_FLUSH_GLOBAL = 0x100,
        IBV_ACCESS_FLUSH_PERSISTENT = 0x200,
        IBV_ACCESS_RELAXED_ORDERING = 0x100000,
    }
    ibv_xrcd_init_attr_mask: c_uint {
        IBV_XRCD_INIT_ATTR_FD = 0x1,
        IBV_XRCD_INIT_ATTR_OFLAGS = 0x2,
        IBV_XRCD_INIT_ATTR_RESERVED = 0x4,
    }
    ibv_rereg_mr_flags: c_uint {
        IBV_REREG_MR_CHANGE_TRANSLATION = 0x1,
        IBV_REREG_MR_CHANGE_PD = 0x2,
        IBV_REREG_MR_CHANGE_ACCESS = 0x4,
        IBV_REREG_MR_FLAGS_SUPPORTED = 0x7,
    }
    ibv_mr_init_attr_mask: c_uint {
        IBV_REG_MR_MASK_IOVA = 0x1,
        IBV_REG_MR_MASK_ADDR = 0x2,
        IBV_REG_MR_MASK_FD = 0x4,
        IBV_REG_MR_MASK_FD_OFFSET = 0x8,
        IBV_REG_MR_MASK_DMAH = 0x10,
        IBV_REG_MR_MASK_BUF = 0x20,
    }
    ibv_mw_type: c_uint {
        IBV_MW_TYPE_1 = 1,
        IBV_MW_TYPE_2 = 2,
    }
    ibv_srq_attr_mask: c_uint {
        IBV_SRQ_MAX_WR = 0x1,
        IBV_SRQ_LIMIT = 0x2,
    }
    ibv_srq_type: c_uint {
        IBV_SRQT_BASIC = 0,
        IBV_SRQT_XRC = 1,
        IBV_SRQT_TM = 2,
    }
    ibv_srq_init_attr_mask: c_uint {
        IBV_SRQ_INIT_ATTR_TYPE = 0x1,
        IBV_SRQ_INIT_ATTR_PD = 0x2,
        IBV_SRQ_INIT_ATTR_XRCD = 0x4,
        IBV_SRQ_INIT_ATTR_CQ = 0x8,
        IBV_SRQ_INIT_ATTR_TM = 0x10,
        IBV_SRQ_INIT_ATTR_RESERVED = 0x20,
    }
    ibv_wq_type: c_uint {
        IBV_WQT_RQ = 0,
    }
    ibv_wq_init_attr_mask: c_uint {
        IBV_WQ_INIT_ATTR_FLAGS = 0x1,
        IBV_WQ_INIT_ATTR_RESERVED = 0x2,
    }
    ibv_wq_flags: c_uint {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 0x1,
        IBV_WQ_FLAGS_SCATTER_FCS = 0x2,
        IBV_WQ_FLAGS_DELAY_DROP = 0x4,
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 0x8,
        IBV_WQ_FLAGS_RESERVED = 0x10,
    }
    ibv_wq_state: c_uint {
        IBV_WQS_RESET = 0,
        IBV_WQS_RDY = 1,
        IBV_WQS_ERR = 2,
        IBV_WQS_UNKNOWN = 3,
    }
    ibv_wq_attr_mask: c_uint {
        IBV_WQ_ATTR_STATE = 0x1,
        IBV_WQ_ATTR_CURR_STATE = 0x2,
        IBV_WQ_ATTR_FLAGS = 0x4,
        IBV_WQ_ATTR_RESERVED = 0x8,
    }
    ibv_ind_table_init_attr_mask: c_uint {
        IBV_CREATE_IND_TABLE_RESERVED = 0x1,
    }
    ibv_qp_type: c_uint {
        IBV_QPT_RC = 2,
        IBV_QPT_UC = 3,
        IBV_QPT_UD = 4,
        IBV_QPT_RAW_PACKET = 8,
        IBV_QPT_XRC_SEND = 9,
        IBV_QPT_XRC_RECV = 10,
        IBV_QPT_DRIVER = 255,
    }
    ibv_qp_init_attr_mask: c_uint {
        IBV_QP_INIT_ATTR_PD = 0x1,
        IBV_QP_INIT_ATTR_XRCD = 0x2,
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 0x4,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 0x8,
        IBV_QP_INIT_ATTR_IND_TABLE = 0x10,
        IBV_QP_INIT_ATTR_RX_HASH = 0x20,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 0x40,
    }
    ibv_qp_create_flags: c_uint {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 0x2,
        IBV_QP_CREATE_SCATTER_FCS = 0x100,
        IBV_QP_CREATE_CVLAN_STRIPPING = 0x200,
        IBV_QP_CREATE_SOURCE_QPN = 0x400,
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 0x800,
    }
    ibv_qp_create_send_ops_flags: c_uint {
        IBV_QP_EX_WITH_RDMA_WRITE = 0x1,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 0x2,
        IBV_QP_EX_WITH_SEND = 0x4,
        IBV_QP_EX_WITH_SEND_WITH_IMM = 0x8,
        IBV_QP_EX_WITH_RDMA_READ = 0x10,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 0x20,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 0x40,
        IBV_QP_EX_WITH_LOCAL_INV = 0x80,
        IBV_QP_EX_WITH_BIND_MW = 0x100,
        IBV_QP_EX_WITH_SEND_WITH_INV = 0x200,
        IBV_QP_EX_WITH_TSO = 0x400,
        IBV_QP_EX_WITH_FLUSH = 0x800,
        IBV_QP_EX_WITH_ATOMIC_WRITE = 0x1000,
    }
    ibv_qp_open_attr_mask: c_uint {
        IBV_QP_OPEN_ATTR_NUM = 0x1,
        IBV_QP_OPEN_ATTR_XRCD = 0x2,
        IBV_QP_OPEN_ATTR_CONTEXT = 0x4,
        IBV_QP_OPEN_ATTR_TYPE = 0x8,
        IBV_QP_OPEN_ATTR_RESERVED = 0x10,
    }
    ibv_qp_attr_mask: c_uint {
        IBV_QP_STATE = 0x1,
        IBV_QP_CUR_STATE = 0x2,
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 0x4,
        IBV_QP_ACCESS_FLAGS = 0x8,
        IBV_QP_PKEY_INDEX = 0x10,
        IBV_QP_PORT = 0x20,
        IBV_QP_QKEY = 0x40,
        IBV_QP_AV = 0x80,
        IBV_QP_PATH_MTU = 0x100,
        IBV_QP_TIMEOUT = 0x200,
        IBV_QP_RETRY_CNT = 0x400,
        IBV_QP_RNR_RETRY = 0x800,
        IBV_QP_RQ_PSN = 0x1000,
        IBV_QP_MAX_QP_RD_ATOMIC = 0x2000,
        IBV_QP_ALT_PATH = 0x4000,
        IBV_QP_MIN_RNR_TIMER = 0x8000,
        IBV_QP_SQ_PSN = 0x10000,
        IBV_QP_MAX_DEST_RD_ATOMIC = 0x20000,
        IBV_QP_PATH_MIG_STATE = 0x40000,
        IBV_QP_CAP = 0x80000,
        IBV_QP_DEST_QPN = 0x100000,
        IBV_QP_RATE_LIMIT = 0x2000000,
    }
    ibv_query_qp_data_in_order_flags: c_uint {
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 0x1,
        IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 0x2,
    }
    ibv_query_qp_data_in_order_caps: c_uint {
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1,
        IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 2,
    }
    ibv_qp_state: c_uint {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
        IBV_QPS_UNKNOWN = 7,
    }
    ibv_mig_state: c_uint {
        IBV_MIG_MIGRATED = 0,
        IBV_MIG_REARM = 1,
        IBV_MIG_ARMED = 2,
    }
    ibv_wr_opcode: c_uint {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_FLUSH = 14,
        IBV_WR_ATOMIC_WRITE = 15,
    }
    ibv_send_flags: c_uint {
        IBV_SEND_FENCE = 0x1,
        IBV_SEND_SIGNALED = 0x2,
        IBV_SEND_SOLICITED = 0x4,
        IBV_SEND_INLINE = 0x8,
        IBV_SEND_IP_CSUM = 0x10,
    }
    ibv_placement_type: c_uint {
        IBV_FLUSH_GLOBAL = 1,
        IBV_FLUSH_PERSISTENT = 2,
    }
    ibv_selectivity_level: c_uint {
        IBV_FLUSH_RANGE = 0,
        IBV_FLUSH_MR = 1,
    }
    ibv_ops_wr_opcode: c_uint {
        IBV_WR_TAG_ADD = 0,
        IBV_WR_TAG_DEL = 1,
        IBV_WR_TAG_SYNC = 2,
    }
    ibv_ops_flags: c_uint {
        IBV_OPS_SIGNALED = 0x1,
        IBV_OPS_TM_SYNC = 0x2,
    }
    ibv_cq_attr_mask: c_uint {
        IBV_CQ_ATTR_MODERATE = 0x1,
        IBV_CQ_ATTR_RESERVED = 0x2,
    }
    ibv_cq_init_attr_mask: c_uint {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 0x1,
        IBV_CQ_INIT_ATTR_MASK_PD = 0x2,
    }
    ibv_create_cq_attr_flags: c_uint {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 0x1,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 0x2,
    }
    ibv_qp_attach_comp_cntr_op: c_uint {
        IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 0x1,
        IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 0x2,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 0x4,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 0x8,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 0x10,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 0x20,
    }
    ibv_comp_cntr_type: c_uint {
        IBV_COMP_CNTR_TYPE_WRS = 0,
        IBV_COMP_CNTR_TYPE_BYTES = 1,
    }
    ibv_parent_domain_init_attr_mask: c_uint {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 0x1,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 0x2,
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 0x4,
    }
    ibv_tph_mem_type: c_uint {
        IBV_TPH_MEM_TYPE_VM = 0,
        IBV_TPH_MEM_TYPE_PM = 1,
    }
    ibv_dmah_init_attr_mask: c_uint {
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 0x1,
        IBV_DMAH_INIT_ATTR_MASK_PH = 0x2,
        IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 0x4,
    }
    ibv_rereg_mr_err_code: c_int {
        IBV_REREG_MR_ERR_INPUT = -1,
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        IBV_REREG_MR_ERR_CMD = -4,
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }
    ib_uverbs_advise_mr_advice: c_uint {
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }
    ib_uverbs_advise_mr_flag: u32 {
        IBV_ADVISE_MR_FLAG_FLUSH = 1,
    }
    ib_uverbs_query_port_flags: u8 {
        IBV_QPF_GRH_REQUIRED = 1,
    }
    ib_uverbs_access_flags: c_uint {
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff00000,
    }
}
