//! The ICRC: senders append it to packets, and a layer checks it on received ones.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket cannot choose. An unconnected socket
//! that forbids fragmentation sends identification 0, and the segments of an offloaded train carry
//! 0, 1, 2 and so on, so the sender knows what the network will see. The receiver cannot see the
//! identification. It tries the index of the packet in what the kernel merged, then 0. If both
//! fail, the linearity of a CRC gives the one identification that makes the packet right, if there
//! is one; whether the flow may have used it is up to [`IcrcPolicy`].

mod check;
mod flows;

use std::ops::Range;

use feroce_train::{Framing, Path, Payload, PortAddr, RxMeta, Train};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Grh, Ipv4, Ipv6, LinkNext, Lrh, ROCE_UDP_PORT, Udp};

pub(crate) use check::Ids;
pub use check::{Checker, Verified, part};
pub use flows::IcrcPolicy;

/// Length of the ICRC.
pub const ICRC_LEN: usize = 4;

/// Most packets in a train of ours: as many segments as every kernel with segmentation offload
/// takes. Identifications of our packets are below it.
pub(crate) const MAX_TRAIN_PACKETS: u16 = 64;

/// Most bytes of packets in a train of ours, without ICRCs: one UDP datagram holds 65,507 bytes,
/// and 64 ICRCs take 256 of them.
pub(crate) const MAX_TRAIN_BYTES: u32 = 65_000;

/// What the ICRC covers of the headers below the BTH, apart from lengths and the IPv4
/// identification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Covered {
    /// How the packet is framed.
    pub framing: Framing,
    /// Source address.
    pub src: PortAddr,
    /// Destination address.
    pub dst: PortAddr,
    /// UDP source port; only RoCEv2 has one.
    pub udp_sport: u16,
    /// Service level; covered only on InfiniBand without GRH.
    pub sl: u8,
}

impl Covered {
    /// The headers of packets that take a path and leave from `udp_sport`.
    #[inline]
    pub fn of_path(path: &Path, udp_sport: u16) -> Self {
        let Path { framing, src, dst, sl, .. } = *path;
        Self { framing, src, dst, udp_sport, sl }
    }

    /// Whether received packets have these headers.
    #[inline]
    fn is_of(&self, meta: &RxMeta) -> bool {
        let Self { framing, src, dst, udp_sport, sl } = self;
        *framing == meta.framing
            && *src == meta.src
            && *dst == meta.dst
            && *udp_sport == meta.udp_sport
            && *sl == meta.sl
    }

    /// Whether packets have an IPv4 identification.
    pub(crate) fn is_ipv4(&self) -> bool {
        self.framing == Framing::RoceV2 && self.dst.gid.as_ipv4().is_some()
    }

    /// The state of the ICRC after the headers below the transport packet of `len` bytes. On IPv4
    /// it stands for identification 0.
    pub fn prefix(&self, len: usize) -> IcrcPrefix {
        let len = u16::try_from(len + ICRC_LEN).unwrap_or(u16::MAX);
        match self.framing {
            Framing::RoceV2 => self.udp_prefix(len),
            Framing::InfiniBand if self.dst.gid.is_zero() => IcrcPrefix::for_lrh(&Lrh {
                vl: 0,
                lver: 0,
                sl: self.sl,
                resv2: 0,
                next: LinkNext::Local,
                dlid: self.dst.lid,
                resv5: 0,
                words: len.saturating_add(Lrh::LEN as u16) / 4,
                slid: self.src.lid,
            }),
            // With a GRH, the ICRC covers nothing of the LRH.
            Framing::RoceV1 | Framing::InfiniBand => {
                IcrcPrefix::for_grh(&Grh::new(self.src.gid, self.dst.gid, len))
            }
        }
    }

    /// The same, of a datagram with `len` bytes behind its UDP header.
    fn udp_prefix(&self, len: u16) -> IcrcPrefix {
        let len = len.saturating_add(Udp::LEN as u16);
        let udp = Udp { src_port: self.udp_sport, dst_port: ROCE_UDP_PORT, len, checksum: 0 };
        let (src, dst) = (self.src.gid, self.dst.gid);
        match (src.as_ipv4(), dst.as_ipv4()) {
            (Some(src), Some(dst)) => IcrcPrefix::for_ipv4(&Ipv4::udp(src, dst, len), &udp),
            _ => IcrcPrefix::for_ipv6(&Ipv6::udp(src.0, dst.0, len), &udp),
        }
    }
}

/// What the headers of received packets said.
impl From<&RxMeta> for Covered {
    #[inline]
    fn from(meta: &RxMeta) -> Self {
        let RxMeta { framing, src, dst, udp_sport, sl, .. } = *meta;
        Self { framing, src, dst, udp_sport, sl }
    }
}

/// A prefix with what it depends on: the headers, and the length of the transport packet.
#[derive(Clone, Copy, Debug)]
struct Known {
    headers: Covered,
    len: usize,
    prefix: IcrcPrefix,
}

/// The prefixes that were used last. Most packets are as long as one of the last few, and have the
/// same source and destination.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    known: [Option<Known>; 4],
    oldest: usize,
}

impl Prefixes {
    /// The prefix for packets of `len` bytes, as [`Covered::prefix`].
    #[inline]
    fn get(&mut self, headers: &Covered, len: usize) -> IcrcPrefix {
        let mut known = self.known.iter().flatten();
        match known.find(|known| known.len == len && known.headers == *headers) {
            Some(known) => known.prefix,
            None => self.learn(headers, len),
        }
    }

    #[cold]
    fn learn(&mut self, headers: &Covered, len: usize) -> IcrcPrefix {
        let prefix = headers.prefix(len);
        self.known[self.oldest] = Some(Known { headers: *headers, len, prefix });
        self.oldest = (self.oldest + 1) % self.known.len();
        prefix
    }
}

/// The prefixes of the packets of one train, which mostly are all of one length.
struct OfTrain<'a> {
    prefixes: &'a mut Prefixes,
    headers: Covered,
    /// The length of the last lookup, and its prefix.
    len: usize,
    prefix: IcrcPrefix,
}

impl<'a> OfTrain<'a> {
    /// `len` is that of its first packet.
    #[inline]
    fn new(prefixes: &'a mut Prefixes, headers: Covered, len: usize) -> Self {
        let prefix = prefixes.get(&headers, len);
        Self { prefixes, headers, len, prefix }
    }

    /// The prefix for packets of `len` bytes.
    #[inline]
    fn get(&mut self, len: usize) -> IcrcPrefix {
        if self.len != len {
            self.len = len;
            self.prefix = self.prefixes.get(&self.headers, len);
        }
        self.prefix
    }
}

/// Emits packets with their ICRCs.
#[derive(Debug, Default)]
pub struct Sealer {
    prefixes: Prefixes,
}

impl Sealer {
    /// Writes packet `i` of a train that leaves from `udp_sport`, and its ICRC for identification
    /// `id`, and returns the length.
    pub fn emit(
        &mut self,
        train: &Train,
        udp_sport: u16,
        (i, id): (u32, u16),
        out: &mut [u8],
    ) -> usize {
        let len = train.emit(i, out);
        seal(0..len, self.prefix(&train.path, udp_sport, len).with_ipv4_id(id), out);
        len + ICRC_LEN
    }

    /// What packets of `len` bytes begin with that leave from `udp_sport`.
    #[inline]
    pub(crate) fn prefix(&mut self, path: &Path, udp_sport: u16, len: usize) -> IcrcPrefix {
        self.prefixes.get(&Covered::of_path(path, udp_sport), len)
    }

    /// Writes the packets of a train that leaves from `udp_sport` one after the other, each with
    /// its ICRC for identification 0, 1 and so on, and returns the length.
    pub fn emit_all(&mut self, train: &Train, udp_sport: u16, out: &mut [u8]) -> usize {
        let headers = Covered::of_path(&train.path, udp_sport);
        let mut prefixes = OfTrain::new(&mut self.prefixes, headers, train.packet_len(0));
        if let Payload::Packets { bytes, len } = &train.payload {
            let prefix = prefixes.get(*len);
            let places = out.chunks_exact_mut(len + ICRC_LEN);
            for ((packet, place), i) in bytes.chunks_exact(*len).zip(places).zip(0..) {
                let (copy, icrc) = place.split_at_mut(*len);
                copy.copy_from_slice(packet);
                icrc.copy_from_slice(&prefix.with_ipv4_id(i).seal(packet));
            }
            return train.count as usize * (len + ICRC_LEN);
        }
        // All heads come first: a wide load of bytes that were just written by narrower stores
        // stalls until these have left the store buffer.
        let mut end = 0;
        for i in 0..train.count {
            train.emit_head(i, &mut out[end..]);
            end += train.packet_len(i) + ICRC_LEN;
        }
        let (mut at, mut unsealed) = (0, None);
        for i in 0..train.count {
            let packet = at..at + train.packet_len(i);
            at = packet.end + ICRC_LEN;
            let prefix = prefixes.get(packet.len()).with_ipv4_id(i as u16);
            let icrc = train.emit_body(i, &mut out[packet.clone()], prefix);
            // A packet that was not hashed during the copy gets its ICRC after the next packet is
            // copied, because bytes that were just written are slow to read.
            if let Some((packet, prefix)) = unsealed.take() {
                seal(packet, prefix, out);
            }
            match icrc {
                Some(icrc) => out[packet.end..at].copy_from_slice(&icrc),
                None => unsealed = Some((packet, prefix)),
            }
        }
        if let Some((packet, prefix)) = unsealed {
            seal(packet, prefix, out);
        }
        end
    }
}

/// Writes a packet and its ICRC, and returns the length.
#[inline]
pub(crate) fn emit_single(packet: &[u8], prefix: IcrcPrefix, out: &mut [u8]) -> usize {
    let (copy, rest) = out.split_at_mut(packet.len());
    copy.copy_from_slice(packet);
    rest[..ICRC_LEN].copy_from_slice(&prefix.seal(packet));
    packet.len() + ICRC_LEN
}

/// Ends a packet with its ICRC.
#[inline]
fn seal(packet: Range<usize>, prefix: IcrcPrefix, out: &mut [u8]) {
    let icrc = prefix.seal(&out[packet.clone()]);
    out[packet.end..][..ICRC_LEN].copy_from_slice(&icrc);
}

#[cfg(test)]
mod tests;
