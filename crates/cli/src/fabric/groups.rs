//! Multicast groups of an Ethernet fabric: the processes that have joined them.
//!
//! Hosts send no IGMP. A process tells the fabric which groups it joins, on a connection that lasts
//! as long as its membership, and the fabric writes the forwarding tables of its switches.

use std::collections::{BTreeMap, BTreeSet};

use feroce_fabric::MULTICAST;
use feroce_wire::Gid;

/// Number of a connection.
pub(super) type ConnId = u64;

/// A process that has joined a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) host: usize,
    /// The number of the process at its host.
    pub(super) slot: u8,
    pub(super) group: Gid,
}

/// A number that no group has.
const NO_GROUP: u32 = u32::MAX - MULTICAST;

/// Most groups of a fabric, as groups keep their numbers.
const MAX_GROUPS: usize = 1 << 16;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By the connections that keep them.
    members: BTreeMap<ConnId, Member>,
    /// Numbers of groups in the fabric. A group keeps its number: packets to it may be on their
    /// way when the last member leaves.
    numbers: BTreeMap<Gid, u32>,
}

impl Groups {
    /// The number of a group, or one that is of no group if no process has joined it ever.
    pub(super) fn number(&self, group: Gid) -> u32 {
        self.numbers.get(&group).copied().unwrap_or(NO_GROUP)
    }

    /// A process joins a group, as long as the connection lasts. Returns the number of the group;
    /// `None`: there are too many groups.
    pub(super) fn join(&mut self, conn: ConnId, member: Member) -> Option<u32> {
        let next = self.numbers.len();
        if next >= MAX_GROUPS && !self.numbers.contains_key(&member.group) {
            return None;
        }
        self.members.insert(conn, member);
        Some(*self.numbers.entry(member.group).or_insert(next as u32))
    }

    /// A connection has ended. Returns the number of a group that its host leaves thereby, and the
    /// host.
    pub(super) fn leave(&mut self, conn: ConnId) -> Option<(u32, usize)> {
        let Member { host, group, .. } = self.members.remove(&conn)?;
        let stays = self.members.values().any(|other| (other.host, other.group) == (host, group));
        (!stays).then(|| (self.number(group), host))
    }

    /// All groups that have members: the hosts, and how many processes there are.
    pub(super) fn all(&self) -> BTreeMap<Gid, (BTreeSet<usize>, usize)> {
        let mut all = BTreeMap::<_, (BTreeSet<usize>, usize)>::new();
        for Member { host, group, .. } in self.members.values() {
            let (hosts, processes) = all.entry(*group).or_default();
            hosts.insert(*host);
            *processes += 1;
        }
        all
    }

    /// The numbers of the processes of a host that are members of a group.
    pub(super) fn slots(&self, host: usize, group: Gid) -> impl Iterator<Item = u8> {
        let is_there = move |member: &&Member| (member.host, member.group) == (host, group);
        self.members.values().filter(is_there).map(|member| member.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_leaves_with_its_last_process() {
        let (first, second) = (Gid::from_ipv4([239, 1, 1, 1]), Gid::from_ipv4([239, 1, 1, 2]));
        let mut groups = Groups::default();
        let member = |host, slot, group| Member { host, slot, group };
        assert_eq!(groups.number(first), NO_GROUP);
        assert_eq!(groups.join(10, member(0, 1, first)), Some(0));
        assert_eq!(groups.join(11, member(0, 2, first)), Some(0));
        assert_eq!(groups.join(12, member(0, 1, second)), Some(1));
        assert_eq!(groups.join(13, member(1, 1, first)), Some(0));
        assert_eq!(groups.slots(0, first).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(groups.all()[&first], (BTreeSet::from([0, 1]), 3));
        assert_eq!((groups.leave(10), groups.leave(10)), (None, None));
        assert_eq!(groups.slots(0, first).collect::<Vec<_>>(), [2]);
        assert_eq!(groups.leave(11), Some((0, 0)));
        assert_eq!(groups.leave(12), Some((1, 0)));
        assert_eq!(groups.slots(1, first).collect::<Vec<_>>(), [1]);
        assert_eq!(groups.number(first), 0);
    }

    #[test]
    fn a_fabric_has_so_many_groups_and_no_more() {
        let mut groups = Groups::default();
        let group = |n: usize| Gid::from_ipv4((0xef00_0000 + n as u32).to_be_bytes());
        let mut join = |n| groups.join(0, Member { host: 0, slot: 1, group: group(n) });
        assert!((0..MAX_GROUPS).all(|n| join(n) == Some(n as u32)));
        assert_eq!((join(MAX_GROUPS), join(7)), (None, Some(7)));
    }
}
