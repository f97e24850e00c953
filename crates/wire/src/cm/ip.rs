//! What the RDMA IP connection manager adds (annex A11): port numbers as service identifiers, and
//! the addresses at the start of the private data.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Truncated;
use crate::field::Field;

/// Bytes that the addresses take of the private data.
pub const IP_CM_LEN: usize = 36;

const VERSIONS: Field<0, 1> = Field;
const IP_VERSION: Field<1, 1> = Field;
const PORT: Field<2, 2> = Field;
const SRC: Field<4, 16> = Field;
const DST: Field<20, 16> = Field;

/// Who is asked for a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ServiceId(pub u64);

/// Which port numbers are meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Datagrams with the queue key of IPoIB, to which they can be addressed.
    Ipoib = 0x0002,
    /// Services of InfiniBand.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space with this number, as in `rdma_port_space`.
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x0002 => Some(Self::Ipoib),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// Whether its services are of datagrams.
    pub const fn is_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib)
    }
}

impl ServiceId {
    /// The service at an IP port.
    pub const fn ip(space: PortSpace, port: u16) -> Self {
        Self(((space as u64) << 16) | port as u64)
    }

    /// The IP port, if it is one.
    pub const fn as_ip(self) -> Option<(PortSpace, u16)> {
        let port = (self.0 & 0xffff) as u16;
        match PortSpace::from_number(self.0 >> 16) {
            Some(space) => Some((space, port)),
            None => None,
        }
    }
}

/// The addresses at the start of the private data of a REQ or SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCm {
    /// Version of this header: major in the upper four bits.
    pub version: u8,
    /// Port of the sender.
    pub src_port: u16,
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
}

impl IpCm {
    /// Reads the header; `None` if its IP version is neither 4 nor 6.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Truncated> {
        let header: &[u8; IP_CM_LEN] = bytes.first_chunk().ok_or(Truncated)?;
        let address = |bytes: [u8; 16], is_v4: bool| -> IpAddr {
            let [.., a, b, c, d] = bytes;
            if is_v4 { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(bytes).into() }
        };
        let is_v4 = match IP_VERSION.get(header)[0] >> 4 {
            4 => true,
            6 => false,
            _ => return Ok(None),
        };
        Ok(Some(Self {
            version: VERSIONS.get(header)[0],
            src_port: u16::from_be_bytes(PORT.get(header)),
            src: address(SRC.get(header), is_v4),
            dst: address(DST.get(header), is_v4),
        }))
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; IP_CM_LEN]) {
        let address = |ip: IpAddr| -> [u8; 16] {
            match ip {
                IpAddr::V4(ip) => {
                    let [a, b, c, d] = ip.octets();
                    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
                }
                IpAddr::V6(ip) => ip.octets(),
            }
        };
        VERSIONS.put(out, [self.version]);
        IP_VERSION.put(out, [if self.src.is_ipv4() { 0x40 } else { 0x60 }]);
        PORT.put(out, self.src_port.to_be_bytes());
        SRC.put(out, address(self.src));
        DST.put(out, address(self.dst));
    }
}
