//! Enumerations of devices, queue pairs and memory windows.

use feroce_engine::{QpState, QpType};
use feroce_mem::MwType;
use feroce_train::{Framing, LinkLayer};
use feroce_wire::Pmtu;

use super::table;

table! {
    /// The state of a queue pair.
    QpState, ibv_qp_state: qp_state, qp_state_of {
        Reset = IBV_QPS_RESET,
        Init = IBV_QPS_INIT,
        Rtr = IBV_QPS_RTR,
        Rts = IBV_QPS_RTS,
        Sqd = IBV_QPS_SQD,
        Sqe = IBV_QPS_SQE,
        Err = IBV_QPS_ERR,
    }
}

table! {
    /// The service of a queue pair.
    QpType, ibv_qp_type: qp_type, qp_type_of {
        Rc = IBV_QPT_RC,
        Uc = IBV_QPT_UC,
        Ud = IBV_QPT_UD,
        XrcIni = IBV_QPT_XRC_SEND,
        XrcTgt = IBV_QPT_XRC_RECV,
    }
}

table! {
    /// A path MTU.
    Pmtu, ibv_mtu: mtu, mtu_of {
        B256 = IBV_MTU_256,
        B512 = IBV_MTU_512,
        B1024 = IBV_MTU_1024,
        B2048 = IBV_MTU_2048,
        B4096 = IBV_MTU_4096,
    }
}

table! {
    /// The type of a memory window.
    MwType, ibv_mw_type: mw_type, mw_type_of {
        One = IBV_MW_TYPE_1,
        Two = IBV_MW_TYPE_2,
    }
}

table! {
    /// The type of an entry of the GID table.
    Framing, ibv_gid_type: gid_type, gid_type_of {
        InfiniBand = IBV_GID_TYPE_IB,
        RoceV1 = IBV_GID_TYPE_ROCE_V1,
        RoceV2 = IBV_GID_TYPE_ROCE_V2,
    }
}

table! {
    /// The link layer of a port.
    LinkLayer, ibv_link_layer: link_layer, link_layer_of {
        InfiniBand = IBV_LINK_LAYER_INFINIBAND,
        Ethernet = IBV_LINK_LAYER_ETHERNET,
    }
}
