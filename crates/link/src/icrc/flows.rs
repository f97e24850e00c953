//! Which IPv4 identifications a flow may use.
//!
//! A UDP socket does not see the identification of a packet, so the check computes the one that
//! makes the ICRC right. For one damaged packet in 65,536 such an identification exists by
//! accident. Senders of this crate use only identifications below [`MAX_TRAIN_PACKETS`]. If a flow
//! begins with those, the check accepts no others in it, and one damaged packet in 67 million
//! passes. Other senders use any identification.

use feroce_wire::Gid;

use super::MAX_TRAIN_PACKETS;

/// How the check treats packets whose IPv4 identification cannot be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcPolicy {
    /// A flow whose first packet has an identification that no feroce sender uses may use any
    /// identification, and so may a flow of which the check has refused three packets. One damaged
    /// packet in 65,536 of such a flow passes.
    #[default]
    AnyId,
    /// Every flow must use the identifications of a feroce sender. Packets of other senders are
    /// refused, unless they have those by accident.
    Strict,
}

/// What is known of the identifications that a flow uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// No packet has arrived yet.
    Unknown,
    /// The identifications of a feroce sender. The check has refused this many packets that had
    /// others.
    Low { refused: u8 },
    /// Any.
    Any,
}

/// A flow of packets from one port of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    src: Gid,
    udp_sport: u16,
    habit: Habit,
}

impl Flow {
    /// After the check has refused so many packets of a flow, the flow does not come from a feroce
    /// sender. For damage alone to cause that, 65,536 times as many damaged packets must arrive.
    const MOST_REFUSED: u8 = 3;

    /// Whether a packet may have the identification that makes its ICRC right.
    pub(super) fn may_have(&mut self, id: u16, policy: IcrcPolicy) -> bool {
        let is_low = id < MAX_TRAIN_PACKETS;
        let (habit, may_have) = match self.habit {
            _ if policy == IcrcPolicy::Strict => (self.habit, is_low),
            Habit::Any => (Habit::Any, true),
            Habit::Unknown if is_low => (Habit::Low { refused: 0 }, true),
            Habit::Unknown => (Habit::Any, true),
            Habit::Low { .. } if is_low => (self.habit, true),
            Habit::Low { refused } if refused + 1 < Self::MOST_REFUSED => {
                (Habit::Low { refused: refused + 1 }, false)
            }
            Habit::Low { .. } => (Habit::Any, false),
        };
        self.habit = habit;
        may_have
    }
}

/// Flows that are remembered at once: as many as 32 peers with 8 source ports each have.
const FLOWS: usize = 256;

/// The flows that packets came from last.
#[derive(Debug)]
pub(super) struct Flows {
    /// By the last bytes of port and address. A flow replaces the one that was there.
    slots: Vec<Flow>,
}

impl Default for Flows {
    fn default() -> Self {
        let none = Flow { src: Gid::default(), udp_sport: 0, habit: Habit::Unknown };
        Self { slots: vec![none; FLOWS] }
    }
}

impl Flows {
    /// What is known of a flow.
    #[inline]
    pub(super) fn get(&mut self, src: &Gid, udp_sport: u16) -> &mut Flow {
        let [.., host] = src.0;
        let flow = &mut self.slots[usize::from(udp_sport.to_be_bytes()[1] ^ host)];
        if flow.src != *src || flow.udp_sport != udp_sport {
            *flow = Flow { src: *src, udp_sport, habit: Habit::Unknown };
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (Gid, u16) = (Gid([7; 16]), 50_000);

    /// Which of the packets of a flow pass.
    fn passing(policy: IcrcPolicy, ids: impl IntoIterator<Item = u16>) -> Vec<u16> {
        let mut flows = Flows::default();
        let flow = flows.get(&AT.0, AT.1);
        ids.into_iter().filter(|&id| flow.may_have(id, policy)).collect()
    }

    /// The identification that fits a damaged packet may be any.
    #[test]
    fn damaged_packets_of_our_senders_do_not_pass() {
        for policy in [IcrcPolicy::AnyId, IcrcPolicy::Strict] {
            let damaged = (1..500_u16).map(|i| i.wrapping_mul(1000) | 0x80);
            let ids = damaged.map(|id| [0, 1, 2, 63, id, 0]);
            for ids in ids.collect::<Vec<_>>().chunks(2) {
                assert!(passing(policy, ids.concat()).iter().all(|&id| id < 64));
            }
        }
    }

    /// Other senders choose identifications at random, or count on from any value with gaps.
    #[test]
    fn flows_of_others_may_have_any_identification() {
        let ids = [9000, 17, 40_000, 300, 301, 9000];
        assert_eq!(passing(IcrcPolicy::AnyId, ids), ids);
        assert_eq!(passing(IcrcPolicy::Strict, ids), [17]);
    }

    #[test]
    fn a_flow_that_begins_like_ours_loses_three_packets() {
        let ids = [60, 40_000, 12_345, 9, 51_000, 3000, 30_000, 9];
        assert_eq!(passing(IcrcPolicy::AnyId, ids), [60, 9, 3000, 30_000, 9]);
        assert_eq!(passing(IcrcPolicy::Strict, ids), [60, 9, 9]);
        let count = |policy| passing(policy, 0..=u16::MAX).len();
        assert_eq!((count(IcrcPolicy::AnyId), count(IcrcPolicy::Strict)), (65_533, 64));
    }

    #[test]
    fn flows_that_share_a_slot_are_told_apart() {
        let (mut flows, policy) = (Flows::default(), IcrcPolicy::AnyId);
        assert!(flows.get(&AT.0, AT.1).may_have(0, policy));
        assert!(flows.get(&AT.0, AT.1 + 256).may_have(5000, policy));
        assert!(flows.get(&AT.0, AT.1 + 256).may_have(6000, policy));
    }
}
