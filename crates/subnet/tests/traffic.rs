//! Packets of data on virtual lanes: what holds them back, and what ends a wait.

use feroce_subnet::{Counters, DataRun, PortRef, Receipt, Traffic, TrafficEvent};
use feroce_train::Instant;
use feroce_wire::mad::{Attribute, Method, PortInfo, VlArbitrationBlock, VlWeight};
use feroce_wire::{Lid, Pkey};

use super::common::Bench;

/// Packets of 2072 bytes and 33 blocks each; a receive buffer has 2048 blocks.
const LEN: usize = 2072;
const FIT: u32 = 2048 / 33;

fn run(dlid: u16, sl: u8, packets: u32) -> DataRun {
    DataRun {
        slid: Lid(1),
        dlid: Lid(dlid),
        sl,
        pkey: Pkey::DEFAULT,
        packets,
        words: u64::from(packets) * LEN as u64 / 4,
        longest: LEN,
    }
}

/// A subnet with packets in it. The body of a run is its service level.
struct Flow {
    bench: Bench,
    traffic: Traffic<u8>,
    /// Packets that have left Host1 and that have arrived, by service level.
    left: [u32; 8],
    arrived: [u32; 8],
    receipts: Vec<Receipt>,
}

impl Flow {
    fn new() -> Self {
        let bench = Bench::up();
        let traffic = Traffic::new(&bench.subnet, 0);
        Self { bench, traffic, left: [0; 8], arrived: [0; 8], receipts: Vec::new() }
    }

    fn now(&self) -> Instant {
        self.bench.now
    }

    fn send(&mut self, run: &DataRun) {
        let (now, host1) = (self.now(), self.bench.host1);
        self.traffic.send(now, &mut self.bench.subnet, host1, run, run.sl);
        self.look();
    }

    fn look(&mut self) {
        while let Some(event) = self.traffic.poll_event(&self.bench.subnet) {
            match event {
                TrafficEvent::Left(part) => self.left[usize::from(part.body)] += part.count,
                TrafficEvent::Arrived(_, part, receipt) => {
                    self.arrived[usize::from(part.body)] += part.count;
                    self.receipts.extend(receipt);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The receiver takes everything, again and again.
    fn take_all(&mut self) {
        while let Some(receipt) = self.receipts.pop() {
            let now = self.now();
            self.traffic.taken(now, &mut self.bench.subnet, receipt);
            self.look();
        }
    }

    /// Time passes, and the driver does what is due.
    fn pass(&mut self, ns: u64) {
        self.bench.now = self.now().plus_nanos(ns);
        let now = self.now();
        self.traffic.handle_timeout(now, &mut self.bench.subnet);
        self.look();
    }

    fn counters(&self, name: &str, port: u8) -> Counters {
        *self.bench.subnet.port(self.bench.port(name, port)).expect("a port").counters()
    }

    /// Changes the settings of a port of Leaf2, which is behind Spine1.
    fn set(&mut self, port: u8, change: impl Fn(PortInfo) -> PortInfo) {
        let (path, about) = (&[1, 7, 2][..], u32::from(port));
        let smp = self.bench.ask(path, Method::GET, Attribute::PORT_INFO, about, &[]);
        let (info, _) = PortInfo::parse(&smp.expect("an answer").data).expect("whole");
        let info =
            PortInfo { state: Default::default(), physical_state: Default::default(), ..info };
        let bytes = change(info).to_bytes();
        self.bench.ask(path, Method::SET, Attribute::PORT_INFO, about, &bytes).expect("an answer");
    }

    /// Packets never wait for too long.
    fn set_patience(&mut self) {
        for (path, ports) in [(&[1][..], 1..=8), (&[1, 8], 1..=2), (&[1, 7, 2], 1..=8)] {
            for port in ports {
                let smp = self.bench.ask(path, Method::GET, Attribute::PORT_INFO, port, &[]);
                let (info, _) = PortInfo::parse(&smp.expect("an answer").data).expect("whole");
                let info = PortInfo {
                    hoq_life: 20,
                    state: Default::default(),
                    physical_state: Default::default(),
                    ..info
                };
                let bytes = info.to_bytes();
                let set = (Method::SET, Attribute::PORT_INFO);
                self.bench.ask(path, set.0, set.1, port, &bytes).expect("an answer");
            }
        }
    }
}

#[test]
fn a_receiver_that_takes_nothing_holds_back_its_lane_and_no_other() {
    let mut flow = Flow::new();
    flow.set_patience();
    let before = flow.counters("Host4", 1);
    // Buffers of Host4, of both switches before it, and of the first switch.
    flow.send(&run(8, 0, 5 * FIT));
    assert_eq!((flow.arrived[0], flow.left[0]), (FIT, 4 * FIT));
    flow.pass(1_000_000_000);
    assert_eq!((flow.arrived[0], flow.left[0]), (FIT, 4 * FIT));
    // A second in ticks of 4 ns, at every port on the way.
    for (name, port) in [("Leaf2", 2), ("Spine2", 2), ("Leaf1", 8), ("Host1", 1)] {
        let counters = flow.counters(name, port);
        assert_eq!((counters.xmit_wait, counters.xmit_discards), (250_000_000, 0), "{name}");
    }
    assert_eq!(flow.counters("Spine1", 2).xmit_wait, 0);
    // Another lane is free.
    flow.send(&run(8, 1, 10));
    assert_eq!((flow.arrived[1], flow.left[1]), (10, 10));
    // So is another host, by other links.
    flow.send(&run(7, 2, 10));
    assert_eq!(flow.arrived[2], 10);
    flow.take_all();
    assert_eq!((flow.arrived[0], flow.left[0]), (5 * FIT, 5 * FIT));
    assert_eq!(flow.traffic.poll_timeout(&flow.bench.subnet), None);
    let all = flow.counters("Host4", 1);
    let packets = u64::from(5 * FIT + 10);
    assert_eq!(all.unicast_rcv, before.unicast_rcv + packets);
    assert_eq!(all.rcv_words, before.rcv_words + packets * LEN as u64 / 4);
}

#[test]
fn packets_that_wait_for_longer_than_their_lifetime_are_dropped() {
    let mut flow = Flow::new();
    flow.set_patience();
    // The link to Host4 gives up after 4096 ns << 3, and after two packets the lane has stalled.
    flow.set(2, |info| PortInfo { hoq_life: 3, vl_stall_count: 2, ..info });
    flow.send(&run(8, 0, 3 * FIT));
    let discards = |flow: &Flow| flow.counters("Leaf2", 2).xmit_discards;
    let life = 4096 << 3;
    let due = flow.traffic.poll_timeout(&flow.bench.subnet);
    assert_eq!(due, Some(flow.now().plus_nanos(life)));
    flow.pass(life - 1);
    assert_eq!(discards(&flow), 0);
    flow.pass(1);
    assert_eq!(discards(&flow), 1);
    flow.pass(life);
    // The whole queue goes, and what comes to it: nothing waits any more.
    assert_eq!(discards(&flow), u64::from(2 * FIT));
    flow.send(&run(8, 0, 3));
    assert_eq!(discards(&flow), u64::from(2 * FIT) + 3);
    assert_eq!(flow.left[0], 3 * FIT + 3);
    // After eight lifetimes the lane tries again.
    flow.pass(8 * life);
    flow.take_all();
    flow.send(&run(8, 0, 3));
    assert_eq!(flow.arrived[0], FIT + 3);
    assert_eq!(discards(&flow), u64::from(2 * FIT) + 3);
}

#[test]
fn lanes_share_a_slow_link_as_the_tables_of_arbitration_say() {
    let mut flow = Flow::new();
    flow.set_patience();
    let leaf: PortRef = flow.bench.port("Leaf2", 2);
    let mut table = VlArbitrationBlock::default();
    table.entries[0] = VlWeight { vl: 0, weight: 32 };
    table.entries[1] = VlWeight { vl: 1, weight: 96 };
    let arbitration = Attribute::VL_ARBITRATION;
    let (path, low) = (&[1, 7, 2][..], 1 << 16 | 2);
    let set = flow.bench.ask(path, Method::SET, arbitration, low, &table.to_bytes());
    set.expect("an answer");
    // A packet in a millisecond.
    let now = flow.now();
    let bps = LEN as u64 * 8 * 1000;
    flow.traffic.set_rate(now, &mut flow.bench.subnet, leaf, Some(bps));
    assert_eq!(flow.traffic.rate_bps(leaf), Some(bps));
    flow.send(&run(8, 0, 200));
    flow.send(&run(8, 1, 200));
    for _ in 0..101 {
        flow.take_all();
        flow.pass(1_000_000);
    }
    let [slow, fast, ..] = flow.arrived;
    assert_eq!(slow + fast, 102);
    assert!((74..=78).contains(&fast), "{slow} and {fast}");
}

#[test]
fn a_link_that_goes_down_drops_what_waits_for_it() {
    let mut flow = Flow::new();
    flow.set_patience();
    flow.send(&run(8, 0, 5 * FIT));
    let (now, spine) = (flow.now(), flow.bench.port("Spine2", 2));
    flow.bench.subnet.set_link(now, spine, false);
    flow.pass(1);
    // Those that were before the link are gone; those behind it wait for Host4.
    assert_eq!(flow.counters("Spine2", 2).xmit_discards, u64::from(3 * FIT));
    assert_eq!(flow.left[0], 5 * FIT);
    flow.take_all();
    assert_eq!(flow.arrived[0], 2 * FIT);
}
