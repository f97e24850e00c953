//! A fat tree with a program behind Host1 that sends management datagrams.
#![allow(dead_code, reason = "each test uses its part")]

use feroce_subnet::{Change, MadPacket, Net, Output, PortRef, Subnet, TrunkMessage, take_frame};
use feroce_train::Instant;
use feroce_wire::mad::{
    Attribute, Class, ForwardingBlock, MadHeader, Method, PmMad, PortInfo, PortState, Smp,
    SwitchInfo,
};
use feroce_wire::{Lid, Pkey, Qkey, Qpn};

/// LIDs as opensm gives them: hosts 1, 5, 7, 8; leaves 2 and 3; spines 4 and 6.
pub(crate) const FT4: &str = include_str!("../nets/ft4.net");

/// Paths from Host1 to every other node, with its LID, and which ports of it are connected.
pub(crate) const NODES: [(&str, &[u8], u16); 8] = [
    ("Host1", &[], 1),
    ("Leaf1", &[1], 2),
    ("Leaf2", &[1, 7, 2], 3),
    ("Spine1", &[1, 7], 4),
    ("Host2", &[1, 2], 5),
    ("Spine2", &[1, 8], 6),
    ("Host3", &[1, 7, 2, 1], 7),
    ("Host4", &[1, 7, 2, 2], 8),
];

/// Port of each LID from 0 on, as opensm writes it with minhop.
const TABLES: [(&str, [u8; 9]); 4] = [
    ("Leaf1", [255, 1, 0, 8, 7, 2, 8, 7, 8]),
    ("Leaf2", [255, 8, 8, 0, 7, 7, 8, 1, 2]),
    ("Spine1", [255, 1, 1, 2, 0, 1, 1, 2, 2]),
    ("Spine2", [255, 1, 1, 2, 1, 1, 0, 2, 2]),
];

/// The fat tree in two parts.
const PARTS: [&str; 2] = [
    "part=east\nSwitch 8 \"Leaf1\"\n[1] \"Host1\"[1]\n[2] \"Host2\"[1]\n[7] \"Spine1\"[1]\n\
     [8] \"Spine2\"[1]\nSwitch 8 \"Spine1\"\nHca 1 \"Host1\"\nHca 1 \"Host2\"\n",
    "part=west\nSwitch 8 \"Leaf2\"\n[1] \"Host3\"[1]\n[2] \"Host4\"[1]\n[7] \"Spine1\"[2]\n\
     [8] \"Spine2\"[2]\nSwitch 8 \"Spine2\"\nHca 1 \"Host3\"\nHca 1 \"Host4\"\n",
];

/// What one part of a fabric says reaches the other one, as frames of a trunk.
fn cross(now: Instant, output: Output, to: &mut Subnet) {
    let message = match output {
        Output::Leaves(at, packet, hops) => TrunkMessage::Datagram(at, hops as u8, packet),
        Output::Signal(at, signal) => TrunkMessage::Signal(at, signal),
        other => panic!("{other:?}"),
    };
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    let (frame, _) = take_frame(&bytes).expect("short").expect("whole");
    assert!(match TrunkMessage::parse(frame).expect("a message") {
        TrunkMessage::Datagram(at, hops, packet) => to.handle_packet(now, at, packet, hops.into()),
        TrunkMessage::Signal(at, signal) => to.handle_signal(now, at, signal),
        other => panic!("{other:?}"),
    });
}

pub(crate) struct Bench {
    pub(crate) subnet: Subnet,
    pub(crate) now: Instant,
    pub(crate) host1: PortRef,
    pub(crate) m_key: u64,
    transaction: u64,
    /// Another part of the fabric, if there is one.
    pub(crate) west: Option<Subnet>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::of(FT4)
    }

    /// A subnet with a node `Host1` that no subnet manager has seen.
    pub(crate) fn of(net: &str) -> Self {
        let subnet = Subnet::new(&Net::parse(net).expect("a topology"));
        let node = subnet.nodes().iter().position(|node| node.name() == "Host1").expect("Host1");
        let host1 = PortRef { node, port: 1 };
        Self { subnet, now: Instant::from_nanos(1), host1, m_key: 0, transaction: 0, west: None }
    }

    /// A fat tree in two parts that have found each other: Host1, Host2, Leaf1 and Spine1 are here.
    pub(crate) fn of_parts() -> Self {
        let net = Net::parse(&PARTS.concat()).expect("a topology");
        let subnet = Subnet::of_part(&net, 0);
        let mut bench = Self { subnet, west: Some(Subnet::of_part(&net, 1)), ..Self::new() };
        bench.host1 = bench.port("Host1", 1);
        bench.subnet.find_part(bench.now, 1);
        let now = bench.now;
        bench.west().find_part(now, 0);
        let host1 = bench.host1;
        assert_eq!(bench.received(host1), None);
        bench
    }

    /// The same with LIDs and tables.
    pub(crate) fn up_in_parts() -> Self {
        let mut bench = Self::of_parts();
        bench.bring_all_up();
        bench
    }

    pub(crate) fn west(&mut self) -> &mut Subnet {
        self.west.as_mut().expect("another part")
    }

    fn bring_all_up(&mut self) {
        for (name, path, lid) in NODES {
            self.bring_up(name, path, Lid(lid));
        }
    }

    /// A subnet that a subnet manager has brought up, with LIDs and tables.
    pub(crate) fn up() -> Self {
        let mut bench = Self::new();
        bench.bring_all_up();
        bench
    }

    fn bring_up(&mut self, name: &str, path: &[u8], lid: Lid) {
        let node = self.subnet.nodes().iter().find(|node| node.name() == name).expect("a node");
        let is_switch = node.switch().is_some();
        let ports = node.info().num_ports;
        for port in if is_switch { 0..=ports } else { 1..=ports } {
            let modifier = u32::from(port);
            let get = |bench: &mut Self| {
                let smp = bench.ask(path, Method::GET, Attribute::PORT_INFO, modifier, &[]);
                PortInfo::parse(&smp.expect("an answer").data).expect("whole").0
            };
            let mut info = get(self);
            if port == 0 || !is_switch {
                (info.lid, info.sm_lid, info.subnet_timeout) = (lid, Lid(1), 18);
            }
            let steps = match info.state {
                PortState::INIT => &[PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE][..],
                _ => &[PortState::NO_CHANGE],
            };
            for state in steps {
                let info = PortInfo { state: *state, physical_state: Default::default(), ..info };
                let data = info.to_bytes();
                let answer = self.ask(path, Method::SET, Attribute::PORT_INFO, modifier, &data);
                assert_eq!(answer.expect("an answer").header.status & 0x7fff, 0, "{name}:{port}");
            }
        }
        if let Some((_, table)) = TABLES.iter().find(|(switch, _)| *switch == name) {
            let mut block = ForwardingBlock { ports: [255; 64] };
            block.ports[..9].copy_from_slice(table);
            let attribute = Attribute::LINEAR_FORWARDING;
            self.ask(path, Method::SET, attribute, 0, &block.to_bytes()).expect("an answer");
            let info = SwitchInfo { linear_top: 8, port_state_change: true, ..Default::default() };
            let data = info.to_bytes();
            self.ask(path, Method::SET, Attribute::SWITCH_INFO, 0, &data).expect("an answer");
        }
    }

    pub(crate) fn port(&self, name: &str, port: u8) -> PortRef {
        let node = self.subnet.nodes().iter().position(|node| node.name() == name).expect("a node");
        PortRef { node, port }
    }

    pub(crate) fn header(
        &mut self,
        class: Class,
        method: Method,
        attribute: Attribute,
    ) -> MadHeader {
        self.transaction += 1;
        MadHeader { transaction: self.transaction, ..MadHeader::request(class, method, attribute) }
    }

    /// Asks along a directed route and returns the answer.
    pub(crate) fn ask(
        &mut self,
        path: &[u8],
        method: Method,
        attribute: Attribute,
        modifier: u32,
        data: &[u8],
    ) -> Option<Smp> {
        let header = self.header(Class::SUBNET_DIRECTED, method, attribute);
        let mut smp = Smp::by_path(MadHeader { modifier, ..header }, path).expect("few hops");
        smp.data[..data.len()].copy_from_slice(data);
        self.exchange(smp, Lid::PERMISSIVE)
    }

    /// Asks by LID.
    pub(crate) fn ask_lid(
        &mut self,
        lid: u16,
        method: Method,
        attribute: Attribute,
        modifier: u32,
    ) -> Option<Smp> {
        let header = self.header(Class::SUBNET_LID, method, attribute);
        self.exchange(Smp::by_lid(MadHeader { modifier, ..header }), Lid(lid))
    }

    /// Sends a packet of subnet management from Host1 and returns the answer.
    pub(crate) fn exchange(&mut self, smp: Smp, dlid: Lid) -> Option<Smp> {
        let smp = Smp { m_key: self.m_key, ..smp };
        let packet = self.packet(dlid, Qpn::QP0, smp.to_bytes());
        self.subnet.send(self.now, self.host1, packet);
        self.received(self.host1).map(|packet| Smp::parse(&packet.mad).expect("whole").0)
    }

    /// Sends a datagram of performance management from Host1 and returns the answer.
    pub(crate) fn ask_pma(&mut self, lid: u16, request: PmMad) -> Option<PmMad> {
        let packet = self.packet(Lid(lid), Qpn::QP1, request.to_bytes());
        self.subnet.send(self.now, self.host1, packet);
        self.received(self.host1).map(|packet| PmMad::parse(&packet.mad).expect("whole").0)
    }

    pub(crate) fn packet(&self, dlid: Lid, qpn: Qpn, mad: [u8; 256]) -> MadPacket {
        let own = self.subnet.port(self.host1).expect("Host1").info().lid;
        MadPacket {
            slid: if dlid == Lid::PERMISSIVE { Lid::PERMISSIVE } else { own },
            dlid,
            sl: 0,
            pkey: Pkey::DEFAULT,
            src_qpn: qpn,
            dst_qpn: qpn,
            qkey: Qkey(0x8001_0000),
            gids: None,
            mad,
        }
    }

    /// The next datagram for a port; what has changed is left out.
    pub(crate) fn received(&mut self, at: PortRef) -> Option<MadPacket> {
        loop {
            while let Some(output) = self.subnet.poll_output() {
                match output {
                    Output::Received(port, packet) => {
                        assert_eq!(port, at);
                        return Some(packet);
                    }
                    Output::Changed(..) => {}
                    crossing => cross(self.now, crossing, self.west.as_mut()?),
                }
            }
            let output = self.west.as_mut()?.poll_output()?;
            if matches!(output, Output::Leaves(..) | Output::Signal(..)) {
                cross(self.now, output, &mut self.subnet);
            }
        }
    }

    /// What has changed; no datagram may have arrived.
    pub(crate) fn changes(&mut self) -> Vec<(PortRef, Change)> {
        core::iter::from_fn(|| self.subnet.poll_output())
            .map(|output| match output {
                Output::Changed(at, change) => (at, change),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}
