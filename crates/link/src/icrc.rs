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

use feroce_train::{Framing, Path, Payload, Single, Train};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Grh, Ipv4, Ipv6, ROCE_UDP_PORT, Udp};

pub use check::{Checker, Verified, part};
pub(crate) use check::{Ids, is_ipv4};
pub use flows::IcrcPolicy;

/// Length of the ICRC.
pub const ICRC_LEN: usize = 4;

/// Most packets in a train of ours: as many segments as every kernel with segmentation offload
/// takes. Identifications of our packets are below it.
pub(crate) const MAX_TRAIN_PACKETS: u16 = 64;

/// The state of the ICRC after the headers below the transport packet of `len` bytes. On IPv4 it
/// stands for identification 0.
pub fn seal_prefix(framing: Framing, src: Gid, dst: Gid, udp_sport: u16, len: usize) -> IcrcPrefix {
    let len = u16::try_from(len + ICRC_LEN).unwrap_or(u16::MAX);
    match framing {
        Framing::RoceV2 => {
            let udp_len = len.saturating_add(Udp::LEN as u16);
            let udp =
                Udp { src_port: udp_sport, dst_port: ROCE_UDP_PORT, len: udp_len, checksum: 0 };
            match (src.as_ipv4(), dst.as_ipv4()) {
                (Some(src), Some(dst)) => IcrcPrefix::for_ipv4(&Ipv4::udp(src, dst, udp_len), &udp),
                _ => IcrcPrefix::for_ipv6(&Ipv6::udp(src.0, dst.0, udp_len), &udp),
            }
        }
        Framing::RoceV1 | Framing::InfiniBand => IcrcPrefix::for_grh(&Grh::new(src, dst, len)),
    }
}

/// What a prefix depends on: framing, source, destination, source port and length.
type PrefixKey = (Framing, Gid, Gid, u16, usize);

/// The prefixes that were used last. Most packets are as long as one of the last few, and have the
/// same source and destination.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    known: [Option<(PrefixKey, IcrcPrefix)>; 4],
    oldest: usize,
}

impl Prefixes {
    /// The prefix for packets of `len` bytes, as [`seal_prefix`].
    #[inline]
    fn get(&mut self, key: PrefixKey) -> IcrcPrefix {
        match self.known.iter().flatten().find(|(known, _)| *known == key) {
            Some((_, prefix)) => *prefix,
            None => self.learn(key),
        }
    }

    #[cold]
    fn learn(&mut self, key: PrefixKey) -> IcrcPrefix {
        let (framing, src, dst, udp_sport, len) = key;
        let prefix = seal_prefix(framing, src, dst, udp_sport, len);
        self.known[self.oldest] = Some((key, prefix));
        self.oldest = (self.oldest + 1) % self.known.len();
        prefix
    }
}

/// The prefixes of the packets of one train, which mostly are all of one length.
struct OfTrain<'a> {
    prefixes: &'a mut Prefixes,
    /// The key of the last lookup, and its prefix.
    key: PrefixKey,
    prefix: IcrcPrefix,
}

impl<'a> OfTrain<'a> {
    /// `key` is that of its first packet.
    #[inline]
    fn new(prefixes: &'a mut Prefixes, key: PrefixKey) -> Self {
        let prefix = prefixes.get(key);
        Self { prefixes, key, prefix }
    }

    /// The prefix for packets of `len` bytes.
    #[inline]
    fn get(&mut self, len: usize) -> IcrcPrefix {
        if self.key.4 != len {
            self.key.4 = len;
            self.prefix = self.prefixes.get(self.key);
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
        self.prefixes.get((path.framing, path.src.gid, path.dst.gid, udp_sport, len))
    }

    /// Writes the packets of a train that leaves from `udp_sport` one after the other, each with
    /// its ICRC for identification 0, 1 and so on, and returns the length.
    pub fn emit_all(&mut self, train: &Train, udp_sport: u16, out: &mut [u8]) -> usize {
        let (path, len) = (&train.path, train.packet_len(0));
        let key = (path.framing, path.src.gid, path.dst.gid, udp_sport, len);
        let mut prefixes = OfTrain::new(&mut self.prefixes, key);
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
pub(crate) fn emit_single(packet: &mut Single<'_>, prefix: IcrcPrefix, out: &mut [u8]) -> usize {
    (packet.write)(&mut out[..packet.len]);
    seal(0..packet.len, prefix, out);
    packet.len + ICRC_LEN
}

/// Ends a packet with its ICRC.
#[inline]
fn seal(packet: Range<usize>, prefix: IcrcPrefix, out: &mut [u8]) {
    let icrc = prefix.seal(&out[packet.clone()]);
    out[packet.end..][..ICRC_LEN].copy_from_slice(&icrc);
}

#[cfg(test)]
mod tests;
