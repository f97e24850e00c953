//! TCP segments with their IP headers, as captures have them.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::{Ipv4, Ipv6};

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

const PROTOCOL: u8 = 6;
const HEADER: usize = 20;

/// Most payload of a segment, so that its length fits into the headers of both versions of IP.
pub(super) const MAX_PAYLOAD: usize = 65_475;

/// Everything about a segment but its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
}

impl Segment {
    /// Appends an IP packet; the payload has at most [`MAX_PAYLOAD`] bytes.
    pub(super) fn write(&self, payload: &[u8], out: &mut Vec<u8>) {
        let len = u16::try_from(HEADER + payload.len()).unwrap_or(u16::MAX);
        let mut sum = u64::from(len) + u64::from(PROTOCOL);
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (src.octets(), dst.octets());
                sum += words(&src) + words(&dst);
                let mut header = [0; Ipv4::MIN_LEN];
                // The header has no options: it fits.
                let _ = Ipv4 { protocol: PROTOCOL, ..Ipv4::udp(src, dst, len) }.emit(&mut header);
                out.extend(header);
            }
            (src, dst) => {
                let (src, dst) = (v6(src), v6(dst));
                sum += words(&src) + words(&dst);
                let mut header = [0; Ipv6::LEN];
                Ipv6 { next_header: PROTOCOL, ..Ipv6::udp(src, dst, len) }.emit(&mut header);
                out.extend(header);
            }
        }
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&self.src.port().to_be_bytes());
        header[2..4].copy_from_slice(&self.dst.port().to_be_bytes());
        header[4..8].copy_from_slice(&self.seq.to_be_bytes());
        if self.flags & ACK != 0 {
            header[8..12].copy_from_slice(&self.ack.to_be_bytes());
        }
        header[12] = (HEADER as u8 / 4) << 4;
        header[13] = self.flags;
        header[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        sum += words(&header) + words(payload);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        header[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        out.extend(header);
        out.extend(payload);
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The sum of the 16-bit words of `bytes`.
fn words(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| {
        let low = pair.get(1).copied().unwrap_or(0);
        u64::from(u16::from_be_bytes([pair[0], low]))
    };
    bytes.chunks(2).map(word).sum()
}
