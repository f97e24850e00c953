//! Types of `umad.h`.

use core::ffi::{c_char, c_int, c_uint};

use super::*;

/// Bytes of the name of an adapter.
pub const UMAD_CA_NAME_LEN: usize = 20;
/// Ports of an adapter that a description has room for, port 0 included.
pub const UMAD_CA_MAX_PORTS: usize = 10;
/// The program cuts and joins segments itself.
pub const UMAD_USER_RMPP: u32 = 1;

c_types! {
    struct ib_mad_addr {
        qpn: be32,
        qkey: be32,
        lid: be16,
        sl: u8,
        path_bits: u8,
        grh_present: u8,
        gid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        gid: [u8; 16],
        flow_label: be32,
        pkey_index: u16,
        reserved: [u8; 6],
    }

    struct ib_user_mad {
        agent_id: u32,
        status: u32,
        timeout_ms: u32,
        retries: u32,
        length: u32,
        addr: ib_mad_addr,
    }

    struct umad_port {
        ca_name: [c_char; UMAD_CA_NAME_LEN],
        portnum: c_int,
        base_lid: c_uint,
        lmc: c_uint,
        sm_lid: c_uint,
        sm_sl: c_uint,
        state: c_uint,
        phys_state: c_uint,
        rate: c_uint,
        capmask: be32,
        gid_prefix: be64,
        port_guid: be64,
        pkeys_size: c_uint,
        pkeys: *mut u16,
        link_layer: [c_char; UMAD_CA_NAME_LEN],
    }

    struct umad_ca {
        ca_name: [c_char; UMAD_CA_NAME_LEN],
        node_type: c_uint,
        numports: c_int,
        fw_ver: [c_char; 20],
        ca_type: [c_char; 40],
        hw_ver: [c_char; 20],
        node_guid: be64,
        system_guid: be64,
        ports: [*mut umad_port; UMAD_CA_MAX_PORTS],
    }

    struct umad_device_node {
        next: *mut umad_device_node,
        ca_name: *const c_char,
    }

    struct umad_reg_attr {
        mgmt_class: u8,
        mgmt_class_version: u8,
        flags: u32,
        method_mask: [u64; 2],
        oui: u32,
        rmpp_version: u8,
    }
}
