//! Fault injection over the link in memory.

use crate::common::SendOne as _;
use crate::common::{Got, counter, flat, loopback, packets_of, path, psns, receive, send_of};
use feroce_link::{Carrier, Fault, FaultConfig, FaultSwitch, IcrcPolicy, MemoryLink, Verified};

use feroce_train::Instant;
use proptest::prelude::*;
use std::sync::Arc;

/// Two ends, the second with faults.
fn pair(faults: &str) -> (MemoryLink, Verified<Fault<MemoryLink>>) {
    let (a, b) = MemoryLink::pair().expect("a pair");
    let config = FaultConfig::parse(faults).expect("well written");
    (a, Verified::new(Fault::new(b, &config), IcrcPolicy::Strict))
}

fn at_us(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// Everything that comes of `trains` trains of `count` packets, with time passing as the link asks
/// for it; and the PSNs in order, relative to the first.
fn run(faults: &str, trains: usize, count: u32) -> (Vec<Got>, Vec<u32>, impl Carrier + use<>) {
    let (mut tx, mut rx) = pair(faults);
    let mut got = Vec::new();
    let mut now = Instant::ZERO;
    for n in 0..trains {
        let mut train = send_of(path(loopback(1), loopback(2)), count, 128, 128);
        train.bth.psn = train.bth.psn.wrapping_add(n as u32 * count);
        tx.send_one(now, &train).expect("sent");
        got.extend(receive(&mut rx, now));
    }
    while let Some(then) = rx.poll_timeout() {
        now = now.max(then);
        got.extend(receive(&mut rx, now));
    }
    let psns = psns(&flat(&got)).iter().map(|psn| psn - 0x0010_0000).collect();
    (got, psns, rx)
}

fn all(n: u32) -> Vec<u32> {
    (0..n).collect()
}

#[test]
fn without_faults_nothing_changes() {
    let (got, order, link) = run("", 10, 15);
    assert_eq!((got.len(), order), (10, all(150)));
    for name in ["lost", "duplicated", "corrupted", "reordered", "delayed", "overflowed"] {
        assert_eq!(counter(&link, &format!("fault_{name}")), 0);
    }
    let train = send_of(path(loopback(1), loopback(2)), 15, 128, 128);
    assert_eq!(got[0].packets, packets_of(&train));
}

/// Where faults are possible but spare a train, it stays whole.
#[test]
fn spared_trains_stay_whole() {
    let (got, order, _) = run("loss=0.0000001%,dup=0.0000001%,corrupt=0.0000001%,seed=1", 50, 10);
    assert_eq!((got.len(), order), (50, all(500)));
}

#[test]
fn lost_packets_are_missing_and_the_others_stay_together() {
    let (got, order, link) = run("loss=10%,seed=3", 100, 20);
    let lost = counter(&link, "fault_lost");
    assert_eq!(order.len() as u64 + lost, 2000);
    assert!((120..280).contains(&lost), "{lost} of 2000 lost at 10%");
    assert!(order.is_sorted());
    assert!(got.len() < 500, "{} pieces for 100 trains and {lost} losses", got.len());
    let (_, order, link) = run("loss=100%", 3, 5);
    assert_eq!((order.len(), counter(&link, "fault_lost")), (0, 15));
}

#[test]
fn duplicates_follow_their_originals() {
    let (_, order, link) = run("dup=5%,seed=3", 100, 20);
    let again = order.windows(2).filter(|w| w[0] == w[1]).count();
    assert_eq!(again as u64, counter(&link, "fault_duplicated"));
    assert!((50..150).contains(&again), "{again} of 2000 duplicated at 5%");
    assert!(order.is_sorted() && order.len() == 2000 + again);
}

#[test]
fn damage_is_noticed() {
    let (_, order, link) = run("corrupt=20%,seed=5", 100, 20);
    let corrupted = counter(&link, "fault_corrupted");
    assert!((300..500).contains(&corrupted), "{corrupted} of 2000 damaged at 20%");
    assert_eq!(counter(&link, "rx_icrc_encapsulated"), corrupted);
    assert_eq!(order.len() as u64 + corrupted, 2000);
}

#[test]
fn reordered_packets_come_so_many_later() {
    for distance in [1, 3, 7] {
        let (_, order, link) = run(&format!("reorder=1%:{distance},seed=9"), 100, 20);
        let reordered = counter(&link, "fault_reordered");
        assert!((5..60).contains(&reordered), "{reordered} of 2000 reordered at 1%");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, all(2000));
        let late: Vec<_> = (0..order.len())
            .filter(|&i| order[..i].iter().any(|before| *before > order[i]))
            .map(|i| order[..i].iter().filter(|before| **before > order[i]).count())
            .collect();
        assert_eq!(late.len() as u64, reordered);
        assert!(late.iter().all(|n| *n >= distance / 2 && *n <= distance + 1), "{late:?}");
        assert!(late.iter().filter(|n| **n == distance).count() * 2 > late.len(), "{late:?}");
    }
}

/// A packet that nothing follows is not held for good.
#[test]
fn the_last_packet_is_not_forgotten() {
    let (mut tx, mut rx) = pair("reorder=100%:5");
    tx.send_one(at_us(0), &send_of(path(loopback(1), loopback(2)), 1, 8, 8)).expect("sent");
    assert!(receive(&mut rx, at_us(0)).is_empty());
    let then = rx.poll_timeout().expect("it waits");
    assert_eq!(receive(&mut rx, then).len(), 1);
    assert_eq!(rx.poll_timeout(), None);
}

#[test]
fn a_fixed_delay_keeps_trains_whole() {
    let (mut tx, mut rx) = pair("delay=50us");
    let train = send_of(path(loopback(1), loopback(2)), 15, 128, 128);
    for start in [0, 10, 20] {
        tx.send_one(at_us(start), &train).expect("sent");
        assert!(receive(&mut rx, at_us(start)).is_empty());
    }
    for (us, trains) in [(49, 0), (50, 1), (59, 0), (60, 1), (70, 1)] {
        assert!(rx.poll_timeout() >= Some(at_us(us)));
        let got = receive(&mut rx, at_us(us));
        assert_eq!(got.len(), trains, "after {us} us");
        assert!(got.iter().all(|g| g.packets == packets_of(&train)));
    }
    assert_eq!((rx.poll_timeout(), counter(&rx, "fault_delayed")), (None, 45));
}

#[test]
fn jitter_varies_the_delay_and_keeps_the_order() {
    let (mut tx, mut rx) = pair("delay=50us~20us,seed=2");
    let mut delays = Vec::new();
    for n in 0..100 {
        let start = at_us(1000 * n);
        tx.send_one(start, &send_of(path(loopback(1), loopback(2)), 1, 8, 8)).expect("sent");
        assert!(receive(&mut rx, start).is_empty());
        let due = rx.poll_timeout().expect("it waits");
        delays.push(due.nanos_since(start));
        assert_eq!(receive(&mut rx, due).len(), 1);
    }
    delays.sort_unstable();
    delays.dedup();
    assert!(delays.len() > 50, "{delays:?}");
    assert!(delays.iter().all(|ns| (30_000..=70_000).contains(ns)), "{delays:?}");
    let (_, order, _) = run("delay=50us~50us,seed=4", 50, 20);
    assert_eq!(order, all(1000));
}

/// 128 bytes of payload are 172 of IPv4: 1376 bits, 1376 ns at 1 Gbit/s.
#[test]
fn a_rate_spaces_packets_and_a_short_queue_loses() {
    let (mut tx, mut rx) = pair("rate=1Gbit:1kB");
    tx.send_one(at_us(0), &send_of(path(loopback(1), loopback(2)), 20, 128, 128)).expect("sent");
    assert!(receive(&mut rx, at_us(0)).is_empty());
    let mut times = Vec::new();
    while let Some(then) = rx.poll_timeout() {
        assert_eq!(flat(&receive(&mut rx, then)).len(), 1);
        times.push(then.as_nanos());
    }
    assert_eq!(times, (1..=6).map(|n| n * 1376).collect::<Vec<_>>());
    assert_eq!(counter(&rx, "fault_overflowed"), 14);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The same seed gives the same fate; switching on one fault leaves the others as they were.
    #[test]
    fn chance_is_a_matter_of_the_seed(seed in any::<u64>(), trains in 1_usize..20) {
        let faults = format!("loss=5%,dup=5%,reorder=5%:2,corrupt=5%,delay=5us~3us,seed={seed}");
        let (first, _, _) = run(&faults, trains, 16);
        let (second, _, _) = run(&faults, trains, 16);
        prop_assert_eq!(first, second);
        let (_, some, _) = run(&format!("loss=20%,seed={seed}"), trains, 16);
        let (_, mut more, _) = run(&format!("loss=20%,dup=20%,seed={seed}"), trains, 16);
        more.dedup();
        prop_assert_eq!(some, more);
    }
}

#[test]
fn faults_are_switched_on_and_off_while_packets_are_on_their_way() {
    let (mut tx, b) = MemoryLink::pair().expect("a pair");
    let switch = Arc::new(FaultSwitch::new(FaultConfig::default()));
    let mut rx = Verified::new(Fault::with_switch(b, Arc::clone(&switch)), IcrcPolicy::Strict);
    let mut send = |n: u32| {
        let mut train = send_of(path(loopback(1), loopback(2)), 1, 128, 128);
        train.bth.psn = train.bth.psn.wrapping_add(n);
        tx.send_one(Instant::ZERO, &train).expect("sent");
    };
    let set = |faults: &str| switch.set(FaultConfig::parse(faults).expect("well written"));
    send(0);
    assert_eq!(receive(&mut rx, at_us(0)).len(), 1, "none to begin with");
    set("loss=100%");
    send(1);
    assert_eq!(receive(&mut rx, at_us(1)).len(), 0);
    assert_eq!(counter(&rx, "fault_lost"), 1);
    set("delay=50us");
    send(2);
    assert_eq!(receive(&mut rx, at_us(10)).len(), 0, "on its way until 60");
    set("off");
    send(3);
    assert_eq!(receive(&mut rx, at_us(20)).len(), 0, "behind the other");
    assert_eq!(rx.poll_timeout(), Some(at_us(60)));
    let got = receive(&mut rx, at_us(60));
    let order: Vec<u32> = psns(&flat(&got)).iter().map(|psn| psn - 0x0010_0000).collect();
    assert_eq!(order, [2, 3]);
    send(4);
    assert_eq!(receive(&mut rx, at_us(61)).len(), 1);
    assert_eq!((counter(&rx, "fault_lost"), rx.poll_timeout()), (1, None));
}
