//! Names of numbers, and datagrams in words.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};

use super::fields::umad_get_mad;
use crate::abi::*;

/// How much the program wants to be told.
static LEVEL: AtomicI32 = AtomicI32::new(0);

pub(crate) extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

pub(crate) extern "C" fn umad_class_str(class: u8) -> *const c_char {
    let name = match class {
        0x01 | 0x81 => c"Subn",
        0x03 => c"SubnAdm",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        0x07 => c"ComMgt",
        0x08 => c"SNMP",
        0x10 => c"DevAdm",
        0x11 => c"BootMgt",
        0x12 => c"BIS",
        // The spelling is that of libibumad.
        0x21 => c"CongestionManagment",
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x13..=0x20 | 0x22..=0x2f => c"Application",
        _ => c"<unknown>",
    };
    name.as_ptr()
}

const SUBNET_ADMINISTRATION: u8 = 0x03;

pub(crate) extern "C" fn umad_method_str(class: u8, method: u8) -> *const c_char {
    let of_administration = match method {
        0x12 => Some(c"GetTable"),
        0x92 => Some(c"GetTableResp"),
        0x15 => Some(c"Delete"),
        0x95 => Some(c"DeleteResp"),
        0x14 => Some(c"GetMulti"),
        0x94 => Some(c"GetMultiResp"),
        0x13 => Some(c"GetTraceTable"),
        _ => None,
    };
    let name = of_administration.filter(|_| class == SUBNET_ADMINISTRATION);
    let name = name.unwrap_or(match method {
        0x01 => c"Get",
        0x02 => c"Set",
        0x81 => c"GetResp",
        0x03 => c"Send",
        0x05 => c"Trap",
        0x06 => c"Report",
        0x86 => c"ReportResp",
        0x07 => c"TrapRepress",
        // The spelling is that of libibumad.
        _ => c"<unknown",
    });
    name.as_ptr()
}

pub(crate) extern "C" fn umad_common_mad_status_str(status: be16) -> *const c_char {
    let status = u16::from_be(status);
    let text = match (status & 1 != 0, status & 2 != 0, status & 0x1c) {
        (true, ..) => c"Busy",
        (_, true, _) => c"Redirection required",
        (.., 0x04) => c"Bad Version",
        (.., 0x08) => c"Method not supported",
        (.., 0x0c) => c"Method/Attribute combo not supported",
        (.., 0x1c) => c"Invalid attribute/modifier field",
        _ => c"Success",
    };
    text.as_ptr()
}

pub(crate) extern "C" fn umad_sa_mad_status_str(status: be16) -> *const c_char {
    let text = match u16::from_be(status) >> 8 {
        0 => c"Success",
        1 => c"No Resources",
        2 => c"Request Invalid",
        3 => c"No Records",
        4 => c"Too Many Records",
        5 => c"Invalid GID",
        6 => c"Insufficient Components",
        7 => c"Request Denied",
        8 => c"Priority Suggested",
        _ => c"Undefined Error",
    };
    text.as_ptr()
}

pub(crate) extern "C" fn umad_attribute_str(class: u8, attribute: be16) -> *const c_char {
    let attribute = u16::from_be(attribute);
    let special = match class {
        0x01 | 0x81 => subnet(attribute),
        SUBNET_ADMINISTRATION => administration(attribute),
        0x07 => communication(attribute),
        _ => None,
    };
    let name = special.unwrap_or(match attribute {
        0x01 => c"Class Port Info",
        0x02 => c"Notice",
        0x03 => c"Inform Info",
        _ => c"<unknown>",
    });
    name.as_ptr()
}

fn subnet(attribute: u16) -> Option<&'static CStr> {
    Some(match attribute {
        0x10 => c"NodeDescription",
        0x11 => c"NodeInfo",
        0x12 => c"SwitchInfo",
        0x14 => c"GUIDInfo",
        0x15 => c"PortInfo",
        0x16 => c"P_KeyTable",
        0x17 => c"SLtoVLMappingTable",
        0x18 => c"VLArbitrationTable",
        0x19 => c"LinearForwardingTable",
        0x1a => c"RandomForwardingTable",
        0x1b => c"MulticastForwardingTable",
        0x1c => c"LinkSpeedWidthPairsTable",
        0x1d => c"VendorSpecificMadsTable",
        0x1e => c"HierarchyInfo",
        0x20 => c"SMInfo",
        0x30 => c"VendorDiag",
        0x31 => c"LedInfo",
        0x32 => c"CableInfo",
        0x33 => c"PortInfoExtended",
        _ => return None,
    })
}

fn administration(attribute: u16) -> Option<&'static CStr> {
    Some(match attribute {
        0x11 => c"NodeRecord",
        0x12 => c"PortInfoRecord",
        0x13 => c"SLtoVLMappingTableRecord",
        0x14 => c"SwitchInfoRecord",
        0x15 => c"LinearForwardingTableRecord",
        0x16 => c"RandomForwardingTableRecord",
        0x17 => c"MulticastForwardingTableRecord",
        0x18 => c"SMInfoRecord",
        0x19 => c"LinkSpeedWidthPairsTableRecord",
        0x20 => c"LinkRecord",
        0x30 => c"GuidInfoRecord",
        0x31 => c"ServiceRecord",
        0x33 => c"P_KeyTableRecord",
        0x35 => c"PathRecord",
        0x36 => c"VLArbitrationTableRecord",
        0x38 => c"MCMemberRecord",
        0x39 => c"TraceRecord",
        0x3a => c"MultiPathRecord",
        0x3b => c"ServiceAssociationRecord",
        0x3c => c"HierarchyInfoRecord",
        0x3d => c"CableInfoRecord",
        0x3e => c"PortInfoExtendedRecord",
        0xf3 => c"InformInfoRecord",
        _ => return None,
    })
}

fn communication(attribute: u16) -> Option<&'static CStr> {
    Some(match attribute {
        0x10 => c"ConnectRequest",
        0x11 => c"MsgRcptAck",
        0x12 => c"ConnectReject",
        0x13 => c"ConnectReply",
        0x14 => c"ReadyToUse",
        0x15 => c"DisconnectRequest",
        0x16 => c"DisconnectReply",
        0x17 => c"ServiceIDResReq",
        0x18 => c"ServiceIDResReqResp",
        0x19 => c"LoadAlternatePath",
        0x1a => c"AlternatePathResponse",
        0x1b => c"SuggestAlternatePath",
        0x1c => c"SuggestPathResponse",
        _ => return None,
    })
}

fn describe(addr: &ib_mad_addr) -> String {
    let (qpn, qkey) = (u32::from_be(addr.qpn), u32::from_be(addr.qkey));
    let (lid, sl) = (u16::from_be(addr.lid), addr.sl);
    let mut text = format!("qpn {qpn} qkey {qkey:#x} lid {lid} sl {sl}");
    if addr.grh_present != 0 {
        let gid = core::net::Ipv6Addr::from(addr.gid);
        text += &format!(" gid {gid} hop limit {}", addr.hop_limit);
    }
    text
}

pub(crate) unsafe extern "C" fn umad_addr_dump(addr: *const ib_mad_addr) {
    // SAFETY: the caller passes an address.
    if let Some(addr) = unsafe { addr.as_ref() } {
        eprintln!("umad: {}", describe(addr));
    }
}

pub(crate) unsafe extern "C" fn umad_dump(umad: *mut c_void) {
    // SAFETY: the caller passes a datagram.
    let Some(header) = (unsafe { umad.cast::<ib_user_mad>().as_ref() }) else { return };
    let ib_user_mad { agent_id, status, timeout_ms, addr, .. } = header;
    eprintln!("umad: agent {agent_id} status {status:#x} timeout {timeout_ms} ms");
    eprintln!("umad: {}", describe(addr));
    // SAFETY: a datagram has at least its common header of 24 bytes.
    let mad = unsafe { umad_get_mad(umad).cast::<[u8; 24]>().read() };
    eprintln!("umad: {mad:02x?}");
}
