//! From the bytes of a record to the transport packet in it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce::wire::{
    Ethernet, GRH_NEXT_HEADER, Grh, IPV4_ETHERTYPE, IPV6_ETHERTYPE, IbFrame, IbFrameError,
    IcrcPrefix, Ipv4, Ipv4View, Ipv6, Lid, Net, Opcode, Pmtu, ROCE_UDP_PORT, ROCE_V1_ETHERTYPE,
    UDP_PROTOCOL, Udp, VLAN_ETHERTYPE, icrc,
};
use pcap_parser::Linktype;

use super::capture::Record;
use super::tcp::Segment;

/// Link types besides those that the reader has names for: raw IP on some systems.
const RAW_IP: [Linktype; 3] = [Linktype(12), Linktype(14), Linktype::RAW];

/// Records of Endace's cards, which hold packets of InfiniBand among others.
const ERF: Linktype = Linktype(197);
/// Bytes in front of a packet there, and of each extension of that header.
const ERF_HEADER: usize = 16;
const ERF_EXTENSION: usize = 8;
/// Says that an extension follows; the other bits of that byte are a type.
const ERF_EXTENDED: u8 = 0x80;
/// The type of records that hold packets of InfiniBand.
const ERF_INFINIBAND: u8 = 21;

/// Ethertype of the outer tag of two.
const PROVIDER_VLAN_ETHERTYPE: u16 = 0x88a8;

/// Protocol number of TCP.
const TCP_PROTOCOL: u8 = 6;

/// Most VLAN tags of a packet.
const MAX_TAGS: u8 = 4;

/// Why a record holds no RoCE packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotRoce {
    /// The record is something else.
    Other(String),
    /// The record claims to be RoCE, but is malformed.
    Broken(&'static str),
}

/// Whether the ICRC is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcrcState {
    /// It is.
    Good,
    /// It is not.
    Bad,
    /// The record ends before the packet does.
    Unknown,
}

/// A port, as the headers of a packet name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Port {
    /// By an IP address, or a GID.
    Ip(IpAddr),
    /// By a LID.
    Lid(Lid),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Lid(lid) => write!(f, "LID {}", lid.0),
        }
    }
}

impl<T: Into<IpAddr>> From<T> for Port {
    fn from(ip: T) -> Self {
        Self::Ip(ip.into())
    }
}

/// A RoCE packet in a record.
#[derive(Debug)]
pub(crate) struct Carried<'a> {
    /// Sender.
    pub(crate) src: Port,
    /// Receiver.
    pub(crate) dst: Port,
    /// Its framing: `RoCEv2`, `RoCEv1` or `InfiniBand`.
    pub(crate) framing: &'static str,
    /// Its VLAN.
    pub(crate) vlan: Option<u16>,
    /// Its ECN field; `None` if its network header has none.
    pub(crate) ecn: Option<u8>,
    /// UDP source port, if there is one.
    pub(crate) udp_sport: Option<u16>,
    /// The packet from its base transport header to its padding, as far as it is in the record.
    pub(crate) transport: &'a [u8],
    /// Its length on the wire.
    pub(crate) wire_len: usize,
    /// Whether its ICRC is right.
    pub(crate) icrc: IcrcState,
}

/// The network header of a record and what follows: its ethertype, its bytes, and the VLAN.
struct Network<'a> {
    ethertype: u16,
    bytes: &'a [u8],
    vlan: Option<u16>,
}

/// Finds the RoCE packets in a record: one, or several, if the record was captured before
/// segmentation (GSO) or after coalescing (GRO).
pub(crate) fn dissect<'a>(record: &Record<'a>) -> Result<Vec<Carried<'a>>, NotRoce> {
    if record.link == ERF {
        return Ok(vec![erf(record.bytes)?]);
    }
    let Network { ethertype, bytes, vlan } = network(record)?;
    let mut packets = match ethertype {
        IPV4_ETHERTYPE | IPV6_ETHERTYPE => ip(bytes)?,
        ROCE_V1_ETHERTYPE => vec![grh(bytes)?],
        0x0806 => return Err(NotRoce::Other("ARP".to_owned())),
        other => return Err(NotRoce::Other(format!("ethertype {other:#06x}"))),
    };
    packets.iter_mut().for_each(|packet| packet.vlan = vlan);
    Ok(packets)
}

/// The TCP segment in a record, if it holds one.
pub(crate) fn tcp<'a>(record: &Record<'a>) -> Option<Segment<'a>> {
    let Network { ethertype, bytes, .. } = network(record).ok()?;
    match (ethertype, bytes.first().map(|byte| byte >> 4)) {
        (IPV4_ETHERTYPE | IPV6_ETHERTYPE, Some(4)) => {
            let (header, body) = Ipv4::parse(bytes).ok()?;
            let len = usize::from(header.total_len).saturating_sub(header.wire_len());
            let ends = (Ipv4Addr::from(header.src).into(), Ipv4Addr::from(header.dst).into());
            let is_tcp = header.protocol == TCP_PROTOCOL && !header.is_fragment();
            is_tcp.then(|| Segment::parse(ends, body, len))?
        }
        (IPV4_ETHERTYPE | IPV6_ETHERTYPE, Some(6)) => {
            let (header, body) = Ipv6::parse(bytes).ok()?;
            let ends = (Ipv6Addr::from(header.src).into(), Ipv6Addr::from(header.dst).into());
            let is_tcp = header.next_header == TCP_PROTOCOL;
            is_tcp.then(|| Segment::parse(ends, body, header.payload_len.into()))?
        }
        _ => None,
    }
}

fn network<'a>(record: &Record<'a>) -> Result<Network<'a>, NotRoce> {
    let bytes = record.bytes;
    // Both versions of IP name themselves.
    let raw = |bytes| Ok(Network { ethertype: IPV4_ETHERTYPE, bytes, vlan: None });
    match record.link {
        Linktype::ETHERNET => {
            let at = Ethernet::MIN_LEN - 2;
            by_type(be16(bytes, at)?, skip(bytes, at + 2)?)
        }
        Linktype::LINUX_SLL => by_type(be16(bytes, 14)?, skip(bytes, 16)?),
        Linktype::LINUX_SLL2 => by_type(be16(bytes, 0)?, skip(bytes, 20)?),
        Linktype::NULL | Linktype::LOOP => raw(skip(bytes, 4)?),
        Linktype::IPV4 | Linktype::IPV6 => raw(bytes),
        link if RAW_IP.contains(&link) => raw(bytes),
        Linktype(number) => Err(NotRoce::Other(format!("link type {number}"))),
    }
}

/// Skips the VLAN tags behind an ethertype. The innermost tag of several wins.
fn by_type(mut ethertype: u16, mut bytes: &[u8]) -> Result<Network<'_>, NotRoce> {
    let mut vlan = None;
    for _ in 0..MAX_TAGS {
        if !matches!(ethertype, VLAN_ETHERTYPE | PROVIDER_VLAN_ETHERTYPE) {
            break;
        }
        vlan = Some(be16(bytes, 0)? & 0x0fff);
        (ethertype, bytes) = (be16(bytes, 2)?, skip(bytes, 4)?);
    }
    Ok(Network { ethertype, bytes, vlan })
}

fn ip(bytes: &[u8]) -> Result<Vec<Carried<'_>>, NotRoce> {
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => ipv4(bytes),
        Some(6) => ipv6(bytes),
        _ => Err(NotRoce::Other("not IP".to_owned())),
    }
}

fn ipv4(bytes: &[u8]) -> Result<Vec<Carried<'_>>, NotRoce> {
    let other = |why: &str| NotRoce::Other(why.to_owned());
    Ipv4View::new_checked(bytes).map_err(|_| other("broken IPv4"))?;
    let (header, body) = Ipv4::parse(bytes).map_err(|_| other("broken IPv4"))?;
    if header.protocol != UDP_PROTOCOL {
        return Err(NotRoce::Other(protocol(header.protocol)));
    }
    if header.is_fragment() {
        return Err(other("IPv4 fragment"));
    }
    let len = usize::from(header.total_len).saturating_sub(header.wire_len());
    let (src, dst) = (Ipv4Addr::from(header.src), Ipv4Addr::from(header.dst));
    let packets = udp((src.into(), dst.into()), body, len, |udp, index| {
        // GSO increments the IPv4 identification for each packet that it cuts out of a
        // segmented send, so the packet at `index` has the first identification plus `index`.
        let (id, total_len) = (header.id.wrapping_add(index), udp.len + header.wire_len() as u16);
        Net::V4(Ipv4 { id, total_len, ..header }, udp)
    })?;
    Ok(with_ecn(packets, header.ecn))
}

fn ipv6(bytes: &[u8]) -> Result<Vec<Carried<'_>>, NotRoce> {
    let broken = |_| NotRoce::Other("broken IPv6".to_owned());
    let (header, body) = Ipv6::parse(bytes).map_err(broken)?;
    if header.next_header != UDP_PROTOCOL {
        return Err(NotRoce::Other(protocol(header.next_header)));
    }
    let (src, dst) = (Ipv6Addr::from(header.src), Ipv6Addr::from(header.dst));
    let len = usize::from(header.payload_len);
    let packets = udp((src.into(), dst.into()), body, len, |udp, _| {
        Net::V6(Ipv6 { payload_len: udp.len, ..header }, udp)
    })?;
    Ok(with_ecn(packets, header.ecn))
}

fn with_ecn(mut packets: Vec<Carried<'_>>, ecn: u8) -> Vec<Carried<'_>> {
    packets.iter_mut().for_each(|packet| packet.ecn = Some(ecn));
    packets
}

/// Parses a UDP datagram of `len` bytes by the IP header, of which `bytes` are in the record. `net`
/// builds the headers of the packet at an index, if the datagram holds several.
fn udp(
    (src, dst): (IpAddr, IpAddr),
    bytes: &[u8],
    len: usize,
    net: impl Fn(Udp, u16) -> Net,
) -> Result<Vec<Carried<'_>>, NotRoce> {
    let (header, body) = Udp::parse(bytes).map_err(|_| NotRoce::Other("broken UDP".to_owned()))?;
    if header.dst_port != ROCE_UDP_PORT {
        return Err(NotRoce::Other(format!("UDP port {}", header.dst_port)));
    }
    if usize::from(header.len) != len {
        return Err(NotRoce::Broken("the lengths of IP and UDP contradict each other"));
    }
    let len = len.saturating_sub(Udp::LEN);
    let whole = sealed(&net(header, 0).icrc_prefix(), body, len)?;
    let parts = match body.get(..len) {
        Some(body) if whole.icrc == IcrcState::Bad => cut_apart(body, |index, len| {
            let len = u16::try_from(len + Udp::LEN).unwrap_or(u16::MAX);
            net(Udp { len, ..header }, index).icrc_prefix()
        }),
        _ => None,
    };
    let mut packets = parts.unwrap_or_else(|| vec![whole]);
    for packet in &mut packets {
        (packet.src, packet.dst) = (src.into(), dst.into());
        packet.udp_sport = Some(header.src_port);
    }
    Ok(packets)
}

/// The packets of a datagram that GSO has not segmented yet, if it is one: all packets but the last
/// are full packets of some MTU, and the ICRC of the first one is right.
fn cut_apart(bytes: &[u8], prefix: impl Fn(u16, usize) -> IcrcPrefix) -> Option<Vec<Carried<'_>>> {
    let headers = Opcode(*bytes.first()?).header_len()?;
    Pmtu::ALL.into_iter().find_map(|mtu| {
        let stride = headers + mtu.bytes() + icrc::LEN;
        if stride >= bytes.len() {
            return None;
        }
        let parts = (0..).zip(bytes.chunks(stride));
        let packets = parts.map(|(i, part)| sealed(&prefix(i, part.len()), part, part.len()));
        let packets: Vec<_> = packets.collect::<Result<_, _>>().ok()?;
        packets.first().is_some_and(|first| first.icrc == IcrcState::Good).then_some(packets)
    })
}

/// A record of Endace's cards.
fn erf(bytes: &[u8]) -> Result<Carried<'_>, NotRoce> {
    let (header, mut body) = bytes.split_at_checked(ERF_HEADER).ok_or_else(too_short)?;
    let mut kind = header[8];
    if kind & !ERF_EXTENDED != ERF_INFINIBAND {
        return Err(NotRoce::Other(format!("ERF type {}", kind & !ERF_EXTENDED)));
    }
    while kind & ERF_EXTENDED != 0 {
        kind = *body.first().ok_or_else(too_short)?;
        body = skip(body, ERF_EXTENSION)?;
    }
    let frame = match IbFrame::parse(body) {
        Ok(frame) => frame,
        Err(IbFrameError::Raw(_)) => return Err(NotRoce::Other("raw InfiniBand".to_owned())),
        Err(_) => return Err(NotRoce::Broken("no packet of InfiniBand")),
    };
    let (src, dst) = match frame.grh {
        Some(grh) => (grh.sgid.to_ip().into(), grh.dgid.to_ip().into()),
        None => (Port::Lid(frame.lrh.slid), Port::Lid(frame.lrh.dlid)),
    };
    let is_good = frame.icrc_ok() && frame.vcrc == frame.expected_vcrc();
    Ok(Carried {
        src,
        dst,
        framing: "InfiniBand",
        vlan: None,
        ecn: None,
        udp_sport: None,
        transport: frame.transport,
        wire_len: frame.transport.len(),
        icrc: if is_good { IcrcState::Good } else { IcrcState::Bad },
    })
}

/// RoCEv1.
fn grh(bytes: &[u8]) -> Result<Carried<'_>, NotRoce> {
    let (header, body) = Grh::parse(bytes).map_err(|_| NotRoce::Broken("the GRH is cut"))?;
    if header.ip_version != 6 || header.next_header != GRH_NEXT_HEADER {
        return Err(NotRoce::Broken("the GRH makes no sense"));
    }
    let prefix = Net::Grh(header).icrc_prefix();
    let carried = sealed(&prefix, body, usize::from(header.payload_len))?;
    let (src, dst) = (header.sgid.to_ip().into(), header.dgid.to_ip().into());
    Ok(Carried { src, dst, framing: "RoCEv1", ..carried })
}

/// Parses a transport packet and its ICRC: `len` bytes together, of which `bytes` are in the
/// record, perhaps with trailing bytes.
fn sealed<'a>(prefix: &IcrcPrefix, bytes: &'a [u8], len: usize) -> Result<Carried<'a>, NotRoce> {
    let wire_len = len.checked_sub(icrc::LEN).ok_or(NotRoce::Broken("no room for an ICRC"))?;
    let (transport, state) = match bytes.get(..len).and_then(<[u8]>::split_last_chunk) {
        Some((transport, icrc)) if prefix.verify(transport, *icrc) => (transport, IcrcState::Good),
        Some((transport, _)) => (transport, IcrcState::Bad),
        None => (bytes.get(..wire_len).unwrap_or(bytes), IcrcState::Unknown),
    };
    Ok(Carried {
        src: Ipv4Addr::UNSPECIFIED.into(),
        dst: Ipv4Addr::UNSPECIFIED.into(),
        framing: "RoCEv2",
        vlan: None,
        ecn: None,
        udp_sport: None,
        transport,
        wire_len,
        icrc: state,
    })
}

fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        2 => "IGMP".to_owned(),
        TCP_PROTOCOL => "TCP".to_owned(),
        58 => "ICMPv6".to_owned(),
        n => format!("IP protocol {n}"),
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, NotRoce> {
    let two = bytes.get(at..).and_then(<[u8]>::first_chunk);
    two.map(|b| u16::from_be_bytes(*b)).ok_or_else(too_short)
}

fn skip(bytes: &[u8], len: usize) -> Result<&[u8], NotRoce> {
    bytes.get(len..).ok_or_else(too_short)
}

fn too_short() -> NotRoce {
    NotRoce::Other("too short".to_owned())
}

#[cfg(test)]
mod tests {
    use feroce::wire::Frame;

    use super::*;

    const TRANSPORT: [u8; 16] = [4, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4];

    fn record(link: i32, bytes: &[u8]) -> Record<'_> {
        Record { time_ns: None, link: Linktype(link), bytes, is_cut: false, mark: None }
    }

    /// The only packet in a record.
    fn one<'a>(record: &Record<'a>) -> Carried<'a> {
        let mut packets = dissect(record).expect("RoCE");
        assert_eq!(packets.len(), 1);
        packets.remove(0)
    }

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = vec![0; 200];
        let len = frame.emit(&mut out).expect("fits");
        out.truncate(len);
        out
    }

    fn v4() -> Vec<u8> {
        bytes_of(&Frame::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, &TRANSPORT).expect("short"))
    }

    /// `prefix`, then the packet.
    fn after(prefix: &[u8], packet: &[u8]) -> Vec<u8> {
        [prefix, packet].concat()
    }

    #[test]
    fn every_link_type_leads_to_the_packet() {
        let v6 = bytes_of(&Frame::v6([1; 16], [2; 16], 0xc001, &TRANSPORT).expect("short"));
        let mut sll = [0; 16];
        sll[14..].copy_from_slice(&[0x08, 0x00]);
        let mut sll2 = [0; 20];
        sll2[..2].copy_from_slice(&[0x86, 0xdd]);
        let ethernet = |rest: &[u8]| [&[0; 12], rest].concat();
        let cases = [
            (1, after(&ethernet(&[0x08, 0]), &v4())),
            (1, after(&ethernet(&[0x81, 0, 0x20, 5, 0x86, 0xdd]), &v6)),
            (1, after(&ethernet(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x08, 0]), &v4())),
            (101, v4()),
            (228, v4()),
            (229, v6.clone()),
            (12, v6.clone()),
            (113, after(&sll, &v4())),
            (276, after(&sll2, &v6)),
            (0, after(&[2, 0, 0, 0], &v4())),
        ];
        for (link, bytes) in cases {
            let carried = one(&record(link, &bytes));
            assert_eq!((carried.transport, carried.icrc), (&TRANSPORT[..], IcrcState::Good));
            let vlan = (link == 1 && bytes[12] != 8).then_some(5);
            assert_eq!(carried.vlan, vlan, "{link}");
        }
    }

    #[test]
    fn roce_v1_is_recognised() {
        let gid = feroce::Gid::from_ipv4([10, 0, 0, 1]);
        let frame = Frame::v1(gid, feroce::Gid([3; 16]), &TRANSPORT).expect("short");
        let bytes = bytes_of(&frame.on_ethernet([2; 6], [4; 6]));
        let carried = one(&record(1, &bytes));
        assert_eq!((carried.framing, carried.icrc), ("RoCEv1", IcrcState::Good));
        assert_eq!(carried.src.to_string(), "10.0.0.1");
    }

    #[test]
    fn damage_is_told_apart() {
        let mut bytes = v4();
        bytes[30] ^= 1;
        assert_eq!(one(&record(101, &bytes)).icrc, IcrcState::Bad);
        // A cut record still shows its headers.
        let bytes = v4();
        let carried = one(&record(101, &bytes[..bytes.len() - 6]));
        assert_eq!((carried.icrc, carried.transport.len()), (IcrcState::Unknown, 14));
        assert_eq!(carried.wire_len, 16);
        // The checksum of the IP header does not matter: the sender's network adapter may compute
        // it after the capture.
        let mut bytes = v4();
        bytes[10] ^= 0xff;
        assert_eq!(one(&record(101, &bytes)).icrc, IcrcState::Good);
        let mut bytes = v4();
        bytes[25] += 1;
        assert!(matches!(dissect(&record(101, &bytes)), Err(NotRoce::Broken(_))));
        bytes[23] += 1;
        assert_eq!(
            dissect(&record(101, &bytes)).err(),
            Some(NotRoce::Other("UDP port 4792".to_owned()))
        );
        for len in 0..60 {
            let bytes: Vec<u8> = v4().into_iter().take(len).collect();
            for link in [0, 1, 12, 101, 113, 228, 229, 276, 9999] {
                let _ = dissect(&record(link, &bytes));
            }
        }
    }

    /// What a capture on the sending machine contains: one datagram of several packets.
    #[test]
    fn offloaded_packets_are_cut_apart() {
        for (last, is_v4) in [(256, true), (100, true), (256, false)] {
            let mut body = Vec::new();
            for (i, len) in [256, 256, last].into_iter().enumerate() {
                let mut transport = vec![0x01, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, i as u8];
                transport.resize(12 + len, i as u8);
                let frame = if is_v4 {
                    let frame = Frame::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, &transport);
                    let Net::V4(ip, udp) = frame.expect("short").net else { unreachable!() };
                    Frame {
                        net: Net::V4(Ipv4 { id: i as u16, ..ip }, udp),
                        ..frame.expect("short")
                    }
                } else {
                    Frame::v6([1; 16], [2; 16], 0xc000, &transport).expect("short")
                };
                body.extend_from_slice(&transport);
                body.extend_from_slice(&frame.sealed().icrc.to_le_bytes());
            }
            let (transport, icrc) = body.split_last_chunk::<4>().expect("long");
            let frame = if is_v4 {
                Frame::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, transport)
            } else {
                Frame::v6([1; 16], [2; 16], 0xc000, transport)
            };
            let frame = Frame { icrc: u32::from_le_bytes(*icrc), ..frame.expect("short") };
            let mut bytes = vec![0; 2000];
            let len = frame.emit(&mut bytes).expect("fits");
            let packets = dissect(&record(101, &bytes[..len])).expect("RoCE");
            let lens: Vec<_> = packets.iter().map(|p| (p.transport.len(), p.icrc)).collect();
            let good = IcrcState::Good;
            assert_eq!(lens, [(268, good), (268, good), (12 + last, good)]);
            assert!(packets.iter().all(|p| p.udp_sport == Some(0xc000)));
        }
    }
}
