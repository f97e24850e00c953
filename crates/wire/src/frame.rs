//! Whole RoCE frames: from Ethernet or IP to the ICRC.

use core::fmt;

use crate::write::Writer;
use crate::{
    Ethernet, GRH_NEXT_HEADER, Gid, Grh, IPV4_ETHERTYPE, IPV6_ETHERTYPE, IcrcPrefix, IpError, Ipv4,
    Ipv4View, Ipv6, ROCE_UDP_PORT, ROCE_V1_ETHERTYPE, Truncated, UDP_PROTOCOL, Udp, icrc,
};

/// Why bytes are not a RoCE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes end before a header, or the length in a header, does.
    Truncated,
    /// Neither IPv4, IPv6 nor RoCEv1.
    Ethertype(u16),
    /// The IP header makes no sense.
    Ip(IpError),
    /// The IPv4 header checksum is wrong.
    Ipv4Checksum,
    /// A piece of an IPv4 datagram.
    Fragment,
    /// The IP protocol is not UDP.
    NotUdp(u8),
    /// The UDP destination port is not that of RoCEv2.
    NotRoce(u16),
    /// The GRH is not followed by a base transport header.
    NotTransport(u8),
    /// A length in a header contradicts another one or leaves no room for the ICRC.
    BadLength,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => Truncated.fmt(f),
            Self::Ethertype(t) => write!(f, "ethertype {t:#06x} carries no RoCE"),
            Self::Ip(e) => e.fmt(f),
            Self::Ipv4Checksum => f.write_str("the IPv4 header checksum is wrong"),
            Self::Fragment => f.write_str("the packet is an IPv4 fragment"),
            Self::NotUdp(p) => write!(f, "IP protocol {p} is not UDP"),
            Self::NotRoce(p) => write!(f, "UDP port {p} is not that of RoCEv2"),
            Self::NotTransport(n) => write!(f, "next header {n:#04x} is no transport header"),
            Self::BadLength => f.write_str("the lengths in the headers contradict each other"),
        }
    }
}

impl core::error::Error for FrameError {}

impl From<Truncated> for FrameError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl From<IpError> for FrameError {
    fn from(e: IpError) -> Self {
        match e {
            IpError::Truncated => Self::Truncated,
            e => Self::Ip(e),
        }
    }
}

/// The packet does not fit in the 16-bit length of its network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the packet is too long for its network header")
    }
}

impl core::error::Error for TooLong {}

/// Network header, with the UDP header where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// RoCEv2 over IPv4.
    V4(Ipv4, Udp),
    /// RoCEv2 over IPv6.
    V6(Ipv6, Udp),
    /// RoCEv1.
    Grh(Grh),
}

impl Net {
    /// The ICRC up to the base transport header.
    pub fn icrc_prefix(&self) -> IcrcPrefix {
        match self {
            Self::V4(ip, udp) => IcrcPrefix::for_ipv4(ip, udp),
            Self::V6(ip, udp) => IcrcPrefix::for_ipv6(ip, udp),
            Self::Grh(grh) => IcrcPrefix::for_grh(grh),
        }
    }

    /// The UDP header, unless this is RoCEv1.
    pub const fn udp(&self) -> Option<&Udp> {
        match self {
            Self::V4(_, udp) | Self::V6(_, udp) => Some(udp),
            Self::Grh(_) => None,
        }
    }

    fn emit(&self, w: &mut Writer<'_>) -> Result<(), Truncated> {
        match self {
            Self::V4(ip, _) => w.variable(|out| ip.emit(out))?,
            Self::V6(ip, _) => w.array(|out| ip.emit(out))?,
            Self::Grh(grh) => w.array(|out| grh.emit(out))?,
        }
        match self.udp() {
            Some(udp) => w.array(|out| udp.emit(out)),
            None => Ok(()),
        }
    }
}

/// A RoCE packet with everything around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Ethernet header; `None` if the bytes start at the network header.
    pub eth: Option<Ethernet>,
    /// Network and UDP headers.
    pub net: Net,
    /// From the base transport header to the padding.
    pub transport: &'a [u8],
    /// The ICRC as it was found, right or wrong.
    pub icrc: u32,
    /// What follows the ICRC: padding of short Ethernet frames.
    pub trailer: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A sealed RoCEv2 packet over IPv4, without Ethernet header: DF set, identification zero.
    pub fn v4(
        src: [u8; 4],
        dst: [u8; 4],
        src_port: u16,
        transport: &'a [u8],
    ) -> Result<Self, TooLong> {
        let len = length_on_wire(Udp::LEN, transport, Ipv4::MIN_LEN)?;
        let net = Net::V4(Ipv4::udp(src, dst, len), Udp::roce(src_port, len));
        Ok(Self::bare(net, transport).sealed())
    }

    /// A sealed RoCEv2 packet over IPv6, without Ethernet header.
    pub fn v6(
        src: [u8; 16],
        dst: [u8; 16],
        src_port: u16,
        transport: &'a [u8],
    ) -> Result<Self, TooLong> {
        let len = length_on_wire(Udp::LEN, transport, 0)?;
        let net = Net::V6(Ipv6::udp(src, dst, len), Udp::roce(src_port, len));
        Ok(Self::bare(net, transport).sealed())
    }

    /// A sealed RoCEv1 packet, without Ethernet header.
    pub fn v1(sgid: Gid, dgid: Gid, transport: &'a [u8]) -> Result<Self, TooLong> {
        let len = length_on_wire(0, transport, 0)?;
        Ok(Self::bare(Net::Grh(Grh::new(sgid, dgid, len)), transport).sealed())
    }

    /// The same packet behind an Ethernet header of the right type.
    #[must_use]
    pub const fn on_ethernet(self, src: [u8; 6], dst: [u8; 6]) -> Self {
        let ethertype = match self.net {
            Net::V4(..) => IPV4_ETHERTYPE,
            Net::V6(..) => IPV6_ETHERTYPE,
            Net::Grh(_) => ROCE_V1_ETHERTYPE,
        };
        Self { eth: Some(Ethernet { dst, src, vlan: None, ethertype }), ..self }
    }

    /// Reads a frame that starts with its Ethernet header.
    pub fn parse_ethernet(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (eth, rest) = Ethernet::parse(bytes)?;
        let frame = match eth.ethertype {
            IPV4_ETHERTYPE => Self::parse_v4(rest),
            IPV6_ETHERTYPE => Self::parse_v6(rest),
            ROCE_V1_ETHERTYPE => Self::parse_grh(rest),
            other => Err(FrameError::Ethertype(other)),
        }?;
        Ok(Self { eth: Some(eth), ..frame })
    }

    /// Reads a RoCEv2 packet that starts with its IPv4 or IPv6 header.
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let first = bytes.first().ok_or(FrameError::Truncated)?;
        match first >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            version => Err(FrameError::Ip(IpError::BadVersion(version))),
        }
    }

    /// Reads a RoCEv1 packet that starts with its GRH.
    pub fn parse_grh(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (grh, rest) = Grh::parse(bytes)?;
        if grh.ip_version != 6 {
            return Err(FrameError::Ip(IpError::BadVersion(grh.ip_version)));
        }
        if grh.next_header != GRH_NEXT_HEADER {
            return Err(FrameError::NotTransport(grh.next_header));
        }
        let (body, trailer) =
            rest.split_at_checked(usize::from(grh.payload_len)).ok_or(FrameError::Truncated)?;
        Self::with_icrc(Net::Grh(grh), body, trailer)
    }

    /// The ICRC this packet should have.
    pub fn expected_icrc(&self) -> u32 {
        self.net.icrc_prefix().icrc(self.transport)
    }

    /// Whether the ICRC is right.
    pub fn icrc_ok(&self) -> bool {
        self.icrc == self.expected_icrc()
    }

    /// The same packet with the right ICRC.
    #[must_use]
    pub fn sealed(self) -> Self {
        Self { icrc: self.expected_icrc(), ..self }
    }

    /// Writes the frame at the start of `out` and returns its length. The ICRC goes out as it is,
    /// so a frame that was parsed comes out byte for byte.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let mut w = Writer::new(out);
        if let Some(eth) = &self.eth {
            w.variable(|out| eth.emit(out))?;
        }
        self.net.emit(&mut w)?;
        w.bytes(self.transport)?;
        w.bytes(&self.icrc.to_le_bytes())?;
        w.bytes(self.trailer)?;
        Ok(w.written())
    }

    const fn bare(net: Net, transport: &'a [u8]) -> Self {
        Self { eth: None, net, transport, icrc: 0, trailer: &[] }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let view = Ipv4View::new_checked(bytes)?;
        if !view.checksum_ok() {
            return Err(FrameError::Ipv4Checksum);
        }
        let (ip, _) = Ipv4::parse(bytes)?;
        let (datagram, trailer) =
            bytes.split_at_checked(usize::from(ip.total_len)).ok_or(FrameError::Truncated)?;
        let body = datagram.get(ip.wire_len()..).ok_or(FrameError::BadLength)?;
        if ip.is_fragment() {
            return Err(FrameError::Fragment);
        }
        let (udp, body) = parse_udp(ip.protocol, body)?;
        Self::with_icrc(Net::V4(ip, udp), body, trailer)
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let (ip, rest) = Ipv6::parse(bytes)?;
        let (body, trailer) =
            rest.split_at_checked(usize::from(ip.payload_len)).ok_or(FrameError::Truncated)?;
        let (udp, body) = parse_udp(ip.next_header, body)?;
        Self::with_icrc(Net::V6(ip, udp), body, trailer)
    }

    /// Splits the ICRC off `body`.
    fn with_icrc(net: Net, body: &'a [u8], trailer: &'a [u8]) -> Result<Self, FrameError> {
        let (transport, icrc) = body.split_last_chunk().ok_or(FrameError::BadLength)?;
        Ok(Self { eth: None, net, transport, icrc: u32::from_le_bytes(*icrc), trailer })
    }
}

/// The UDP header and payload of an IP payload.
fn parse_udp(protocol: u8, bytes: &[u8]) -> Result<(Udp, &[u8]), FrameError> {
    if protocol != UDP_PROTOCOL {
        return Err(FrameError::NotUdp(protocol));
    }
    let (udp, body) = Udp::parse(bytes).map_err(|_| FrameError::BadLength)?;
    if udp.dst_port != ROCE_UDP_PORT {
        return Err(FrameError::NotRoce(udp.dst_port));
    }
    if usize::from(udp.len) != bytes.len() {
        return Err(FrameError::BadLength);
    }
    Ok((udp, body))
}

/// `header + transport + ICRC`, leaving `reserve` below the largest 16-bit length.
fn length_on_wire(header: usize, transport: &[u8], reserve: usize) -> Result<u16, TooLong> {
    let len = header.checked_add(icrc::LEN).and_then(|n| n.checked_add(transport.len()));
    let len = len.and_then(|n| u16::try_from(n).ok()).ok_or(TooLong)?;
    if usize::from(len) + reserve > usize::from(u16::MAX) { Err(TooLong) } else { Ok(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSPORT: [u8; 16] = [4, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4];

    /// The error of a frame after `change`, IPv4 checksum repaired.
    fn error(frame: &Frame<'_>, change: impl FnOnce(&mut Frame<'_>)) -> Option<FrameError> {
        let mut frame = frame.on_ethernet([2; 6], [4; 6]);
        change(&mut frame);
        let mut out = [0; 128];
        let len = frame.emit(&mut out).expect("fits");
        Frame::parse_ethernet(&out[..len]).err()
    }

    fn v4() -> Frame<'static> {
        Frame::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, &TRANSPORT).expect("short")
    }

    fn change_v4(f: impl FnOnce(&mut Ipv4, &mut Udp)) -> Option<FrameError> {
        error(&v4(), |frame| {
            if let Net::V4(ip, udp) = &mut frame.net {
                f(ip, udp);
            }
        })
    }

    fn change_v1(f: impl FnOnce(&mut Grh)) -> Option<FrameError> {
        let frame = Frame::v1(Gid::ZERO, Gid::ZERO, &TRANSPORT).expect("short");
        error(&frame, |frame| {
            if let Net::Grh(grh) = &mut frame.net {
                f(grh);
            }
        })
    }

    #[test]
    fn ipv4_errors_say_why() {
        assert_eq!(change_v4(|_, _| ()), None);
        assert_eq!(change_v4(|ip, _| ip.more_fragments = true), Some(FrameError::Fragment));
        assert_eq!(change_v4(|ip, _| ip.fragment_offset = 1), Some(FrameError::Fragment));
        assert_eq!(change_v4(|ip, _| ip.protocol = 6), Some(FrameError::NotUdp(6)));
        assert_eq!(change_v4(|_, udp| udp.dst_port = 53), Some(FrameError::NotRoce(53)));
        assert_eq!(change_v4(|_, udp| udp.len -= 1), Some(FrameError::BadLength));
        assert_eq!(change_v4(|_, udp| udp.len += 1), Some(FrameError::BadLength));
        assert_eq!(change_v4(|ip, _| ip.total_len = 19), Some(FrameError::BadLength));
        assert_eq!(change_v4(|ip, _| ip.total_len = 27), Some(FrameError::BadLength));
        assert_eq!(change_v4(|ip, _| ip.total_len += 1), Some(FrameError::Truncated));
        let no_icrc = change_v4(|ip, udp| (ip.total_len, udp.len) = (31, 11));
        assert_eq!(no_icrc, Some(FrameError::BadLength));
        let mut out = [0; 128];
        let len = v4().emit(&mut out).expect("fits");
        out[8] ^= 1;
        assert_eq!(Frame::parse_ip(&out[..len]), Err(FrameError::Ipv4Checksum));
        out[0] = 0x75;
        assert_eq!(Frame::parse_ip(&out[..len]), Err(FrameError::Ip(IpError::BadVersion(7))));
        assert_eq!(Frame::parse_ip(&[]), Err(FrameError::Truncated));
    }

    #[test]
    fn other_errors_say_why() {
        assert_eq!(change_v1(|_| ()), None);
        assert_eq!(change_v1(|grh| grh.next_header = 17), Some(FrameError::NotTransport(17)));
        assert_eq!(change_v1(|grh| grh.payload_len = 3), Some(FrameError::BadLength));
        assert_eq!(change_v1(|grh| grh.payload_len = 21), Some(FrameError::Truncated));
        let version = Some(FrameError::Ip(IpError::BadVersion(4)));
        assert_eq!(change_v1(|grh| grh.ip_version = 4), version);
        let arp = error(&v4(), |frame| {
            frame.eth = frame.eth.map(|eth| Ethernet { ethertype: 0x0806, ..eth });
        });
        assert_eq!(arp, Some(FrameError::Ethertype(0x0806)));
    }

    #[test]
    fn the_longest_packet_fits_and_one_more_byte_does_not() {
        let bytes = [0; 65_536];
        let (a, b) = ([1; 16], [2; 16]);
        let v4 = |n: usize| Frame::v4([1; 4], [2; 4], 1, &bytes[..n]).map(|_| ());
        let v6 = |n: usize| Frame::v6(a, b, 1, &bytes[..n]).map(|_| ());
        let v1 = |n: usize| Frame::v1(Gid(a), Gid(b), &bytes[..n]).map(|_| ());
        assert_eq!((v4(65_503), v4(65_504)), (Ok(()), Err(TooLong)));
        assert_eq!((v6(65_523), v6(65_524)), (Ok(()), Err(TooLong)));
        assert_eq!((v1(65_531), v1(65_532)), (Ok(()), Err(TooLong)));
    }
}
