//! Address vectors.

use feroce_engine::AddrVec;
use feroce_wire::{Gid, Lid};

use crate::*;

/// The one port that a device of feroce has and that is used of others.
const PORT: u8 = 1;

/// The attributes of an address handle, on port 1. Without a GID the path is not global.
pub fn ah_attr(av: &AddrVec) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: u8::try_from(av.sgid_index).unwrap_or(u8::MAX),
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid.0,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: 0,
        is_global: u8::from(!av.dgid.is_zero()),
        port_num: PORT,
    }
}

/// The address vector of these attributes, of which `dgid` is the GID. Without a global route it
/// has none.
pub fn addr_vec(attr: &ibv_ah_attr, dgid: [u8; 16]) -> AddrVec {
    AddrVec {
        dgid: if attr.is_global == 0 { Gid::ZERO } else { Gid(dgid) },
        sgid_index: attr.grh.sgid_index.into(),
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        dlid: Lid(attr.dlid),
        src_path_bits: attr.src_path_bits,
    }
}
