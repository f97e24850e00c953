//! The agents of nodes, as a subnet manager and tools meet them.

use crate::common::{Bench, NODES};
use feroce_subnet::{Change, Output};
use feroce_wire::mad::{
    Attribute, BadKey, BadMkey, Class, ClassPortInfo, LidTrap, MadHeader, Method, MulticastBlock,
    NodeDescription, NodeInfo, Notice, PhysicalState, PkeyTable, PmMad, PortCounters,
    PortCountersExtended, PortInfo, PortState, Smp, Status, SwitchInfo, TrapNumber,
};
use feroce_wire::{Lid, Pkey, Qpn};

fn port_info(smp: &Smp) -> PortInfo {
    PortInfo::parse(&smp.data).expect("whole").0
}

#[test]
fn every_node_is_found_by_its_path_and_by_its_lid() {
    let mut bench = Bench::up();
    for (name, path, lid) in NODES {
        for by_lid in [false, true] {
            let mut ask = |attribute| match by_lid {
                true => bench.ask_lid(lid, Method::GET, attribute, 0).expect("an answer"),
                false => bench.ask(path, Method::GET, attribute, 0, &[]).expect("an answer"),
            };
            let smp = ask(Attribute::NODE_DESCRIPTION);
            assert_eq!(smp.header.status & 0x7fff, 0);
            let (description, _) = NodeDescription::parse(&smp.data).expect("whole");
            assert_eq!(description.as_str(), name);
            let (info, _) = NodeInfo::parse(&ask(Attribute::NODE_INFO).data).expect("whole");
            assert_eq!(info.num_ports, if name.starts_with("Host") { 1 } else { 8 });
        }
    }
}

#[test]
fn node_info_names_the_port_of_arrival() {
    let mut bench = Bench::new();
    let mut info = |path: &[u8]| {
        let smp = bench.ask(path, Method::GET, Attribute::NODE_INFO, 0, &[]).expect("an answer");
        NodeInfo::parse(&smp.data).expect("whole").0
    };
    let (leaf, host) = (info(&[1, 8, 2]), info(&[1, 2]));
    assert_eq!((leaf.local_port, leaf.node_guid, leaf.port_guid), (8, 0x20_0001, 0x20_0001));
    assert_eq!((host.local_port, host.node_guid, host.port_guid), (1, 0x10_0002, 0x10_0003));
}

#[test]
fn paths_that_lead_nowhere_have_no_answer() {
    let mut bench = Bench::new();
    for path in [&[2][..], &[1, 3], &[1, 9], &[1, 2, 1], &[1, 7, 1, 7, 2, 2, 1]] {
        assert_eq!(bench.ask(path, Method::GET, Attribute::NODE_INFO, 0, &[]), None, "{path:?}");
    }
}

#[test]
fn unknown_attributes_are_refused() {
    let mut bench = Bench::up();
    let cases = [
        (8, Method::GET, Attribute::SWITCH_INFO, Status::BAD_ATTRIBUTE),
        (8, Method::GET, Attribute::LINEAR_FORWARDING, Status::BAD_ATTRIBUTE),
        (2, Method::GET, Attribute(0xff90), Status::BAD_ATTRIBUTE),
        (2, Method::SET, Attribute::NODE_INFO, Status::BAD_ATTRIBUTE),
        (2, Method::GET, Attribute::SM_INFO, Status::BAD_ATTRIBUTE),
        (2, Method(0x14), Attribute::NODE_INFO, Status::BAD_METHOD),
    ];
    for (lid, method, attribute, status) in cases {
        let smp = bench.ask_lid(lid, method, attribute, 0).expect("an answer");
        assert_eq!(Status(smp.header.status), status, "{method} {attribute}");
    }
    let smp = bench.ask_lid(2, Method::GET, Attribute::PORT_INFO, 9).expect("an answer");
    assert_eq!(Status(smp.header.status), Status::BAD_VALUE);
    let header = bench.header(Class::SUBNET_LID, Method::GET, Attribute::NODE_INFO);
    let header = MadHeader { class_version: 2, ..header };
    let smp = bench.exchange(Smp::by_lid(header), Lid(2)).expect("an answer");
    assert_eq!(Status(smp.header.status), Status::BAD_VERSION);
}

#[test]
fn what_no_program_takes_is_refused_by_the_driver() {
    let mut bench = Bench::up();
    bench.changes();
    let header = bench.header(Class::SUBNET_DIRECTED, Method::GET, Attribute::SM_INFO);
    let smp = Smp::by_path(header, &[1, 2]).expect("few hops");
    let packet = bench.packet(Lid::PERMISSIVE, Qpn::QP0, smp.to_bytes());
    bench.subnet.send(bench.now, bench.host1, packet);
    let host2 = bench.port("Host2", 1);
    let request = bench.received(host2).expect("it reaches the programs of Host2");
    bench.subnet.refuse(bench.now, host2, &request);
    let answer = bench.received(bench.host1).expect("an answer");
    let (smp, _) = Smp::parse(&answer.mad).expect("whole");
    assert_eq!(smp.header.status, Status::DIRECTION | Status::BAD_ATTRIBUTE.0);
    assert_eq!(smp.directed_route().map(|route| route.hop_pointer), Some(0));
    // A program that does answer.
    bench.subnet.send(
        bench.now,
        bench.host1,
        bench.packet(Lid(5), Qpn::QP0, {
            let header = MadHeader::request(Class::SUBNET_LID, Method::GET, Attribute::SM_INFO);
            Smp::by_lid(header).to_bytes()
        }),
    );
    let request = bench.received(host2).expect("it reaches the programs of Host2");
    assert_eq!((request.slid, request.dlid), (Lid(1), Lid(5)));
}

#[test]
fn a_route_may_begin_by_lid() {
    let mut bench = Bench::up();
    let header = bench.header(Class::SUBNET_DIRECTED, Method::GET, Attribute::NODE_DESCRIPTION);
    // By LID to Leaf2, then out of its port 2.
    let smp = Smp::by_path(header, &[2]).expect("few hops");
    let smp = Smp { dr_slid: Lid(1), ..smp };
    let answer = bench.exchange(smp, Lid(3)).expect("an answer");
    let (description, _) = NodeDescription::parse(&answer.data).expect("whole");
    assert_eq!(description.as_str(), "Host4");
}

#[test]
fn a_port_goes_from_init_over_armed_to_active() {
    let mut bench = Bench::new();
    let path = [1, 2];
    let smp = bench.ask(&path, Method::GET, Attribute::PORT_INFO, 1, &[]).expect("an answer");
    let before = port_info(&smp);
    assert_eq!((before.state, before.physical_state), (PortState::INIT, PhysicalState::LINK_UP));
    let wanted = PortInfo {
        lid: Lid(5),
        sm_lid: Lid(1),
        client_reregister: true,
        physical_state: PhysicalState::NO_CHANGE,
        ..before
    };
    let mut set = |info: PortInfo| {
        let data = info.to_bytes();
        let smp = bench.ask(&path, Method::SET, Attribute::PORT_INFO, 1, &data);
        let smp = smp.expect("an answer");
        (Status(smp.header.status & 0x7fff), port_info(&smp).state)
    };
    let state = |state| PortInfo { state, ..wanted };
    assert_eq!(set(state(PortState::ACTIVE)), (Status::BAD_VALUE, PortState::INIT));
    assert_eq!(set(state(PortState::INIT)), (Status::BAD_VALUE, PortState::INIT));
    assert_eq!(set(state(PortState::ARMED)), (Status::OK, PortState::ARMED));
    assert_eq!(set(state(PortState::ACTIVE)), (Status::OK, PortState::ACTIVE));
    let bad = [
        PortInfo { lid: Lid(0), ..wanted },
        PortInfo { lid: Lid(0xc001), ..wanted },
        PortInfo { neighbor_mtu: 5, ..wanted },
        PortInfo { operational_vls: 5, ..wanted },
        PortInfo { link_width_enabled: 0x80, ..wanted },
    ];
    for info in bad {
        assert_eq!(set(state(PortState::NO_CHANGE)).0, Status::OK);
        assert_eq!(set(PortInfo { state: PortState::NO_CHANGE, ..info }).0, Status::BAD_VALUE);
    }
}

#[test]
fn programs_hear_of_what_the_subnet_manager_changes() {
    let mut bench = Bench::new();
    let info = |bench: &mut Bench| {
        let smp = bench.ask(&[], Method::GET, Attribute::PORT_INFO, 1, &[]).expect("an answer");
        PortInfo { physical_state: PhysicalState::NO_CHANGE, ..port_info(&smp) }
    };
    let mut set = |info: PortInfo| {
        let header = bench.header(Class::SUBNET_DIRECTED, Method::SET, Attribute::PORT_INFO);
        let mut smp = Smp::by_path(MadHeader { modifier: 1, ..header }, &[]).expect("no hops");
        smp.data = info.to_bytes();
        let packet = bench.packet(Lid::PERMISSIVE, Qpn::QP0, smp.to_bytes());
        bench.subnet.send(bench.now, bench.host1, packet);
        let outputs = core::iter::from_fn(|| bench.subnet.poll_output());
        let change = |output| match output {
            Output::Changed(_, change) => Some(change),
            _ => None,
        };
        outputs.filter_map(change).collect::<Vec<_>>()
    };
    let first = PortInfo {
        state: PortState::ARMED,
        lid: Lid(1),
        sm_lid: Lid(1),
        client_reregister: true,
        ..info(&mut Bench::new())
    };
    assert_eq!(set(first), [Change::Lid, Change::Sm, Change::Reregister]);
    let quiet = PortInfo { client_reregister: false, ..first };
    assert_eq!(set(PortInfo { state: PortState::ACTIVE, ..quiet }), [Change::Active]);
    assert_eq!(set(PortInfo { state: PortState::ACTIVE, ..quiet }), []);
}

#[test]
fn a_requester_without_the_key_is_refused_and_reported() {
    let mut bench = Bench::up();
    let key = 0x1234;
    let smp = bench.ask(&[1, 2], Method::GET, Attribute::PORT_INFO, 1, &[]).expect("an answer");
    let info = PortInfo {
        m_key: key,
        m_key_protect: 1,
        m_key_lease: 10,
        physical_state: PhysicalState::NO_CHANGE,
        state: PortState::NO_CHANGE,
        ..port_info(&smp)
    };
    let data = info.to_bytes();
    bench.ask(&[1, 2], Method::SET, Attribute::PORT_INFO, 1, &data).expect("an answer");
    // Everyone may look, and does not see the key.
    let seen = bench.ask_lid(5, Method::GET, Attribute::PORT_INFO, 1).expect("an answer");
    assert_eq!((port_info(&seen).m_key, port_info(&seen).m_key_violations), (0, 0));
    bench.m_key = key;
    let seen = bench.ask_lid(5, Method::GET, Attribute::PORT_INFO, 1).expect("an answer");
    assert_eq!(port_info(&seen).m_key, key);
    // A requester with another key may not set.
    bench.m_key = 0x4321;
    let trap = bench.ask(&[1, 2], Method::SET, Attribute::PORT_INFO, 1, &data).expect("a trap");
    assert_eq!((Method(trap.header.method), trap.header.class), (Method::TRAP, 1));
    let (notice, _) = Notice::parse(&trap.data).expect("whole");
    assert_eq!(
        (notice.trap, notice.issuer_lid, notice.producer),
        (TrapNumber::BAD_M_KEY, Lid(5), 1)
    );
    let (details, _) = BadMkey::parse(&notice.details).expect("whole");
    assert_eq!((details.m_key, details.method, details.hop_count), (0x4321, Method::SET, 2));
    assert_eq!(details.return_path[..3], [1, 1, 0]);
    bench.m_key = key;
    let seen = bench.ask_lid(5, Method::GET, Attribute::PORT_INFO, 1).expect("an answer");
    assert_eq!(port_info(&seen).m_key_violations, 1);
}

#[test]
fn the_protection_of_a_silent_owner_ends() {
    let mut bench = Bench::up();
    let smp = bench.ask(&[1, 2], Method::GET, Attribute::PORT_INFO, 1, &[]).expect("an answer");
    let info = PortInfo {
        m_key: 7,
        m_key_protect: 2,
        m_key_lease: 10,
        physical_state: PhysicalState::NO_CHANGE,
        state: PortState::NO_CHANGE,
        ..port_info(&smp)
    };
    let data = info.to_bytes();
    bench.ask(&[1, 2], Method::SET, Attribute::PORT_INFO, 1, &data).expect("an answer");
    let get = |bench: &mut Bench| {
        let smp = bench.ask_lid(5, Method::GET, Attribute::PORT_INFO, 1);
        smp.filter(|smp| Method(smp.header.method) == Method::GET_RESP)
    };
    assert_eq!(get(&mut bench), None);
    bench.now = bench.now.plus_nanos(9_999_999_999);
    bench.subnet.handle_timeout(bench.now);
    while bench.subnet.poll_output().is_some() {}
    assert_eq!(get(&mut bench), None);
    bench.now = bench.now.plus_nanos(1);
    bench.subnet.handle_timeout(bench.now);
    while bench.subnet.poll_output().is_some() {}
    let seen = get(&mut bench).expect("an answer");
    assert_eq!((port_info(&seen).m_key, port_info(&seen).m_key_protect), (7, 0));
}

#[test]
fn a_trap_is_repeated_until_it_is_repressed() {
    let mut bench = Bench::up();
    bench.changes();
    let link = bench.port("Spine1", 2);
    bench.subnet.set_link(bench.now, link, false);
    // Both switches tell of it, Leaf2 on its way over Spine2.
    let mut lids = Vec::new();
    let mut transactions = Vec::new();
    while let Some(packet) = bench.received(bench.host1) {
        let (smp, _) = Smp::parse(&packet.mad).expect("whole");
        let (notice, _) = Notice::parse(&smp.data).expect("whole");
        let (details, _) = LidTrap::parse(&notice.details).expect("whole");
        assert_eq!((notice.trap, details.lid), (TrapNumber::LINK_STATE, packet.slid));
        lids.push(packet.slid.0);
        transactions.push(smp.header.transaction);
    }
    lids.sort_unstable();
    assert_eq!(lids, [3, 4]);
    for lid in [3, 4] {
        let smp = bench.ask_lid(lid, Method::GET, Attribute::SWITCH_INFO, 0).expect("an answer");
        assert!(SwitchInfo::parse(&smp.data).expect("whole").0.port_state_change);
    }
    for round in 0..3 {
        let due = bench.subnet.poll_timeout().expect("it will be repeated");
        assert_eq!(due.nanos_since(bench.now), 4096 << 18, "{round}");
        bench.now = due;
        bench.subnet.handle_timeout(due);
        let mut again = 0;
        while bench.received(bench.host1).is_some() {
            again += 1;
        }
        assert_eq!(again, 2, "{round}");
    }
    for (lid, transaction) in [(3, transactions[0]), (4, transactions[1])] {
        let header = MadHeader {
            transaction,
            ..MadHeader::request(Class::SUBNET_LID, Method::TRAP_REPRESS, Attribute::NOTICE)
        };
        assert_eq!(bench.exchange(Smp::by_lid(header), Lid(lid)), None);
    }
    assert_eq!(bench.subnet.poll_timeout(), None);
}

#[test]
fn a_link_that_is_disabled_comes_up_when_it_is_enabled() {
    let mut bench = Bench::up();
    let set = |bench: &mut Bench, state, physical_state| {
        let smp = bench.ask_lid(2, Method::GET, Attribute::PORT_INFO, 2).expect("an answer");
        let info = PortInfo { state, physical_state, ..port_info(&smp) };
        let answer = bench.ask(&[1], Method::SET, Attribute::PORT_INFO, 2, &info.to_bytes());
        assert_eq!(answer.expect("an answer").header.status & 0x7fff, 0);
        while bench.subnet.poll_output().is_some() {}
        let smp = bench.ask_lid(2, Method::GET, Attribute::PORT_INFO, 2).expect("an answer");
        (port_info(&smp).state, port_info(&smp).physical_state)
    };
    let host2 = bench.port("Host2", 1);
    bench.changes();
    let down = set(&mut bench, PortState::DOWN, PhysicalState::DISABLED);
    assert_eq!(down, (PortState::DOWN, PhysicalState::DISABLED));
    let peer = bench.subnet.port(host2).expect("Host2");
    assert_eq!(peer.info().state, PortState::DOWN);
    assert_eq!(peer.counters().link_downed, 1);
    assert_eq!(bench.ask(&[1, 2], Method::GET, Attribute::NODE_INFO, 0, &[]), None);
    let up = set(&mut bench, PortState::NO_CHANGE, PhysicalState::POLLING);
    assert_eq!(up, (PortState::INIT, PhysicalState::LINK_UP));
    assert!(bench.ask(&[1, 2], Method::GET, Attribute::NODE_INFO, 0, &[]).is_some());
    // A reset goes down and up at once; the LID stays.
    let reset = set(&mut bench, PortState::DOWN, PhysicalState::NO_CHANGE);
    assert_eq!(reset, (PortState::INIT, PhysicalState::LINK_UP));
    assert_eq!(bench.subnet.port(host2).expect("Host2").info().lid, Lid(5));
}

fn pm(method: Method, attribute: Attribute, data: &[u8]) -> PmMad {
    let header = MadHeader::request(Class::PERFORMANCE, method, attribute);
    let mut mad = PmMad { header, ..PmMad::default() };
    mad.data[..data.len()].copy_from_slice(data);
    mad
}

#[test]
fn counters_count_and_are_reset() {
    let mut bench = Bench::up();
    let select = |port_select| PortCounters { port_select, ..PortCounters::default() }.to_bytes();
    let counters = |bench: &mut Bench, lid, port| {
        let request = pm(Method::GET, Attribute::PORT_COUNTERS, &select(port));
        let answer = bench.ask_pma(lid, request).expect("an answer");
        assert_eq!(answer.header.status, 0);
        PortCounters::parse(&answer.data).expect("whole").0
    };
    let before = counters(&mut bench, 2, 1);
    let after = counters(&mut bench, 2, 1);
    // The answer of before, and this request: 288 bytes each.
    assert_eq!(after.rcv_packets - before.rcv_packets, 1);
    assert_eq!(after.xmit_packets - before.xmit_packets, 1);
    assert_eq!(after.rcv_data - before.rcv_data, 72);
    let reset = PortCounters { port_select: 1, counter_select: 0xffff, ..PortCounters::default() };
    let request = pm(Method::SET, Attribute::PORT_COUNTERS, &reset.to_bytes());
    bench.ask_pma(2, request).expect("an answer");
    let after = counters(&mut bench, 2, 1);
    assert_eq!((after.rcv_packets, after.xmit_packets, after.rcv_data), (1, 1, 72));
    // Those of 64 bits were not reset.
    let select = PortCountersExtended { port_select: 1, ..PortCountersExtended::default() };
    let request = pm(Method::GET, Attribute::PORT_COUNTERS_EXTENDED, &select.to_bytes());
    let answer = bench.ask_pma(2, request).expect("an answer");
    let (extended, _) = PortCountersExtended::parse(&answer.data).expect("whole");
    assert!(extended.rcv_packets > u64::from(before.rcv_packets));
    assert_eq!(extended.unicast_rcv_packets, extended.rcv_packets);
    // All ports of a switch together; an adapter has no such thing.
    let all = counters(&mut bench, 2, 255);
    assert!(all.rcv_packets > counters(&mut bench, 2, 2).rcv_packets);
    let request = pm(Method::GET, Attribute::PORT_COUNTERS, &[0, 255]);
    let answer = bench.ask_pma(5, request).expect("an answer");
    assert_eq!(Status(answer.header.status), Status::BAD_VALUE);
    let request = pm(Method::GET, Attribute(0x36), &[0, 1]);
    let answer = bench.ask_pma(5, request).expect("an answer");
    assert_eq!(Status(answer.header.status), Status::BAD_ATTRIBUTE);
    let answer = bench.ask_pma(5, pm(Method::GET, Attribute::CLASS_PORT_INFO, &[]));
    let (info, _) = ClassPortInfo::parse(&answer.expect("an answer").data).expect("whole");
    assert_eq!(info.capability_mask, 0x1200);
}

#[test]
fn other_partitions_are_kept_out() {
    let mut bench = Bench::up();
    bench.changes();
    let mut keys = [Pkey(0); 32];
    (keys[0], keys[1]) = (Pkey(0x7fff), Pkey(0x8001));
    let data = PkeyTable { keys }.to_bytes();
    bench.ask(&[1, 2], Method::SET, Attribute::PKEY_TABLE, 0, &data).expect("an answer");
    let request = pm(Method::GET, Attribute::CLASS_PORT_INFO, &[]).to_bytes();
    let mut ask = |pkey| {
        let packet = bench.packet(Lid(5), Qpn::QP1, request);
        bench.subnet.send(bench.now, bench.host1, feroce_subnet::MadPacket { pkey, ..packet });
        bench.received(bench.host1).map(|packet| packet.mad)
    };
    assert!(ask(Pkey(0xffff)).is_some_and(|mad| mad[3] == Method::GET_RESP.0));
    let trap = ask(Pkey(0x8002)).expect("a trap");
    let (notice, _) = Notice::parse(&trap[64..]).expect("whole");
    let (details, _) = BadKey::parse(&notice.details).expect("whole");
    assert_eq!((notice.trap, details.key), (TrapNumber::BAD_P_KEY, 0x8002));
    assert_eq!((details.slid, details.dlid, details.dst_qpn), (Lid(1), Lid(5), Qpn::QP1));
    let host2 = bench.subnet.port(bench.port("Host2", 1)).expect("Host2");
    assert_eq!(host2.info().p_key_violations, 1);
}

#[test]
fn tables_that_lead_in_circles_lose_the_packet() {
    let mut bench = Bench::up();
    for (path, out) in [(&[1][..], 7), (&[1, 7], 2), (&[1, 7, 2], 8), (&[1, 8], 1)] {
        let mut block = feroce_wire::mad::ForwardingBlock { ports: [255; 64] };
        block.ports[9] = out;
        let data = block.to_bytes();
        bench.ask(path, Method::SET, Attribute::LINEAR_FORWARDING, 0, &data).expect("an answer");
        let info = SwitchInfo { linear_top: 9, ..SwitchInfo::default() }.to_bytes();
        bench.ask(path, Method::SET, Attribute::SWITCH_INFO, 0, &info).expect("an answer");
    }
    assert_eq!(bench.ask_lid(9, Method::GET, Attribute::NODE_INFO, 0), None);
    let discards: u64 = bench
        .subnet
        .nodes()
        .iter()
        .flat_map(|node| (0..=8).filter_map(|port| node.port(port)))
        .map(|port| port.counters().xmit_discards)
        .sum();
    assert_eq!(discards, 1);
}

#[test]
fn a_subnet_manager_shows_in_the_capabilities() {
    let mut bench = Bench::up();
    bench.changes();
    let host2 = bench.port("Host2", 1);
    bench.subnet.set_is_sm(bench.now, host2, true);
    let trap = bench.received(bench.host1).expect("a trap");
    let (notice, _) = Notice::parse(&trap.mad[64..]).expect("whole");
    assert_eq!(notice.trap, TrapNumber::CAPABILITY_MASK);
    let smp = bench.ask_lid(5, Method::GET, Attribute::PORT_INFO, 1).expect("an answer");
    assert_eq!(port_info(&smp).capability_mask & 2, 2);
    bench.subnet.set_is_sm(bench.now, host2, true);
    assert_eq!(bench.changes(), []);
}

/// Two switches with three links between them, and tables that send a multicast over all of them:
/// every copy makes two more. They end when their lifetime is over, and never fill the memory.
#[test]
fn a_multicast_in_circles_ends() {
    let text = "\
        Switch 8 \"A\"\n[1] \"Host1\"[1]\n[2] \"B\"[2]\n[3] \"B\"[3]\n[4] \"B\"[4]\n\n\
        Switch 8 \"B\"\n[2] \"A\"[2]\n[3] \"A\"[3]\n[4] \"A\"[4]\n\n\
        Hca 1 \"Host1\"\n[1] \"A\"[1]\n";
    let mut bench = Bench::of(text);
    for path in [&[1][..], &[1, 2]] {
        let mut block = MulticastBlock { masks: [0; 32] };
        block.masks[0] = 0b1_1100;
        let data = block.to_bytes();
        let attribute = Attribute::MULTICAST_FORWARDING;
        let answer = bench.ask(path, Method::SET, attribute, 0, &data).expect("an answer");
        assert_eq!(answer.header.status & 0x7fff, 0);
    }
    let packet = bench.packet(Lid(0xc000), Qpn::QP0, [0; 256]);
    bench.subnet.send(bench.now, bench.host1, packet);
    assert_eq!(bench.received(bench.host1), None);
    let at = bench.port("B", 2);
    let counters = bench.subnet.port(at).expect("a port").counters();
    assert!(counters.xmit_discards > 0 && counters.multicast_xmit < 10_000, "{counters:?}");
}
