//! Trains that a link received.

use crate::{Ecn, Framing, Path, PortAddr, RemotePayload};

/// What a link knows of received packets besides their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// Address of the sender.
    pub src: PortAddr,
    /// Address the packets were sent to.
    pub dst: PortAddr,
    /// UDP source port; zero where the framing has none.
    pub udp_sport: u16,
    /// Traffic class without its ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit, if the link can see it.
    pub hop_limit: u8,
    /// Whether congestion was experienced.
    pub ecn: Ecn,
    /// How the packets were framed.
    pub framing: Framing,
    /// Service level on InfiniBand, VLAN priority on RoCEv1; zero on RoCEv2, which does not see it.
    pub sl: u8,
}

impl RxMeta {
    /// Whether the packets have a GRH or an IP header: RoCE packets always do.
    #[inline]
    pub fn has_grh(&self) -> bool {
        !self.dst.gid.is_zero()
    }
}

/// What a receiver sees of packets that took a path.
impl From<&Path> for RxMeta {
    fn from(path: &Path) -> Self {
        Self {
            src: path.src,
            dst: path.dst,
            udp_sport: match path.framing {
                Framing::RoceV2 => path.udp_sport(),
                Framing::RoceV1 | Framing::InfiniBand => 0,
            },
            traffic_class: path.traffic_class & !3,
            hop_limit: path.hop_limit,
            framing: path.framing,
            sl: match path.framing {
                Framing::InfiniBand => path.sl,
                Framing::RoceV1 => path.sl & 7,
                Framing::RoceV2 => 0,
            },
            ecn: Ecn::default(),
        }
    }
}

/// A run of received packets of equal length from one sender; the last may be shorter.
///
/// The link has verified the ICRC of every packet in it.
#[derive(Clone, Copy, Debug)]
pub struct RxTrain<'a> {
    /// Where the packets came from and how.
    pub meta: RxMeta,
    /// The packets one after the other, each from its BTH to its trailer.
    pub bytes: &'a [u8],
    /// Length of every packet but the last, trailer included.
    pub stride: usize,
    /// Bytes at the end of each packet that are not the engine's: 4 where the ICRC is still there.
    pub trailer: usize,
    /// The payload, if it is not in `bytes`: those are the headers of one packet then, which stands
    /// for a run of them.
    pub remote: Option<RemotePayload<'a>>,
}

impl<'a> RxTrain<'a> {
    /// One packet, from the BTH to the end of the padding.
    #[inline]
    pub fn single(meta: RxMeta, bytes: &'a [u8]) -> Self {
        Self { meta, bytes, stride: bytes.len(), trailer: 0, remote: None }
    }

    /// The packets, each from the BTH to the end of the padding.
    #[inline]
    pub fn packets(&self) -> Packets<'a> {
        Packets { bytes: self.bytes, stride: self.stride.max(1), trailer: self.trailer }
    }
}

/// The packets of a received train that were not taken yet.
#[derive(Clone, Debug, Default)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    stride: usize,
    trailer: usize,
}

impl<'a> Packets<'a> {
    /// Takes the next packet if it is as long as `packet` and begins with the same `head` bytes.
    #[inline]
    pub fn next_like(&mut self, packet: &[u8], head: usize) -> Option<&'a [u8]> {
        let mut rest = self.clone();
        let next = rest.next()?;
        let is_alike = next.len() == packet.len() && next.get(..head)? == packet.get(..head)?;
        is_alike.then(|| {
            *self = rest;
            next
        })
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.bytes.is_empty() {
            return None;
        }
        let (packet, rest) = self.bytes.split_at(self.stride.min(self.bytes.len()));
        self.bytes = rest;
        Some(packet.get(..packet.len().saturating_sub(self.trailer)).unwrap_or(&[]))
    }
}
