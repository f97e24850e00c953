//! Names of management datagrams, which queue pairs 0 and 1 send and receive.

use feroce::wire::mad::{Attribute, Class, Method, SaAttribute, Status};

use crate::words;

/// Length of the header that all of them share.
const HEADER: usize = 24;

/// Class of connection management (IBTA vol1 12.6).
const CM: u8 = 7;

/// The name of a datagram to queue pair 0 or 1, if it is a management datagram.
pub(crate) fn describe(payload: &[u8]) -> Option<String> {
    let (header, body) = payload.split_at_checked(HEADER)?;
    let [version, class, _, method, ..] = *header else { return None };
    if version != 1 {
        return None;
    }
    let attribute = be16(header, 16)?;
    if class != CM {
        return Some(other(class, method, attribute, be16(header, 4)?));
    }
    Some(match attribute {
        0x10 => with_ids("REQ", body, 1, request(body)),
        0x11 => with_ids("MRA", body, 2, None),
        0x12 => with_ids("REJ", body, 2, be16(body, 10).map(reason)),
        0x13 => with_ids("REP", body, 2, be32(body, 12).map(from_qp)),
        0x14 => with_ids("RTU", body, 2, None),
        0x15 => with_ids("DREQ", body, 2, None),
        0x16 => with_ids("DREP", body, 2, None),
        0x17 => with_ids("SIDR_REQ", body, 1, be64(body, 8).map(service)),
        0x18 => with_ids("SIDR_REP", body, 1, None),
        0x19 => with_ids("LAP", body, 2, None),
        0x1a => with_ids("APR", body, 2, None),
        other => format!("CM attribute {other:#06x}"),
    })
}

/// A datagram of another class than connection management, as the specification writes it:
/// `SubnGet(NodeInfo)`.
fn other(class: u8, method: u8, attribute: u16, status: u16) -> String {
    let (prefix, attribute_name) = match Class(class) {
        Class::SUBNET_LID | Class::SUBNET_DIRECTED => ("Subn", Attribute(attribute).name()),
        Class::SUBNET_ADMINISTRATION => ("SubnAdm", SaAttribute(attribute).name()),
        _ => {
            let class = name(class);
            return format!("MAD {class} method {method:#04x} attr {attribute:#06x}");
        }
    };
    let attribute = attribute_name.map_or_else(|| format!("{attribute:#06x}"), str::to_owned);
    let by_route = if Class(class) == Class::SUBNET_DIRECTED { " by directed route" } else { "" };
    // In answers of directed routes the top bit says which way they go.
    let status = match status & !Status::DIRECTION {
        0 => String::new(),
        status => format!(" status {status:#06x}"),
    };
    format!("{prefix}{}({attribute}){by_route}{status}", Method(method))
}

/// The name of a management class.
fn name(class: u8) -> String {
    match class {
        0x01 | 0x81 => "subnet management".to_owned(),
        0x03 => "subnet administration".to_owned(),
        0x04 => "performance management".to_owned(),
        0x05 => "board management".to_owned(),
        0x06 => "device management".to_owned(),
        other => format!("class {other:#04x}"),
    }
}

/// A message of connection management, with the ids of the two ends.
fn with_ids(kind: &str, body: &[u8], ids: usize, more: Option<String>) -> String {
    let mut text = format!("CM {kind}");
    if let Some(local) = be32(body, 0) {
        text.push_str(&format!(" id {local:#x}"));
    }
    if let Some(remote) = be32(body, 4).filter(|_| ids == 2) {
        text.push_str(&format!(" to {remote:#x}"));
    }
    if let Some(more) = more {
        text.push(' ');
        text.push_str(&more);
    }
    text
}

/// Service and queue pair of a connection request.
fn request(body: &[u8]) -> Option<String> {
    Some(format!("{} {}", service(be64(body, 8)?), from_qp(be32(body, 32)?)))
}

/// A queue pair number in the upper three bytes of a word.
fn from_qp(word: u32) -> String {
    format!("QP {}", words::qpn(word >> 8))
}

/// A service, by its port number where the connection manager of RDMA over IP chose it.
fn service(id: u64) -> String {
    let port = id & 0xffff;
    match id >> 16 {
        0x0106 => format!("TCP port {port}"),
        0x0111 => format!("UDP port {port}"),
        _ => format!("service {id:#x}"),
    }
}

/// Why a connection was refused (IBTA vol1 12.6.7).
fn reason(code: u16) -> String {
    let words = match code {
        1 => "no QP available",
        3 => "no resources",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        8 => "invalid service ID",
        9 => "invalid transport service type",
        10 => "stale connection",
        12 => "invalid GID",
        28 => "consumer reject",
        _ => "",
    };
    if words.is_empty() { format!("reason {code}") } else { format!("reason {code} ({words})") }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_names() {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x12;
        mad[24 + 3] = 5;
        mad[24 + 7] = 6;
        mad[24 + 11] = 8;
        let words = "CM REJ id 0x5 to 0x6 reason 8 (invalid service ID)";
        assert_eq!(describe(&mad).as_deref(), Some(words));
        mad[17] = 0x10;
        mad[32..40].copy_from_slice(&0x0106_1b39_u64.to_be_bytes());
        mad[24 + 34] = 0x11;
        assert_eq!(describe(&mad).as_deref(), Some("CM REQ id 0x5 TCP port 6969 QP 0x11"));
        mad[1] = 3;
        assert_eq!(describe(&mad).as_deref(), Some("SubnAdmSend(0x0010)"));
        mad[3..18].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x35]);
        assert_eq!(describe(&mad).as_deref(), Some("SubnAdmGet(PathRecord)"));
        mad[1] = 5;
        let other = "MAD board management method 0x01 attr 0x0035";
        assert_eq!(describe(&mad).as_deref(), Some(other));
        for len in 0..mad.len() {
            let _ = describe(&mad[..len]);
        }
        assert_eq!(describe(&[0; 256]), None);
    }
}
