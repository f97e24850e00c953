//! Bodies of the fuzz targets: each takes arbitrary bytes and checks what must hold for all.
//!
//! They live here so that the fuzzer, the corpus replay and the tests run the same code.

use crate::*;

/// `parse`, `emit` and `parse` again must agree, and `emit` must give back the same bytes where
/// the bits of `reserved`, kept by no field, are clear.
macro_rules! round_trip {
    ($bytes:expr, $repr:ident, $view:ident, $reserved:expr) => {
        match $repr::parse($bytes) {
            Ok((repr, rest)) => {
                let (head, tail) = $bytes.split_at($repr::LEN);
                assert_eq!(rest, tail);
                assert_eq!($view::new_checked($bytes).map($view::to_repr), Ok(repr));
                let mut out = [0; $repr::LEN];
                repr.emit(&mut out);
                assert_eq!($repr::parse(&out), Ok((repr, &[][..])));
                let reserved: [u8; $repr::LEN] = $reserved;
                for ((out, head), reserved) in out.iter().zip(head).zip(reserved) {
                    assert_eq!(*out, head & !reserved);
                }
            }
            Err(Truncated) => {
                assert!($bytes.len() < $repr::LEN);
                assert_eq!($view::new_checked($bytes), Err(Truncated));
            }
        }
    };
}

/// Every header on its own, at the start of `bytes`.
pub fn views(bytes: &[u8]) {
    round_trip!(bytes, Bth, BthView, [0; 12]);
    round_trip!(bytes, Reth, RethView, [0; 16]);
    round_trip!(bytes, Aeth, AethView, [0; 4]);
    round_trip!(bytes, AtomicEth, AtomicEthView, [0; 28]);
    round_trip!(bytes, AtomicAckEth, AtomicAckEthView, [0; 8]);
    round_trip!(bytes, Deth, DethView, [0, 0, 0, 0, 0xff, 0, 0, 0]);
    round_trip!(bytes, XrcEth, XrcEthView, [0xff, 0, 0, 0]);
    round_trip!(bytes, ImmDt, ImmDtView, [0; 4]);
    round_trip!(bytes, Ieth, IethView, [0; 4]);
    round_trip!(bytes, Feth, FethView, [0; 4]);
    round_trip!(bytes, CnpReserved, CnpReservedView, [0; 16]);
    round_trip!(bytes, Grh, GrhView, [0; 40]);
    round_trip!(bytes, Lrh, LrhView, [0; 8]);
    round_trip!(bytes, Udp, UdpView, [0; 8]);
    ethernet(bytes);
    ipv4(bytes);
    ipv6(bytes);
}

/// A transport packet without ICRC.
pub fn packet(bytes: &[u8]) {
    let Ok(parsed) = Packet::parse(bytes) else {
        return;
    };
    assert_eq!(parsed.wire_len(), Some(bytes.len()));
    let mut out = [0; 4096];
    let Some(out) = out.get_mut(..bytes.len()) else {
        return;
    };
    assert_eq!(parsed.emit(out), Ok(bytes.len()));
    assert_eq!(Packet::parse(out), Ok(parsed));
    let end = bytes.len() - usize::from(parsed.bth.pad);
    let reserved = match parsed.bth.opcode.decode() {
        Some((Service::Ud, _)) => Some(Bth::LEN + 4),
        Some((Service::Xrc, op)) if op.is_request() => Some(Bth::LEN),
        _ => None,
    };
    for (i, (out, byte)) in out.iter().zip(bytes).enumerate().take(end) {
        assert!(out == byte || Some(i) == reserved, "byte {i} changed");
    }
}

/// A frame, read as Ethernet, as IP and as a GRH.
pub fn frame(bytes: &[u8]) {
    for parse in [Frame::parse_ethernet, Frame::parse_ip, Frame::parse_grh] {
        if let Ok(parsed) = parse(bytes) {
            whole_frame(&parsed, bytes);
        }
    }
    // Bytes at random hardly ever have the right header checksum: put it there.
    let mut repaired = [0; 4096];
    let Some(repaired) = repaired.get_mut(..bytes.len()) else {
        return;
    };
    repaired.copy_from_slice(bytes);
    if let Ok((header, _)) = Ipv4::parse(bytes)
        && header.emit(repaired).is_ok()
        && let Ok(parsed) = Frame::parse_ip(repaired)
    {
        whole_frame(&parsed, repaired);
    }
}

fn whole_frame(parsed: &Frame<'_>, bytes: &[u8]) {
    let mut out = [0; 4096];
    let Some(out) = out.get_mut(..bytes.len()) else {
        return;
    };
    assert_eq!(parsed.emit(out), Ok(bytes.len()));
    assert_eq!(out, bytes);
    let sealed = parsed.sealed();
    assert!(sealed.icrc_ok());
    assert_eq!(sealed == *parsed, parsed.icrc_ok());
    if let Net::V4(ip, _) = parsed.net {
        let blind = parsed.net.icrc_prefix().with_ipv4_id(!ip.id);
        assert_eq!(blind.find_ipv4_id(sealed.transport, sealed.icrc), Some(ip.id));
    }
    packet(parsed.transport);
}

fn ethernet(bytes: &[u8]) {
    let Ok((header, rest)) = Ethernet::parse(bytes) else {
        return;
    };
    let mut out = [0; Ethernet::MAX_LEN];
    let len = header.emit(&mut out).unwrap_or(0);
    assert_eq!(len, header.wire_len());
    assert_eq!(len + rest.len(), bytes.len());
    assert_eq!(out.get(..len), bytes.get(..len));
}

fn ipv4(bytes: &[u8]) {
    let Ok((header, rest)) = Ipv4::parse(bytes) else {
        return;
    };
    let mut out = [0; Ipv4::MAX_LEN];
    let len = header.emit(&mut out).unwrap_or(0);
    assert_eq!(len, header.wire_len());
    assert_eq!(len + rest.len(), bytes.len());
    assert_eq!(Ipv4::parse(&out[..len]), Ok((header, &[][..])));
    assert_eq!(Ipv4View::new_checked(&out).map(Ipv4View::checksum_ok), Ok(true));
    assert_eq!(out.get(..10), bytes.get(..10));
    assert_eq!(out.get(12..len), bytes.get(12..len));
}

fn ipv6(bytes: &[u8]) {
    let Ok((header, rest)) = Ipv6::parse(bytes) else {
        return;
    };
    let mut out = [0; Ipv6::LEN];
    header.emit(&mut out);
    assert_eq!(Some(&out[..]), bytes.get(..Ipv6::LEN));
    assert_eq!(rest.len() + Ipv6::LEN, bytes.len());
}

/// A management datagram: what was read is written the same, but for reserved bits.
pub fn mad(bytes: &[u8]) {
    use crate::cm::{CmError, CmMessage, IpCm};
    match CmMessage::parse(bytes) {
        Ok((transaction, message)) => {
            let out = message.emit(transaction);
            assert_eq!(CmMessage::parse(&out), Ok((transaction, message)));
        }
        Err(CmError::Truncated) => assert!(bytes.len() < mad::MAD_LEN),
        Err(CmError::NotCm | CmError::UnknownAttribute(_)) => {}
    }
    if let Ok(Some(ip)) = IpCm::parse(bytes) {
        let mut out = [0; cm::IP_CM_LEN];
        ip.emit(&mut out);
        assert_eq!(IpCm::parse(&out), Ok(Some(ip)));
    }
}
