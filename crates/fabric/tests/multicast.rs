//! Multicast groups on Ethernet: trees of switches, copies, and buffers that copies share.

use feroce_fabric::{
    BufferConfig, Config, DropReason, Fabric, FlowKey, MULTICAST, Output, Packet, Rate, Time,
    Topology,
};
use feroce_train::Ecn;

const RATE: Rate = Rate::from_gbps(100);
const GROUP: u32 = 9;
const LEN: u32 = 1000;

fn fabric(config: Config) -> Fabric<u64> {
    Fabric::new(Topology::fat_tree(4, RATE, 1_000_000), config).expect("a sound topology")
}

/// Sends so many packets from a host to the group, and counts the packets that each host gets.
fn send(fabric: &mut Fabric<u64>, from: u32, count: u64) -> [u64; 16] {
    let mut got = [0; 16];
    let (mut sent, mut now) = (0, fabric.now());
    loop {
        while sent < count && fabric.has_room(from) {
            let (to, ecn, key) = (MULTICAST + GROUP, Ecn::Capable, FlowKey::default());
            fabric.inject(now, from, Packet { to, len: LEN, priority: 3, ecn, key, body: sent });
            sent += 1;
        }
        let Some(at) = fabric.next_at() else { return got };
        now = at;
        if let Some(Output::Delivered(packet)) = fabric.poll(at) {
            // In their order, without gaps.
            assert_eq!(packet.body, got[packet.to as usize]);
            got[packet.to as usize] += 1;
        }
        fabric.check().expect("what always holds");
    }
}

fn expect(members: &[u32], from: u32, count: u64) -> [u64; 16] {
    let gets = |host: usize| members.contains(&(host as u32)) && host as u32 != from;
    core::array::from_fn(|host| if gets(host) { count } else { 0 })
}

#[test]
fn every_member_gets_one_copy_from_members_and_from_others() {
    let mut fabric = fabric(Config::default());
    let members = [1, 2, 7, 11, 15];
    members.into_iter().for_each(|host| fabric.join_multicast(GROUP, host));
    for from in 0..16 {
        assert_eq!(send(&mut fabric, from, 50), expect(&members, from, 50), "from {from}");
    }
    for (gone, left) in [(1, &members[1..]), (15, &members[1..4])] {
        fabric.leave_multicast(GROUP, gone);
        for from in [0, 7, gone] {
            assert_eq!(send(&mut fabric, from, 50), expect(left, from, 50), "from {from}");
        }
    }
    assert_eq!(fabric.totals().dropped_all().packets, 0);
    members.into_iter().for_each(|host| fabric.leave_multicast(GROUP, host));
    assert_eq!(send(&mut fabric, 3, 50), [0; 16]);
    assert_eq!(fabric.totals().dropped(DropReason::NoRoute).packets, 50);
}

#[test]
fn a_link_that_fails_is_not_in_the_tree() {
    let members = [0, 5, 10, 15];
    for link in 0..Topology::fat_tree(4, RATE, 1_000_000).links().len() {
        let mut fabric = fabric(Config::default());
        members.into_iter().for_each(|host| fabric.join_multicast(GROUP, host));
        let topology = fabric.topology();
        let ends = topology.links()[link].ends;
        let cut: Vec<u32> = (0..)
            .zip(topology.hosts())
            .filter(|(_, node)| ends.contains(node))
            .map(|(host, _)| host)
            .collect();
        fabric.set_link(Time::ZERO, link, false);
        let reached: Vec<u32> = members.into_iter().filter(|host| !cut.contains(host)).collect();
        if !cut.contains(&5) {
            assert_eq!(send(&mut fabric, 5, 20), expect(&reached, 5, 20), "link {link}");
        }
        fabric.set_link(fabric.now(), link, true);
        assert_eq!(send(&mut fabric, 5, 20), expect(&members, 5, 20), "link {link} is up again");
    }
}

#[test]
fn pauses_hold_a_group_back_and_nothing_is_dropped() {
    // A member with a slow link: the others wait for it, as PFC has it.
    let buffer = BufferConfig { bytes: 512 << 10, ..BufferConfig::default() };
    let mut fabric = fabric(Config { buffer, ..Config::default() });
    let members = [1, 6, 12];
    members.into_iter().for_each(|host| fabric.join_multicast(GROUP, host));
    let slow = fabric.topology().hosts().nth(6).expect("a host");
    let links = fabric.topology().links();
    let link = links.iter().position(|link| link.ends.contains(&slow)).expect("a link");
    fabric.set_rate(link, Rate::from_gbps(5));
    assert_eq!(send(&mut fabric, 3, 2000), expect(&members, 3, 2000));
    assert_eq!(fabric.totals().dropped_all().packets, 0);
    let pauses: u64 = fabric.port_stats().map(|(_, _, stats)| stats.pauses).sum();
    assert!(pauses > 0, "the buffer is smaller than what was sent");
}
