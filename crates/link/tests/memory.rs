//! The link in memory, and the ICRC check on top of it.

use crate::common;
use crate::common::{SendOne as _, Sent};
use crate::common::{
    counter, flat, is_readable, loopback, packets_of, path, psns, receive, receive_packets, send_of,
};
use feroce_link::{Carrier, Control, Covered, IcrcPolicy, LinkCounters, MemoryLink, Verified};
use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;

const NOW: Instant = Instant::ZERO;

fn pair() -> (Verified<MemoryLink>, Verified<MemoryLink>) {
    let (a, b) = MemoryLink::pair().expect("a pair");
    (Verified::new(a, IcrcPolicy::Strict), Verified::new(b, IcrcPolicy::Strict))
}

fn v6(n: u8) -> Gid {
    common::netns::global(n)
}

#[test]
fn trains_arrive_whole_both_ways() {
    let (mut a, mut b) = pair();
    for (src, dst) in [(loopback(1), loopback(2)), (v6(1), v6(2))] {
        for (count, stride, last) in [(1, 4, 0), (64, 256, 5), (15, 4096, 4096)] {
            let train = send_of(path(src, dst), count, stride, last);
            assert_eq!(a.send_one(NOW, &train).expect("sent"), Sent::Done);
            let got = receive_packets(&mut b, count as usize);
            assert_eq!((got.len(), flat(&got)), (1, packets_of(&train)));
            assert_eq!((got[0].meta.src.gid, got[0].meta.dst.gid), (src, dst));
            assert_eq!(b.send_one(NOW, &train).expect("sent"), Sent::Done);
            assert_eq!(flat(&receive_packets(&mut a, count as usize)), packets_of(&train));
        }
    }
    assert_eq!(counter(&a, "rx_icrc_encapsulated") + counter(&b, "rx_icrc_encapsulated"), 0);
}

#[test]
fn the_descriptor_says_when_there_is_something() {
    let (mut a, mut b) = pair();
    let train = send_of(path(loopback(1), loopback(2)), 1, 64, 64);
    for _ in 0..3 {
        assert!(!is_readable(&b, 0));
        a.send_one(NOW, &train).expect("sent");
        a.send_one(NOW, &train).expect("sent");
        assert!(is_readable(&b, 0));
        assert_eq!(b.receive(NOW, 1, &mut |_| ()).expect("received"), 1);
        assert!(is_readable(&b, 0), "one is left");
        assert_eq!(b.receive(NOW, 8, &mut |_| ()).expect("received"), 1);
    }
}

#[test]
fn a_full_queue_says_so_and_says_when_there_is_room() {
    let (mut a, mut b) = pair();
    let train = send_of(path(loopback(1), loopback(2)), 15, 4096, 4096);
    let mut sent = 0;
    while a.send_one(NOW, &train).expect("no error") == Sent::Done {
        sent += 1;
        assert!(sent < 1000, "the queue never fills");
    }
    assert!(!is_readable(&a, 0));
    assert_eq!(receive_packets(&mut b, sent * 15).len(), sent);
    assert!(is_readable(&a, 0), "no word of the room");
    assert!(receive(&mut a, NOW).is_empty());
    assert!(!is_readable(&a, 0));
    assert_eq!(a.send_one(NOW, &train).expect("room"), Sent::Done);
}

#[test]
fn addresses_and_groups_decide_who_gets_a_packet() {
    let (mut a, mut b) = pair();
    let [own, other, foreign] = [1, 2, 3].map(loopback);
    let group = Gid::from_ipv4([239, 1, 1, 1]);
    a.control(Control::Addresses(&[own])).expect("fine");
    b.control(Control::Addresses(&[other])).expect("fine");
    let mut arrivals = |dst| {
        a.send_one(NOW, &send_of(path(own, dst), 1, 8, 8)).expect("sent");
        (receive(&mut a, NOW).len(), receive(&mut b, NOW).len())
    };
    assert_eq!(arrivals(own), (1, 0));
    assert_eq!(arrivals(other), (0, 1));
    assert_eq!(arrivals(foreign), (0, 0));
    assert_eq!(arrivals(group), (0, 0));
    b.control(Control::Join(group)).expect("joined");
    a.control(Control::Join(group)).expect("joined");
    a.send_one(NOW, &send_of(path(own, group), 1, 8, 8)).expect("sent");
    assert_eq!((receive(&mut a, NOW).len(), receive(&mut b, NOW).len()), (1, 1));
    b.control(Control::Leave(group)).expect("left");
    a.send_one(NOW, &send_of(path(own, group), 1, 8, 8)).expect("sent");
    assert_eq!((receive(&mut a, NOW).len(), receive(&mut b, NOW).len()), (1, 0));
    assert_eq!(counter(&a, "memory_tx_no_receiver"), 2);
}

/// A link that hands out one train, as the test made it.
struct Fixed(RxMeta, usize, Vec<u8>);

impl Carrier for Fixed {
    fn caps(&self) -> LinkCaps {
        LinkCaps::SINGLE
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn send(&mut self, _: Instant, trains: &[Train]) -> std::io::Result<usize> {
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn arm(&mut self, _: Instant) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn receive(
        &mut self,
        _: Instant,
        _: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> std::io::Result<usize> {
        sink(&RxTrain { meta: self.0, stride: self.1, bytes: &self.2, trailer: 0, remote: None });
        Ok(1)
    }

    fn wait_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        unreachable!("the test does not wait")
    }

    fn control(&mut self, _: Control<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::new()
    }
}

/// What passes of 8 packets whose identifications are `ids`, after `damage`; and how many trains.
fn pass(
    policy: IcrcPolicy,
    dst: Gid,
    ids: &[u16],
    damage: impl FnOnce(&mut [u8], usize),
) -> (Vec<u32>, usize, u64) {
    let src = if dst.as_ipv4().is_some() { loopback(9) } else { v6(9) };
    let train = send_of(path(src, dst), ids.len() as u32, 64, 64);
    let mut bytes = Vec::new();
    for (packet, id) in packets_of(&train).iter().zip(ids) {
        let prefix = Covered::of_path(&train.path, 0xc001).prefix(packet.len());
        bytes.extend(packet);
        bytes.extend(prefix.with_ipv4_id(*id).seal(packet));
    }
    let stride = bytes.len() / ids.len();
    damage(&mut bytes, stride);
    let meta = RxMeta { src: src.into(), dst: dst.into(), udp_sport: 0xc001, ..RxMeta::default() };
    let mut link = Verified::new(Fixed(meta, stride, bytes), policy);
    let got = receive(&mut link, NOW);
    let psns = psns(&flat(&got)).iter().map(|psn| psn & 0xff).collect();
    (psns, got.len(), counter(&link, "rx_icrc_encapsulated"))
}

const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// However kernels cut and merged what a sender of ours sent, it stays one train.
#[test]
fn identifications_of_our_senders_pass() {
    for ids in [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0; 8],
        [40, 41, 42, 43, 44, 45, 46, 47],
        [56, 57, 58, 59, 60, 61, 62, 63],
        [5, 6, 0, 1, 2, 0, 0, 1],
    ] {
        let found = pass(IcrcPolicy::Strict, loopback(8), &ids, |_, _| ());
        assert_eq!(found, (ALL.to_vec(), 1, 0), "{ids:?}");
    }
}

#[test]
fn identifications_of_foreign_senders_need_the_lenient_policy() {
    let ids = [1060, 61, 9000, 1062, 1063, 300, 30_000, 0xffff];
    let found = pass(IcrcPolicy::AnyId, loopback(8), &ids, |_, _| ());
    assert_eq!(found, (ALL.to_vec(), 1, 0));
    let found = pass(IcrcPolicy::Strict, loopback(8), &ids, |_, _| ());
    assert_eq!(found, (vec![1], 1, 7));
}

/// A flow that begins like one of ours is held to the identifications of ours.
#[test]
fn identifications_that_a_flow_would_not_use_are_damage() {
    let ids = [60, 61, 62, 63, 0x8000, 64, 0, 1];
    for policy in [IcrcPolicy::AnyId, IcrcPolicy::Strict] {
        let found = pass(policy, loopback(8), &ids, |_, _| ());
        assert_eq!(found, (vec![0, 1, 2, 3, 6, 7], 2, 2));
    }
}

#[test]
fn damaged_packets_are_cut_out_of_their_train() {
    for dst in [loopback(8), v6(8)] {
        let ids = if dst.as_ipv4().is_some() { [0, 1, 2, 3, 4, 5, 6, 7] } else { [0; 8] };
        let found = pass(IcrcPolicy::Strict, dst, &ids, |bytes, stride| {
            bytes[2 * stride + 20] ^= 0x10;
            bytes[6 * stride - 1] ^= 1;
        });
        assert_eq!(found, (vec![0, 1, 3, 4, 6, 7], 3, 2));
        let found = pass(IcrcPolicy::Strict, dst, &ids, |bytes, stride| {
            bytes.iter_mut().step_by(stride).for_each(|byte| *byte ^= 0x20);
        });
        assert_eq!(found, (vec![], 0, 8));
    }
}
