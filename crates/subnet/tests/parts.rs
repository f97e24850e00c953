//! A fabric in two parts: what passes the links between them, as messages of a trunk.

use feroce_subnet::{
    DataRun, Landing, Part, PortRef, Receipt, Signal, Subnet, Traffic, TrafficEvent,
};
use feroce_train::Instant;
use feroce_wire::mad::{Attribute, Method, PhysicalState, PortInfo, PortState, SwitchInfo};
use feroce_wire::{Lid, Pkey};

use super::common::Bench;

/// Packets of 2072 bytes and 33 blocks each; a receive buffer has 2048 blocks.
const LEN: usize = 2072;
const FIT: u32 = 2048 / 33;
/// Ways from Host1 to the switches at the ends of a link between the parts.
const SPINE1: [u8; 2] = [1, 7];
const LEAF2: [u8; 3] = [1, 7, 2];

/// A link between the parts: its end in the first one, and its end in the second one.
fn ends(bench: &Bench) -> (PortRef, PortRef) {
    (bench.port("Spine1", 2), bench.port("Leaf2", 7))
}

fn state(subnet: &Subnet, at: PortRef) -> PortState {
    subnet.port(at).expect("a port").info().state
}

/// The states of both ends, each as its own part knows it.
fn states(bench: &mut Bench) -> (PortState, PortState) {
    let (here, there) = ends(bench);
    (state(&bench.subnet, here), state(bench.west(), there))
}

fn downed(bench: &mut Bench) -> (u64, u64) {
    let (here, there) = ends(bench);
    let count = |subnet: &Subnet, at| subnet.port(at).expect("a port").counters().link_downed;
    (count(&bench.subnet, here), count(bench.west(), there))
}

/// Carries what one part has to say to the other. Returns the LIDs of the nodes whose traps have
/// reached Host1.
fn settle(bench: &mut Bench) -> Vec<u16> {
    std::iter::from_fn(|| bench.received(bench.host1)).map(|packet| packet.slid.0).collect()
}

#[test]
fn links_are_up_while_both_parts_are_there() {
    let mut bench = Bench::of_parts();
    assert_eq!(states(&mut bench), (PortState::INIT, PortState::INIT));
    let now = bench.now;
    bench.subnet.lose_part(now, 1);
    assert_eq!(states(&mut bench).0, PortState::DOWN);
    bench.west().lose_part(now, 0);
    settle(&mut bench);
    assert_eq!(states(&mut bench), (PortState::DOWN, PortState::DOWN));
    // One part alone brings nothing up.
    bench.subnet.find_part(now, 1);
    assert_eq!(states(&mut bench), (PortState::DOWN, PortState::DOWN));
    bench.west().find_part(now, 0);
    settle(&mut bench);
    assert_eq!(states(&mut bench), (PortState::INIT, PortState::INIT));
    assert_eq!(downed(&mut bench), (1, 1));
}

#[test]
fn datagrams_pass_by_hops_and_by_lid() {
    let mut bench = Bench::up_in_parts();
    let smp = bench.ask(&LEAF2, Method::GET, Attribute::NODE_INFO, 0, &[]).expect("an answer");
    assert_eq!(smp.header.status & 0x7fff, 0);
    // Host4 is behind both switches.
    assert!(bench.ask_lid(8, Method::GET, Attribute::NODE_INFO, 0).is_some());
    assert_eq!(states(&mut bench), (PortState::ACTIVE, PortState::ACTIVE));
    // A switch that lost a link says so.
    let info = bench.ask(&LEAF2, Method::GET, Attribute::SWITCH_INFO, 0, &[]).expect("an answer");
    assert!(!SwitchInfo::parse(&info.data).expect("whole").0.port_state_change);
    let now = bench.now;
    bench.west().lose_part(now, 0);
    let leaf2 = bench.port("Leaf2", 0);
    let switch = bench.west().nodes()[leaf2.node].switch().expect("a switch").info;
    assert!(switch.port_state_change);
    assert_eq!(bench.ask_lid(8, Method::GET, Attribute::NODE_INFO, 0), None);
}

/// Sets the physical state of a port at the end of a path.
fn set_physical(bench: &mut Bench, path: &[u8], port: u8, physical_state: PhysicalState) {
    let modifier = u32::from(port);
    let smp = bench.ask(path, Method::GET, Attribute::PORT_INFO, modifier, &[]);
    let info = PortInfo::parse(&smp.expect("an answer").data).expect("whole").0;
    let info = PortInfo { state: PortState::DOWN, physical_state, ..info };
    bench.ask(path, Method::SET, Attribute::PORT_INFO, modifier, &info.to_bytes());
    settle(bench);
}

#[test]
fn an_end_that_goes_down_takes_the_other_one_along() {
    let mut bench = Bench::up_in_parts();
    set_physical(&mut bench, &SPINE1, 2, PhysicalState::DISABLED);
    assert_eq!(states(&mut bench), (PortState::DOWN, PortState::DOWN));
    set_physical(&mut bench, &SPINE1, 2, PhysicalState::POLLING);
    assert_eq!(states(&mut bench), (PortState::INIT, PortState::INIT));
    // It goes down and comes up at once: the other end sees that, too.
    set_physical(&mut bench, &SPINE1, 2, PhysicalState::POLLING);
    assert_eq!(states(&mut bench), (PortState::INIT, PortState::INIT));
    assert_eq!(downed(&mut bench), (2, 2));
    // The same from the other end.
    set_physical(&mut bench, &LEAF2, 7, PhysicalState::POLLING);
    assert_eq!(
        (states(&mut bench), downed(&mut bench)),
        ((PortState::INIT, PortState::INIT), (3, 3))
    );
}

#[test]
fn an_operator_cuts_a_link_at_either_end() {
    let mut bench = Bench::up_in_parts();
    let ((here, there), now) = (ends(&bench), bench.now);
    bench.subnet.set_link(now, here, false);
    // Both switches tell the subnet manager: Spine1 and Leaf2.
    assert_eq!(settle(&mut bench), [4, 3]);
    assert_eq!(states(&mut bench), (PortState::DOWN, PortState::DOWN));
    // The other end cannot repair it.
    bench.west().set_link(now, there, true);
    settle(&mut bench);
    assert_eq!(states(&mut bench), (PortState::DOWN, PortState::DOWN));
    bench.subnet.set_link(now, here, true);
    settle(&mut bench);
    assert_eq!(states(&mut bench), (PortState::INIT, PortState::INIT));
}

#[test]
fn what_is_no_end_of_a_link_between_parts_is_refused() {
    let mut bench = Bench::up_in_parts();
    let (now, host1) = (bench.now, bench.host1);
    let ready = Signal { turn: 9, is_ready: true };
    let nowhere = PortRef { node: usize::MAX, port: 1 };
    for at in [host1, bench.port("Leaf2", 7), bench.port("Spine1", 0), nowhere] {
        assert!(!bench.subnet.handle_signal(now, at, ready), "{at:?}");
        let packet = bench.packet(Lid(5), feroce_wire::Qpn::QP0, [0; 256]);
        assert!(!bench.subnet.handle_packet(now, at, packet, 0), "{at:?}");
        let mut traffic = Traffic::new(&bench.subnet, 0);
        let landing = Landing { at, lane: 0, hops: 1 };
        assert!(!traffic.arrive(now, &mut bench.subnet, landing, &run(1), ()));
        let credit = feroce_fabric::CreditLane::new(64).flow_control();
        assert!(!traffic.hear(now, &mut bench.subnet, (at, 0), credit));
    }
    let (here, _) = ends(&bench);
    let mut traffic = Traffic::new(&bench.subnet, 0);
    // No such lane; and more packets than the receive buffer holds.
    let landing = Landing { at: here, lane: 8, hops: 1 };
    assert!(!traffic.arrive(now, &mut bench.subnet, landing, &run(1), ()));
    let landing = Landing { lane: 0, ..landing };
    assert!(!traffic.arrive(now, &mut bench.subnet, landing, &run(FIT + 1), ()));
}

/// Packets to Host4, whose way leads over Spine2.
fn run(packets: u32) -> DataRun {
    DataRun {
        slid: Lid(1),
        dlid: Lid(8),
        sl: 0,
        pkey: Pkey::DEFAULT,
        packets,
        words: u64::from(packets) * LEN as u64 / 4,
        longest: LEN,
    }
}

/// Traffic of both parts, with a run of packets from Host1 to Host4.
struct Flow {
    bench: Bench,
    east: Traffic<()>,
    west: Traffic<()>,
    left: u32,
    arrived: u32,
    receipts: Vec<Receipt>,
}

impl Flow {
    fn new() -> Self {
        let mut bench = Bench::up_in_parts();
        let (east, west) = (Traffic::new(&bench.subnet, 0), Traffic::new(bench.west(), 0));
        let mut flow = Self { bench, east, west, left: 0, arrived: 0, receipts: Vec::new() };
        flow.connect();
        flow
    }

    /// A new connection between the parts.
    fn connect(&mut self) {
        let west = self.bench.west.as_mut().expect("another part");
        let ends: Vec<_> = self.bench.subnet.borders(1).collect();
        for (here, there) in ends {
            self.east.restart(&mut self.bench.subnet, here);
            self.west.restart(west, there);
        }
        self.look();
    }

    fn send(&mut self, packets: u32) {
        let (now, host1) = (self.bench.now, self.bench.host1);
        self.east.send(now, &mut self.bench.subnet, host1, &run(packets), ());
        self.look();
    }

    fn look(&mut self) {
        loop {
            let now = self.bench.now;
            let west = self.bench.west.as_mut().expect("another part");
            if let Some(event) = self.east.poll_event(&self.bench.subnet) {
                match event {
                    TrafficEvent::Left(part) => self.left += part.count,
                    other => carry(now, other, &mut self.west, west),
                }
            } else if let Some(event) = self.west.poll_event(west) {
                match event {
                    TrafficEvent::Arrived(_, part, receipt) => {
                        self.arrived += part.count;
                        self.receipts.extend(receipt);
                    }
                    other => carry(now, other, &mut self.east, &mut self.bench.subnet),
                }
            } else {
                return;
            }
        }
    }

    /// The receiver takes everything, again and again.
    fn take_all(&mut self) {
        while let Some(receipt) = self.receipts.pop() {
            let now = self.bench.now;
            self.west.taken(now, self.bench.west.as_mut().expect("another part"), receipt);
            self.look();
        }
    }
}

fn carry(now: Instant, event: TrafficEvent<()>, to: &mut Traffic<()>, subnet: &mut Subnet) {
    let is_right = match event {
        TrafficEvent::Leaves(landing, Part { count, .. }) => {
            to.arrive(now, subnet, landing, &run(count), ())
        }
        TrafficEvent::Credit(at, lane, credit) => to.hear(now, subnet, (at, lane), credit),
        other => panic!("{other:?}"),
    };
    assert!(is_right);
}

#[test]
fn a_receiver_in_another_part_holds_its_senders_back() {
    let mut flow = Flow::new();
    flow.send(1000);
    // The buffers of Leaf1, Spine2, Leaf2 and Host4 are full.
    assert_eq!((flow.arrived, flow.left), (FIT, 4 * FIT));
    flow.take_all();
    assert_eq!((flow.arrived, flow.left), (1000, 1000));
    // No credit is lost on the way.
    flow.send(1000);
    assert_eq!((flow.arrived, flow.left), (1000 + FIT, 1000 + 4 * FIT));
}

#[test]
fn a_new_connection_begins_with_the_room_that_is_left() {
    let mut flow = Flow::new();
    flow.send(1000);
    // What was on the way or waited for the link is lost, what the buffers hold is not.
    flow.connect();
    assert_eq!(flow.arrived, FIT);
    flow.take_all();
    let arrived = flow.arrived;
    assert!((2 * FIT..1000).contains(&arrived), "{arrived}");
    flow.send(1000);
    flow.take_all();
    assert_eq!(flow.arrived, arrived + 1000);
}
