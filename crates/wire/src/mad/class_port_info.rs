//! What a class of management can do at a port (IBTA vol1 13.4.8.1).

use crate::layout::layout;
use crate::{Gid, Lid, Pkey, Qkey, Qpn};

layout! {
    /// What a class can do, where requests should go instead, and where its traps go.
    ClassPortInfo, ClassPortInfoView, 72 {
        /// Version of the header.
        base_version: u8 = 0, 8;
        /// Version of the class.
        class_version: u8 = 8, 8;
        /// What the class can do.
        capability_mask: u16 = 16, 16;
        /// More of that.
        capability_mask_2: u32 = 32, 27;
        /// Longest time to an answer: 4.096 us times two to this power.
        resp_time: u8 = 59, 5;
        /// Where requests should go: the GID of a port.
        redirect_gid: Gid = 64, 128;
        /// Traffic class of requests.
        redirect_traffic_class: u8 = 192, 8;
        /// Service level of requests.
        redirect_sl: u8 = 200, 4;
        /// Flow label of requests.
        redirect_flow_label: u32 = 204, 20;
        /// LID of that port; zero: nowhere else.
        redirect_lid: Lid = 224, 16;
        /// P_Key of requests.
        redirect_pkey: Pkey = 240, 16;
        /// Queue pair for requests.
        redirect_qpn: Qpn = 264, 24;
        /// Its Q_Key.
        redirect_qkey: Qkey = 288, 32;
        /// Where traps go: the GID of a port.
        trap_gid: Gid = 320, 128;
        /// Traffic class of traps.
        trap_traffic_class: u8 = 448, 8;
        /// Service level of traps.
        trap_sl: u8 = 456, 4;
        /// Flow label of traps.
        trap_flow_label: u32 = 460, 20;
        /// LID of that port.
        trap_lid: Lid = 480, 16;
        /// P_Key of traps.
        trap_pkey: Pkey = 496, 16;
        /// Hop limit of traps.
        trap_hop_limit: u8 = 512, 8;
        /// Queue pair for traps.
        trap_qpn: Qpn = 520, 24;
        /// Its Q_Key.
        trap_qkey: Qkey = 544, 32;
    }
}
