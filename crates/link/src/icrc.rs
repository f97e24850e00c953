//! The ICRC: what a sender seals packets with, and the layer that checks them.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket can neither choose nor see. What
//! saves us: an unconnected socket that forbids fragmentation sends identification 0, and the
//! segments of an offloaded train carry 0, 1, 2 and so on; a connected one counts on from what it
//! can learn (see `udp::lane`). So the sender knows what the network will see. The receiver does not know where its kernel cut or merged what the sender sent; it
//! guesses that the packets it got together have consecutive identifications, and that those of a
//! flow go on from where they were. Where that is wrong it uses that a CRC is linear: the one
//! identification that makes the packet right, if there is one, can be computed.

use std::io;
use std::ops::Range;

use feroce_train::{Framing, Instant, Path, Payload, RxMeta, RxTrain, Single, Train};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Grh, Ipv4, Ipv6, ROCE_UDP_PORT, Udp};

use crate::{Link, LinkCounters, Sent, forward_to_inner};

/// Length of the ICRC.
pub(crate) const ICRC_LEN: usize = 4;

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

/// The prefixes that were used last. Most packets are as long as one of the last few, and go
/// between the same two places.
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
    /// What was asked for last, and the answer.
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
pub(crate) struct Sealer {
    prefixes: Prefixes,
}

impl Sealer {
    /// Writes packet `i` of a train that leaves from `udp_sport`, and its ICRC for identification
    /// `id`, and returns the length.
    pub(crate) fn emit(
        &mut self,
        train: &Train,
        udp_sport: u16,
        (i, id): (u32, u16),
        out: &mut [u8],
    ) -> usize {
        let len = train.emit(i, out);
        self.seal(&train.path, udp_sport, id, &mut out[..len + ICRC_LEN]);
        len + ICRC_LEN
    }

    /// Writes a packet that leaves from `udp_sport`, and its ICRC for identification `id`, and
    /// returns the length.
    #[inline]
    pub(crate) fn emit_single(
        &mut self,
        packet: &mut Single<'_>,
        (udp_sport, id): (u16, u16),
        out: &mut [u8],
    ) -> usize {
        let len = packet.len + ICRC_LEN;
        (packet.write)(&mut out[..packet.len]);
        self.seal(packet.path, udp_sport, id, &mut out[..len]);
        len
    }

    /// Ends a packet with its ICRC.
    #[inline]
    fn seal(&mut self, path: &Path, udp_sport: u16, id: u16, packet: &mut [u8]) {
        let Some((packet, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() else { return };
        let key = (Framing::RoceV2, path.src, path.dst, udp_sport, packet.len());
        *icrc = self.prefixes.get(key).with_ipv4_id(id).seal(packet);
    }

    /// Writes the packets of a train one after the other, each with its ICRC for identification
    /// 0, 1, 2 and so on, and returns the length.
    pub(crate) fn emit_all(&mut self, train: &Train, udp_sport: u16, out: &mut [u8]) -> usize {
        let (src, dst, len) = (train.path.src, train.path.dst, train.packet_len(0));
        let key = (Framing::RoceV2, src, dst, udp_sport, len);
        let mut prefixes = OfTrain::new(&mut self.prefixes, key);
        if let Payload::Packets { bytes, len } = &train.payload {
            let prefix = prefixes.get(*len);
            let places = out.chunks_exact_mut(len + ICRC_LEN);
            for ((packet, place), id) in bytes.chunks_exact(*len).zip(places).zip(0..) {
                let (copy, icrc) = place.split_at_mut(*len);
                copy.copy_from_slice(packet);
                icrc.copy_from_slice(&prefix.with_ipv4_id(id).seal(packet));
            }
            return train.count as usize * (len + ICRC_LEN);
        }
        // All heads come first: what was just written in pieces is slow to read as a whole.
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
            // Of those that are not hashed already, each is sealed after the next is copied: what
            // was just written is slow to read.
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

/// Ends a packet with its ICRC.
#[inline]
fn seal(packet: Range<usize>, prefix: IcrcPrefix, out: &mut [u8]) {
    let icrc = prefix.seal(&out[packet.clone()]);
    out[packet.end..][..ICRC_LEN].copy_from_slice(&icrc);
}

/// What is known of the identifications of a received train: packet `i` is likely to have
/// `base + i`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    base: u16,
}

/// Flows whose identifications do not begin at zero each time, and what they go on with.
#[derive(Debug)]
struct Counting {
    /// Source address and port, and the next identification. Flows share the places.
    flows: Vec<(Gid, u16, Ids)>,
}

impl Default for Counting {
    fn default() -> Self {
        Self { flows: vec![(Gid::default(), 0, Ids::default()); 256] }
    }
}

impl Counting {
    #[inline]
    fn place(src: Gid, udp_sport: u16) -> usize {
        let [.., host] = src.0;
        usize::from(udp_sport.to_be_bytes()[1] ^ host)
    }

    /// What the next packets of a flow are likely to have.
    #[inline]
    fn next(&self, src: Gid, udp_sport: u16) -> Ids {
        match &self.flows[Self::place(src, udp_sport)] {
            (known, port, ids) if *known == src && *port == udp_sport => *ids,
            _ => Ids::default(),
        }
    }

    /// A packet of the flow had `id`.
    #[inline]
    fn note(&mut self, src: Gid, udp_sport: u16, id: u16) {
        let next = Ids { base: id.wrapping_add(1) };
        self.flows[Self::place(src, udp_sport)] = (src, udp_sport, next);
    }
}

impl Ids {
    /// The identification that makes the ICRC of packet `index` right; without IPv4, zero if it
    /// is right.
    pub(crate) fn find(
        &mut self,
        prefix: &IcrcPrefix,
        transport: &[u8],
        icrc: [u8; ICRC_LEN],
        index: u16,
    ) -> Option<u16> {
        let likely = self.base.wrapping_add(index);
        if prefix.with_ipv4_id(likely).verify(transport, icrc) {
            return Some(likely);
        }
        if likely != 0 && prefix.verify(transport, icrc) {
            return Some(0);
        }
        let id = prefix.find_ipv4_id(transport, u32::from_le_bytes(icrc))?;
        self.base = id.wrapping_sub(index);
        Some(id)
    }
}

/// Whether packets have an identification.
pub(crate) fn is_ipv4(framing: Framing, dst: Gid) -> bool {
    framing == Framing::RoceV2 && dst.as_ipv4().is_some()
}

/// The packets in a range of the bytes of a train, as a train.
pub(crate) fn part<'a>(train: &RxTrain<'a>, range: Range<usize>) -> RxTrain<'a> {
    RxTrain { bytes: train.bytes.get(range).unwrap_or(&[]), ..*train }
}

/// How strict to be about packets whose IPv4 identification cannot be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcPolicy {
    /// Any identification will do, if it makes the ICRC right: one damaged packet in 65,536
    /// passes.
    #[default]
    AnyId,
    /// Only what a feroce sender can have used, which is below 64, or the one after that of the
    /// last packet of its flow: one damaged packet in 66 million passes. The first packet of a
    /// flow that counts on from anywhere does not.
    Strict,
}

/// Checks the ICRC of received packets and drops those that fail.
///
/// Belongs on top of a stack of layers: what passes up from it has its ICRC marked as trailer.
#[derive(Debug)]
pub struct Verified<L> {
    inner: L,
    checker: Checker,
}

impl<L: Link> Verified<L> {
    /// Checks what `inner` receives.
    pub fn new(inner: L, policy: IcrcPolicy) -> Self {
        Self { inner, checker: Checker::new(policy) }
    }
}

/// The state that checking needs, apart from the link below.
#[derive(Debug)]
pub(crate) struct Checker {
    policy: IcrcPolicy,
    /// Packets dropped.
    bad: u64,
    prefixes: Prefixes,
    counting: Counting,
}

impl Checker {
    pub(crate) fn new(policy: IcrcPolicy) -> Self {
        Self { policy, bad: 0, prefixes: Prefixes::default(), counting: Counting::default() }
    }

    /// What it did so far.
    pub(crate) fn counters(&self) -> LinkCounters {
        vec![("rx_icrc_encapsulated", self.bad)]
    }

    /// Passes on what is good of a train: whole if possible, else in as few pieces as possible.
    pub(crate) fn pass(&mut self, train: &RxTrain<'_>, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        let train = RxTrain { trailer: ICRC_LEN, ..*train };
        let RxMeta { framing, src, dst, udp_sport, .. } = train.meta;
        let len = train.stride.min(train.bytes.len()).saturating_sub(ICRC_LEN);
        let mut prefixes = OfTrain::new(&mut self.prefixes, (framing, src, dst, udp_sport, len));
        let (is_ipv4, policy) = (is_ipv4(framing, dst), self.policy);
        let next = self.counting.next(src, udp_sport);
        let (mut ids, mut last) = (next, None);
        let mut good = 0..0;
        for (i, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            let is_good = packet.split_last_chunk().is_some_and(|(transport, icrc)| {
                let prefix = prefixes.get(transport.len());
                if !is_ipv4 {
                    return prefix.verify(transport, *icrc);
                }
                let Some(id) = ids.find(&prefix, transport, *icrc, i as u16) else { return false };
                let goes_on = id == next.base.wrapping_add(i as u16) && next.base != 0;
                if goes_on || id >= MAX_TRAIN_PACKETS {
                    last = Some(id);
                }
                goes_on || id < MAX_TRAIN_PACKETS || policy == IcrcPolicy::AnyId
            });
            if !is_good {
                self.bad += 1;
                if !good.is_empty() {
                    sink(&part(&train, good.clone()));
                }
                good.start = good.end + packet.len();
                good.end = good.start;
                continue;
            }
            good.end += packet.len();
        }
        if let Some(id) = last {
            self.counting.note(src, udp_sport, id);
        }
        match good.len() {
            0 => {}
            all if all == train.bytes.len() => sink(&train),
            _ => sink(&part(&train, good)),
        }
    }
}

impl<L: Link> Link for Verified<L> {
    forward_to_inner!();

    fn save(&mut self) {
        self.inner.save();
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }

    fn send(&mut self, now: Instant, train: &Train) -> io::Result<Sent> {
        self.inner.send(now, train)
    }

    fn send_all(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.inner.send_all(now, trains)
    }

    fn send_single(&mut self, packet: Single<'_>) -> bool {
        self.inner.send_single(packet)
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let checker = &mut self.checker;
        self.inner.receive(now, budget, &mut |train| checker.pass(train, sink))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.extend(self.checker.counters());
        counters
    }
}

#[cfg(test)]
mod tests;
