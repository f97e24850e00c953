//! The ICRC: what a sender seals packets with, and the layer that checks them.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket can neither choose nor see. What
//! saves us: an unconnected socket that forbids fragmentation sends identification 0, and the
//! segments of an offloaded train carry 0, 1, 2 and so on. So the sender knows what the network
//! will see, and the receiver tries the index in the train, then 0. Foreign senders use other
//! numbers; because a CRC is linear, it can still be decided whether any identification makes the
//! packet right, which leaves one damaged packet in 65,536 undetected.

use std::io;
use std::os::fd::BorrowedFd;

use feroce_train::{Framing, Instant, LinkCaps, RxMeta, RxTrain, Train};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Gid, Grh, Ipv4, Ipv6, ROCE_UDP_PORT, Udp};

use crate::{Link, LinkCounters, Sent};

/// Length of the ICRC.
pub(crate) const ICRC_LEN: usize = 4;

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

/// How strict to be about packets whose IPv4 identification cannot be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcPolicy {
    /// Any identification will do, if it makes the ICRC right.
    #[default]
    AnyId,
    /// Only what a feroce sender would have used: the index in the train, or 0.
    Strict,
}

/// Checks the ICRC of received packets and drops those that fail.
#[derive(Debug)]
pub struct Verified<L> {
    inner: L,
    policy: IcrcPolicy,
    /// Packets dropped.
    bad: u64,
    /// Prefix of the last packet, which mostly serves the next, too.
    cached: Option<(RxMeta, usize, IcrcPrefix)>,
}

impl<L: Link> Verified<L> {
    /// Checks what `inner` receives.
    pub fn new(inner: L, policy: IcrcPolicy) -> Self {
        Self { inner, policy, bad: 0, cached: None }
    }
}

/// The state that checking needs, apart from the link below.
struct Checker<'a> {
    policy: IcrcPolicy,
    bad: &'a mut u64,
    cached: &'a mut Option<(RxMeta, usize, IcrcPrefix)>,
}

impl Checker<'_> {
    /// Whether packet `index` of a train, ICRC included, is undamaged.
    fn is_good(&mut self, meta: &RxMeta, packet: &[u8], index: u16) -> bool {
        let Some((transport, icrc)) = packet.split_last_chunk::<ICRC_LEN>() else { return false };
        let prefix = match *self.cached {
            Some((known, len, prefix)) if known == *meta && len == transport.len() => prefix,
            _ => {
                let RxMeta { framing, src, dst, udp_sport, .. } = *meta;
                let prefix = seal_prefix(framing, src, dst, udp_sport, transport.len());
                *self.cached = Some((*meta, transport.len(), prefix));
                prefix
            }
        };
        let is_ipv4 = meta.framing == Framing::RoceV2 && meta.dst.as_ipv4().is_some();
        if !is_ipv4 {
            return prefix.verify(transport, *icrc);
        }
        prefix.with_ipv4_id(index).verify(transport, *icrc)
            || (index != 0 && prefix.verify(transport, *icrc))
            || (self.policy == IcrcPolicy::AnyId
                && prefix.find_ipv4_id(transport, u32::from_le_bytes(*icrc)).is_some())
    }

    /// Passes on what is good of a train: whole if possible, packet by packet if not.
    fn pass(&mut self, train: &RxTrain<'_>, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        let stride = train.stride.max(1);
        let mut first_bad = None;
        for (i, packet) in train.bytes.chunks(stride).enumerate() {
            if !self.is_good(&train.meta, packet, i as u16) {
                first_bad = Some(i);
                break;
            }
        }
        let Some(first_bad) = first_bad else {
            return sink(&RxTrain { trailer: ICRC_LEN, ..*train });
        };
        for (i, packet) in train.bytes.chunks(stride).enumerate() {
            if i < first_bad || (i > first_bad && self.is_good(&train.meta, packet, i as u16)) {
                sink(&RxTrain {
                    bytes: packet,
                    stride: packet.len(),
                    trailer: ICRC_LEN,
                    meta: train.meta,
                });
            } else {
                *self.bad += 1;
            }
        }
    }
}

impl<L: Link> Link for Verified<L> {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn send(&mut self, now: Instant, train: &Train) -> io::Result<Sent> {
        self.inner.send(now, train)
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let mut checker =
            Checker { policy: self.policy, bad: &mut self.bad, cached: &mut self.cached };
        self.inner.receive(now, budget, &mut |train| checker.pass(train, sink))
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.inner.wait_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        self.inner.set_addresses(addresses)
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: Gid) -> io::Result<()> {
        self.inner.leave(group)
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.push(("rx_icrc_encapsulated", self.bad));
        counters
    }
}
