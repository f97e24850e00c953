//! Numbers of commands and attributes, as in `rdma/rdma_netlink.h`, without the prefixes of their
//! names.

/// Commands.
pub(crate) mod command {
    pub(crate) const GET: u16 = 1;
    pub(crate) const PORT_GET: u16 = 5;
    pub(crate) const SYS_GET: u16 = 6;
    pub(crate) const RES_GET: u16 = 9;
    pub(crate) const RES_QP_GET: u16 = 10;
    pub(crate) const RES_CM_ID_GET: u16 = 11;
    pub(crate) const RES_CQ_GET: u16 = 12;
    pub(crate) const RES_MR_GET: u16 = 13;
    pub(crate) const RES_PD_GET: u16 = 14;
    pub(crate) const STAT_GET: u16 = 17;
    pub(crate) const RES_CTX_GET: u16 = 22;
    pub(crate) const RES_SRQ_GET: u16 = 23;
    pub(crate) const STAT_GET_STATUS: u16 = 24;
    /// The last one of Linux 6.18. Those behind it are not commands.
    pub(crate) const LAST: u16 = 30;
}

/// Attributes.
pub(crate) mod attribute {
    pub(crate) const DEV_INDEX: u16 = 1;
    pub(crate) const DEV_NAME: u16 = 2;
    pub(crate) const PORT_INDEX: u16 = 3;
    pub(crate) const CAP_FLAGS: u16 = 4;
    pub(crate) const FW_VERSION: u16 = 5;
    pub(crate) const NODE_GUID: u16 = 6;
    pub(crate) const SYS_IMAGE_GUID: u16 = 7;
    pub(crate) const PORT_STATE: u16 = 12;
    pub(crate) const PORT_PHYS_STATE: u16 = 13;
    pub(crate) const DEV_NODE_TYPE: u16 = 14;
    pub(crate) const RES_SUMMARY: u16 = 15;
    pub(crate) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(crate) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(crate) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(crate) const RES_QP: u16 = 19;
    pub(crate) const RES_QP_ENTRY: u16 = 20;
    pub(crate) const RES_LQPN: u16 = 21;
    pub(crate) const RES_RQPN: u16 = 22;
    pub(crate) const RES_RQ_PSN: u16 = 23;
    pub(crate) const RES_SQ_PSN: u16 = 24;
    pub(crate) const RES_PATH_MIG_STATE: u16 = 25;
    pub(crate) const RES_TYPE: u16 = 26;
    pub(crate) const RES_STATE: u16 = 27;
    pub(crate) const RES_PID: u16 = 28;
    pub(crate) const RES_CM_ID: u16 = 30;
    pub(crate) const RES_CM_ID_ENTRY: u16 = 31;
    pub(crate) const RES_PS: u16 = 32;
    pub(crate) const RES_SRC_ADDR: u16 = 33;
    pub(crate) const RES_DST_ADDR: u16 = 34;
    pub(crate) const RES_CQ: u16 = 35;
    pub(crate) const RES_CQ_ENTRY: u16 = 36;
    pub(crate) const RES_CQE: u16 = 37;
    pub(crate) const RES_USECNT: u16 = 38;
    pub(crate) const RES_MR: u16 = 40;
    pub(crate) const RES_MR_ENTRY: u16 = 41;
    pub(crate) const RES_RKEY: u16 = 42;
    pub(crate) const RES_LKEY: u16 = 43;
    pub(crate) const RES_MRLEN: u16 = 45;
    pub(crate) const RES_PD: u16 = 46;
    pub(crate) const RES_PD_ENTRY: u16 = 47;
    pub(crate) const RES_LOCAL_DMA_LKEY: u16 = 48;
    pub(crate) const NDEV_INDEX: u16 = 50;
    pub(crate) const NDEV_NAME: u16 = 51;
    pub(crate) const RES_PDN: u16 = 60;
    pub(crate) const RES_CQN: u16 = 61;
    pub(crate) const RES_MRN: u16 = 62;
    pub(crate) const RES_CM_IDN: u16 = 63;
    pub(crate) const RES_CTXN: u16 = 64;
    pub(crate) const SYS_NETNS_MODE: u16 = 66;
    pub(crate) const DEV_PROTOCOL: u16 = 67;
    pub(crate) const STAT_RES: u16 = 75;
    pub(crate) const STAT_HWCOUNTERS: u16 = 80;
    pub(crate) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(crate) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(crate) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(crate) const DEV_DIM: u16 = 84;
    pub(crate) const RES_CTX: u16 = 86;
    pub(crate) const RES_CTX_ENTRY: u16 = 87;
    pub(crate) const RES_SRQ: u16 = 88;
    pub(crate) const RES_SRQ_ENTRY: u16 = 89;
    pub(crate) const RES_SRQN: u16 = 90;
    pub(crate) const SYS_COPY_ON_FORK: u16 = 93;
    pub(crate) const STAT_HWCOUNTER_INDEX: u16 = 94;
}
