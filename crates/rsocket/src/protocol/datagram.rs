//! Headers of datagrams.
//!
//! The first datagram to an address goes through an ordinary UDP socket, with a [`UdpHeader`] that
//! says which queue pair it could have come from. The answer says the same of the peer. From then
//! on datagrams go from queue pair to queue pair, with a [`Header`] that says which socket they are
//! from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// How a datagram of this protocol begins.
const TAG: [u8; 4] = [0x55; 4];

const V4_LEN: usize = 8;
const V6_LEN: usize = 24;
const UDP_V4_LEN: usize = 16;
const UDP_V6_LEN: usize = 28;

/// What stands before a datagram between queue pairs: the socket it is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header(pub(crate) SocketAddr);

impl Header {
    /// Bytes that the longest takes.
    pub(crate) const MOST: usize = V6_LEN;

    /// Writes it; says how long it is.
    pub(crate) fn emit(&self, out: &mut [u8; Self::MOST]) -> usize {
        let len = if self.0.is_ipv4() { V4_LEN } else { V6_LEN };
        out[0] = if self.0.is_ipv4() { 4 } else { 6 };
        out[1] = len as u8;
        out[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        match self.0 {
            SocketAddr::V4(addr) => out[4..8].copy_from_slice(&addr.ip().octets()),
            SocketAddr::V6(addr) => {
                out[4..8].copy_from_slice(&addr.flowinfo().to_ne_bytes());
                out[8..24].copy_from_slice(&addr.ip().octets());
            }
        }
        len
    }

    /// Reads it; what is behind it is the datagram.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (version, len) = (*bytes.first()?, usize::from(*bytes.get(1)?));
        let (head, rest) = bytes.split_at_checked(len)?;
        let port = u16::from_be_bytes(*head.get(2..)?.first_chunk()?);
        let addr = match (version, len) {
            (4, V4_LEN) => {
                let ip: [u8; 4] = *head.get(4..)?.first_chunk()?;
                (Ipv4Addr::from(ip), port).into()
            }
            (6, V6_LEN) => {
                let flow = u32::from_ne_bytes(*head.get(4..)?.first_chunk()?);
                let ip: [u8; 16] = *head.get(8..)?.first_chunk()?;
                SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, 0).into()
            }
            _ => return None,
        };
        Some((Self(addr), rest))
    }
}

/// What a datagram through a UDP socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// It carries data, and wants an answer.
    Data,
    /// It is the answer.
    Control,
}

/// What stands before a datagram through a UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UdpHeader {
    pub(crate) operation: Operation,
    /// The queue pair of the sender.
    pub(crate) qpn: u32,
    /// The address of the sender.
    pub(crate) addr: IpAddr,
}

impl UdpHeader {
    /// Bytes that the longest takes.
    pub(crate) const MOST: usize = UDP_V6_LEN;

    /// Writes it; says how long it is.
    pub(crate) fn emit(&self, out: &mut [u8; Self::MOST]) -> usize {
        out[..4].copy_from_slice(&TAG);
        out[5] = match self.operation {
            Operation::Data => 0,
            Operation::Control => 7,
        };
        out[7] = 0;
        out[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        let (version, len) = match self.addr {
            IpAddr::V4(ip) => {
                out[12..16].copy_from_slice(&ip.octets());
                (4, UDP_V4_LEN)
            }
            IpAddr::V6(ip) => {
                out[12..28].copy_from_slice(&ip.octets());
                (6, UDP_V6_LEN)
            }
        };
        out[4] = version;
        out[6] = len as u8;
        len
    }

    /// Reads it; what is behind it is the datagram.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let head: [u8; 12] = *bytes.first_chunk()?;
        let [t0, t1, t2, t3, version, operation, len, _, q0, q1, q2, q3] = head;
        if [t0, t1, t2, t3] != TAG {
            return None;
        }
        let (head, rest) = bytes.split_at_checked(len.into())?;
        let addr = head.get(12..)?;
        let addr = match (version, usize::from(len)) {
            (4, UDP_V4_LEN) => Ipv4Addr::from(*addr.first_chunk::<4>()?).into(),
            (6, UDP_V6_LEN) => Ipv6Addr::from(*addr.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let operation = match operation {
            0 => Operation::Data,
            7 => Operation::Control,
            _ => return None,
        };
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]) & 0xff_ffff;
        Some((Self { operation, qpn, addr }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn headers_are_those_of_librdmacm() {
        let mut out = [0; Header::MOST];
        let len = Header(addr("10.9.0.1:258")).emit(&mut out);
        assert_eq!(out[..len], [4, 8, 1, 2, 10, 9, 0, 1]);
        let mut out = [0xff; UdpHeader::MOST];
        let header = UdpHeader {
            operation: Operation::Control,
            qpn: 0x01_0203,
            addr: addr("10.9.0.1:0").ip(),
        };
        let len = header.emit(&mut out);
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 1, 2, 3, 10, 9, 0, 1];
        assert_eq!(out[..len], bytes);
    }

    #[test]
    fn headers_come_back_with_what_is_behind_them() {
        for from in ["10.9.0.1:258", "[fd09::1]:7174"].map(addr) {
            let mut out = [0; Header::MOST];
            let len = Header(from).emit(&mut out);
            let bytes = [&out[..len], b"data"].concat();
            assert_eq!(Header::parse(&bytes), Some((Header(from), &b"data"[..])));
            assert_eq!(Header::parse(&bytes[..len - 1]), None, "cut off");
            let udp = UdpHeader { operation: Operation::Data, qpn: 5, addr: from.ip() };
            let mut out = [0; UdpHeader::MOST];
            let len = udp.emit(&mut out);
            let bytes = [&out[..len], b"data"].concat();
            assert_eq!(UdpHeader::parse(&bytes), Some((udp, &b"data"[..])));
            assert_eq!(UdpHeader::parse(&bytes[..len - 1]), None, "cut off");
        }
    }

    #[test]
    fn what_is_not_a_header_is_none() {
        assert_eq!(Header::parse(&[]), None);
        assert_eq!(Header::parse(&[4, 24, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::parse(&[4, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(UdpHeader::parse(&[0x55; 40]), None);
        assert_eq!(UdpHeader::parse(&[0; 40]), None);
    }
}
