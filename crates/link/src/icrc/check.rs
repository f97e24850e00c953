//! The check of the ICRC of received packets.

use std::io;
use std::ops::Range;

use feroce_train::{Instant, RxTrain, Single, Train};
use feroce_wire::icrc::IcrcPrefix;

use super::flows::{Flows, IcrcPolicy};
use super::{Covered, ICRC_LEN, Known, OfTrain, Prefixes};
use crate::{Carrier, Control, LinkCounters, forward_to_inner, impl_layer};

/// The search for the identifications of a received train: packet `i` is likely to have `base + i`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    base: u16,
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
        // The identifications of the packets behind it probably continue from there.
        self.base = id.wrapping_sub(index);
        Some(id)
    }
}

/// The packets in a range of the bytes of a train, as a train.
pub fn part<'a>(train: &RxTrain<'a>, range: Range<usize>) -> RxTrain<'a> {
    RxTrain { bytes: train.bytes.get(range).unwrap_or(&[]), ..*train }
}

/// Checks the ICRC of received packets and drops those that fail.
///
/// Belongs on top of a stack of layers: what passes up from it has its ICRC marked as trailer.
#[derive(Debug)]
pub struct Verified<C> {
    inner: C,
    checker: Checker,
}

impl<C: Carrier> Verified<C> {
    /// Checks what `inner` receives.
    pub fn new(inner: C, policy: IcrcPolicy) -> Self {
        Self { inner, checker: Checker::new(policy) }
    }
}

/// The state that checking needs, apart from the link below.
#[derive(Debug)]
pub struct Checker {
    policy: IcrcPolicy,
    /// Packets dropped.
    bad: u64,
    prefixes: Prefixes,
    flows: Flows,
    /// The prefix of the last packet that came by itself, for identification 0, and the length of
    /// that packet with its ICRC. The next one is likely to have the same.
    like: Option<Known>,
}

impl Checker {
    /// Checks by `policy`.
    pub fn new(policy: IcrcPolicy) -> Self {
        let (prefixes, flows) = (Prefixes::default(), Flows::default());
        Self { policy, bad: 0, prefixes, flows, like: None }
    }

    /// What it did so far.
    pub fn counters(&self) -> LinkCounters {
        vec![("rx_icrc_encapsulated", self.bad)]
    }

    /// Passes on the good packets of a train: whole if possible, else in as few pieces as possible.
    #[inline]
    pub fn pass(&mut self, train: &RxTrain<'_>, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        let is_as_expected = self.is_as_expected(train);
        // Copied only now: a wide load of bytes that were just written by narrower stores is slow.
        let train = RxTrain { trailer: ICRC_LEN, ..*train };
        match is_as_expected {
            true => sink(&train),
            false => self.pass_good(&train, sink),
        }
    }

    /// Whether a train is one packet that is good, and like the last one.
    #[inline]
    fn is_as_expected(&self, train: &RxTrain<'_>) -> bool {
        let like = self.like.as_ref();
        let like = like.filter(|l| l.len == train.bytes.len() && l.headers.is_of(&train.meta));
        let Some(like) = like.filter(|_| train.bytes.len() <= train.stride) else { return false };
        let Some((transport, icrc)) = train.bytes.split_last_chunk() else { return false };
        like.prefix.verify(transport, *icrc)
    }

    fn pass_good(&mut self, train: &RxTrain<'_>, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        if train.bytes.is_empty() {
            self.bad += 1;
            return;
        }
        let len = train.stride.min(train.bytes.len()).saturating_sub(ICRC_LEN);
        let headers = Covered::from(&train.meta);
        let mut prefixes = OfTrain::new(&mut self.prefixes, headers, len);
        let is_single = train.bytes.len() <= train.stride;
        self.like = is_single.then(|| {
            let (len, prefix) = (train.bytes.len(), prefixes.get(len));
            Known { headers, len, prefix }
        });
        let (is_ipv4, policy) = (headers.is_ipv4(), self.policy);
        let flow = self.flows.get(&headers.src.gid, headers.udp_sport);
        let mut ids = Ids::default();
        let mut good = 0..0;
        for (i, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            let is_good = packet.split_last_chunk().is_some_and(|(transport, icrc)| {
                let prefix = prefixes.get(transport.len());
                if !is_ipv4 {
                    return prefix.verify(transport, *icrc);
                }
                let id = ids.find(&prefix, transport, *icrc, i as u16);
                id.is_some_and(|id| flow.may_have(id, policy))
            });
            if !is_good {
                self.bad += 1;
                if !good.is_empty() {
                    sink(&part(train, good.clone()));
                }
                good.start = good.end + packet.len();
                good.end = good.start;
                continue;
            }
            good.end += packet.len();
        }
        match good.len() {
            0 => {}
            all if all == train.bytes.len() => sink(train),
            _ => sink(&part(train, good)),
        }
    }
}

impl_layer!(Verified);

impl<C: Carrier> Carrier for Verified<C> {
    forward_to_inner!();

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        self.inner.control(control)
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.inner.send(now, trains)
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
