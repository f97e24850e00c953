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

/// A packet of an InfiniBand link.
pub fn ib_frame(bytes: &[u8]) {
    let Ok(parsed) = IbFrame::parse(bytes) else {
        return;
    };
    let mut out = [0; 8300];
    let Some(out) = out.get_mut(..bytes.len()) else {
        return;
    };
    assert_eq!(parsed.emit(out), Ok(bytes.len()));
    assert_eq!(out, bytes);
    let sealed = parsed.sealed();
    assert!(sealed.icrc_ok() && sealed.vcrc_ok());
    assert_eq!(sealed == parsed, parsed.icrc_ok() && parsed.vcrc_ok());
    packet(parsed.transport);
    if parsed.transport.len() <= MAD_AT + mad::MAD_LEN {
        management(parsed.transport.get(MAD_AT..).unwrap_or_default());
    }
}

/// Where a management datagram begins in a transport packet.
const MAD_AT: usize = Bth::LEN + Deth::LEN;

/// Every record of management, and link packets, at the start of `bytes`.
pub fn management(bytes: &[u8]) {
    use crate::mad::*;
    /// What a record keeps of all ones is what it keeps of any bytes.
    macro_rules! records {
        ($($repr:ident, $view:ident;)*) => {
            $({
                let kept = $view::from(&[0xff; $repr::LEN]).to_repr().to_bytes();
                let reserved = kept.map(|byte| !byte);
                round_trip!(bytes, $repr, $view, reserved);
            })*
        };
    }
    records! {
        FlowControl, FlowControlView;
        Smp, SmpView;
        NodeDescription, NodeDescriptionView;
        NodeInfo, NodeInfoView;
        SwitchInfo, SwitchInfoView;
        PortInfo, PortInfoView;
        GuidInfo, GuidInfoView;
        PkeyTable, PkeyTableView;
        SlToVl, SlToVlView;
        VlArbitrationBlock, VlArbitrationBlockView;
        ForwardingBlock, ForwardingBlockView;
        MulticastBlock, MulticastBlockView;
        SmInfo, SmInfoView;
        Notice, NoticeView;
        GidTrap, GidTrapView;
        LidTrap, LidTrapView;
        PortTrap, PortTrapView;
        CapabilityChange, CapabilityChangeView;
        SystemImageChange, SystemImageChangeView;
        BadMkey, BadMkeyView;
        BadKey, BadKeyView;
        InformInfo, InformInfoView;
        Rmpp, RmppView;
        SaMad, SaMadView;
        PathRecord, PathRecordView;
        McMemberRecord, McMemberRecordView;
        NodeRecord, NodeRecordView;
        PortInfoRecord, PortInfoRecordView;
        LinkRecord, LinkRecordView;
        ServiceRecord, ServiceRecordView;
        ClassPortInfo, ClassPortInfoView;
        PmMad, PmMadView;
        PortCounters, PortCountersView;
        PortCountersExtended, PortCountersExtendedView;
    }
    if let Ok((description, _)) = NodeDescription::parse(bytes) {
        let text = description.as_str();
        assert_eq!(NodeDescription::new(text).as_str(), text);
    }
    if let Ok(packet) = FlowControl::open(bytes) {
        assert_eq!(packet.sealed(), bytes);
    }
    if let Ok((smp, _)) = Smp::parse(bytes)
        && let Some(route) = smp.directed_route()
    {
        let mut same = smp;
        same.set_directed_route(route);
        assert_eq!(same, smp);
    }
}

/// Bytes of iWARP, read as each header, as a startup frame and as a stream of FPDUs. The first byte
/// chooses how the stream is cut.
pub fn iwarp(bytes: &[u8]) {
    use crate::iwarp::{atomic::*, ddp::*, mpa::*, rdmap::*};
    round_trip!(bytes, Enhanced, EnhancedView, [0; 4]);
    round_trip!(bytes, ReadRequest, ReadRequestView, [0; 28]);
    round_trip!(bytes, AtomicRequest, AtomicRequestView, [0; 52]);
    round_trip!(bytes, AtomicResponse, AtomicResponseView, [0; 12]);
    round_trip!(bytes, Immediate, ImmediateView, [0; 8]);
    if let Ok((header, rest)) = Header::parse(bytes) {
        let mut out = [0; Header::MAX_LEN];
        let len = header.emit(&mut out).unwrap_or(0);
        assert_eq!((out.get(..len), len + rest.len()), (bytes.get(..len), bytes.len()));
    }
    for role in [Role::Request, Role::Reply] {
        startup(role, bytes);
    }
    terminate(bytes);
    if let Some((how, stream)) = bytes.split_first() {
        fpdus(how & 1 != 0, usize::from(how >> 1) + 1, stream);
    }
}

fn startup(role: iwarp::mpa::Role, bytes: &[u8]) {
    use crate::iwarp::mpa::{MAX_PRIVATE_DATA, Startup, StartupError};
    match Startup::parse(role, bytes) {
        Ok((frame, private_data, rest)) => {
            let mut out = [0; Startup::LEN + MAX_PRIVATE_DATA];
            let len = frame.emit([&[], private_data], &mut out).unwrap_or(0);
            assert_eq!(out.get(..len), bytes.get(..len));
            assert_eq!(len + rest.len(), bytes.len());
        }
        Err(StartupError::Incomplete { needed }) => assert!(needed > bytes.len()),
        Err(StartupError::WrongKey | StartupError::PrivateDataTooLong(_)) => {}
    }
}

fn terminate(bytes: &[u8]) {
    use crate::iwarp::terminate::Terminate;
    let Ok((message, rest)) = Terminate::parse(bytes) else {
        return;
    };
    let mut out = [0; Terminate::MAX_LEN];
    let len = message.emit(&mut out).unwrap_or(0);
    assert_eq!(len + rest.len(), bytes.len());
    // Reserved bits may have told the layout.
    if let Ok((again, _)) = Terminate::parse(out.get(..len).unwrap_or_default())
        && again.layout == message.layout
    {
        assert_eq!(again, message);
    }
}

/// A stream gives the same whether it arrives at once or in pieces.
fn fpdus(crc: bool, step: usize, stream: &[u8]) {
    use crate::iwarp::Crc32c;
    use crate::iwarp::fpdu::{Deframer, Piece};
    let digest = |step| {
        let (mut deframer, mut seen) = (Deframer::new(crc), Crc32c::new());
        let (mut pieces, mut payload_left) = (0_u32, 0_usize);
        for mut arrived in stream.chunks(step) {
            loop {
                match deframer.next(&mut arrived) {
                    Ok(Some(Piece::Header { payload, .. })) => {
                        assert_eq!(payload_left, 0);
                        (payload_left, pieces) = (payload, pieces + 1);
                    }
                    Ok(Some(Piece::Payload(bytes))) => {
                        payload_left -= bytes.len();
                        seen.update(bytes);
                    }
                    Ok(Some(Piece::End)) => assert_eq!(payload_left, 0),
                    Ok(None) => break,
                    Err(error) => return (seen, pieces, Err(error)),
                }
            }
            assert!(arrived.is_empty());
        }
        (seen, pieces, Ok(deframer.is_between()))
    };
    assert_eq!(digest(step), digest(stream.len().max(1)));
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
