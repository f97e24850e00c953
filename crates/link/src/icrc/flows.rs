//! What the IPv4 identifications of flows were so far, and whether one more fits.
//!
//! Nobody shows a UDP socket the identification of a packet. What makes the ICRC right is taken for
//! it, if anything does: for one damaged packet in 65,536, something does. So it must also be one
//! that the flow is likely to have used. Our own senders use low ones, or count on from anywhere
//! once they have sent a datagram without content; of others, only that is known which they show.

use feroce_wire::Gid;

use super::MAX_TRAIN_PACKETS;

/// Whether packets with such identifications may have been sent one soon after the other, in either
/// order.
fn is_near(id: u16, other: u16) -> bool {
    id.wrapping_sub(other).wrapping_add(MAX_TRAIN_PACKETS) <= 2 * MAX_TRAIN_PACKETS
}

/// What to make of packets whose IPv4 identification cannot be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcPolicy {
    /// A flow that begins with an identification which no feroce sender uses may use any, and so
    /// may one of which three packets were refused: one damaged packet in 65,536 of it passes. Of
    /// other flows, one in 16 million does.
    #[default]
    AnyId,
    /// No flow may use any. Packets of other senders are refused whenever they are not near the
    /// last one of their flow, refused or not.
    Strict,
}

/// What is known of the identifications that a flow uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// Nothing.
    Unknown,
    /// Those of one of our senders.
    Ours,
    /// The same, and they will now count on from anywhere.
    Announced,
    /// Any.
    Any,
}

/// A flow of packets from one port of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    src: Gid,
    udp_sport: u16,
    habit: Habit,
    /// What the next packet is likely to have, unless they are low.
    next: Option<u16>,
    /// How many in a row did not have it.
    misses: u8,
    /// What would go on from the last packet that was refused.
    refused: Option<u16>,
    /// How many were.
    refusals: u8,
}

impl Flow {
    /// After so many packets that do not count on, they are low again.
    const MOST_MISSES: u8 = 8;
    /// What follows the identifications of our trains is low, too: so whoever counts from zero is
    /// seen to.
    const LOW: u16 = 2 * MAX_TRAIN_PACKETS;
    /// A flow of which so many were refused is not one of ours.
    const MOST_REFUSALS: u8 = 3;

    fn new(src: Gid, udp_sport: u16) -> Self {
        let (habit, next, refused) = (Habit::Unknown, None, None);
        Self { src, udp_sport, habit, next, misses: 0, refused, refusals: 0 }
    }

    #[inline]
    pub(super) fn next(&self) -> Option<u16> {
        self.next
    }

    /// Whether packet `index` of what was received together may have this identification.
    pub(super) fn may_have(&mut self, index: u16, id: u16, policy: IcrcPolicy) -> bool {
        let goes_on = self.next.is_some_and(|next| is_near(id, next));
        let is_likely = goes_on || id < Self::LOW;
        let may_have = is_likely
            || match (self.habit, policy) {
                (Habit::Any | Habit::Announced, _) | (Habit::Unknown, IcrcPolicy::AnyId) => true,
                _ => self.is_confirmed(id),
            };
        self.habit = match self.habit {
            Habit::Any => Habit::Any,
            // Packets that were sent before may have been overtaken.
            Habit::Announced if is_likely && !goes_on => Habit::Announced,
            Habit::Announced => Habit::Ours,
            _ if policy == IcrcPolicy::Strict || is_likely => Habit::Ours,
            Habit::Unknown => Habit::Any,
            Habit::Ours if self.refusals >= Self::MOST_REFUSALS => Habit::Any,
            Habit::Ours => Habit::Ours,
        };
        if may_have && (goes_on || id >= MAX_TRAIN_PACKETS) {
            // Our senders count the calls, and on from there within a train.
            let of_call = if self.habit == Habit::Ours { index } else { 0 };
            self.went_on(id.wrapping_sub(of_call));
        }
        may_have
    }

    /// Whether an identification that is not likely goes on from another one like that: then
    /// neither is an accident.
    fn is_confirmed(&mut self, id: u16) -> bool {
        let is_confirmed = self.refused.is_some_and(|refused| is_near(id, refused));
        self.refused = (!is_confirmed).then(|| id.wrapping_add(1));
        self.refusals = self.refusals.saturating_add(u8::from(!is_confirmed));
        is_confirmed
    }

    /// A packet had the identification `id`, and the next is likely to go on from there.
    #[inline]
    pub(super) fn went_on(&mut self, id: u16) {
        (self.next, self.misses) = (Some(id.wrapping_add(1)), 0);
    }

    /// Packets came of which none had what was likely.
    pub(super) fn miss(&mut self) {
        self.misses += 1;
        if self.misses >= Self::MOST_MISSES {
            (self.next, self.misses) = (None, 0);
        }
    }
}

/// The flows that packets came from last.
#[derive(Debug)]
pub(super) struct Flows {
    /// Flows share the places.
    places: Vec<Option<Flow>>,
}

impl Default for Flows {
    fn default() -> Self {
        Self { places: vec![None; 256] }
    }
}

impl Flows {
    #[inline]
    fn place(&mut self, src: &Gid, udp_sport: u16) -> &mut Option<Flow> {
        let [.., host] = src.0;
        &mut self.places[usize::from(udp_sport.to_be_bytes()[1] ^ host)]
    }

    /// A flow, if it is known.
    #[inline]
    pub(super) fn get(&mut self, src: &Gid, udp_sport: u16) -> Option<&mut Flow> {
        let flow = self.place(src, udp_sport).as_mut();
        flow.filter(|flow| flow.src == *src && flow.udp_sport == udp_sport)
    }

    /// A flow as it is known, or a new one.
    pub(super) fn get_or_new(&mut self, src: &Gid, udp_sport: u16) -> Flow {
        self.get(src, udp_sport).copied().unwrap_or_else(|| Flow::new(*src, udp_sport))
    }

    /// Keeps what is known of a flow: in place of another, unless only that one counts on from
    /// anywhere.
    pub(super) fn keep(&mut self, flow: Flow) {
        let place = self.place(&flow.src, flow.udp_sport);
        let is_other = |kept: &Flow| (kept.src, kept.udp_sport) != (flow.src, flow.udp_sport);
        let counts = |flow: &Flow| flow.next.is_some() || flow.refused.is_some();
        if !place.as_ref().is_some_and(|kept| is_other(kept) && counts(kept)) || counts(&flow) {
            *place = Some(flow);
        }
    }

    /// A datagram without content came: the flow will count on from anywhere.
    pub(super) fn announced(&mut self, src: &Gid, udp_sport: u16) {
        let mut flow = self.get_or_new(src, udp_sport);
        if flow.habit != Habit::Any {
            flow.habit = Habit::Announced;
            self.keep(flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (Gid, u16) = (Gid([7; 16]), 50_000);

    /// Which of the packets of a flow pass.
    fn passing(policy: IcrcPolicy, ids: impl IntoIterator<Item = u16>) -> Vec<u16> {
        let mut flow = Flow::new(AT.0, AT.1);
        ids.into_iter().filter(|&id| flow.may_have(0, id, policy)).collect()
    }

    /// What the damage to a packet is taken for may be any identification.
    #[test]
    fn damaged_packets_of_our_senders_do_not_pass() {
        for policy in [IcrcPolicy::AnyId, IcrcPolicy::Strict] {
            let damaged = (1..500_u16).map(|i| i.wrapping_mul(1000) | 0x80);
            let ids = damaged.map(|id| [0, 1, 2, 3, id, 0]);
            for ids in ids.collect::<Vec<_>>().chunks(3) {
                assert!(passing(policy, ids.concat()).iter().all(|&id| id < 4));
            }
        }
    }

    #[test]
    fn flows_count_on_from_anywhere_once_they_have_said_so() {
        for policy in [IcrcPolicy::AnyId, IcrcPolicy::Strict] {
            let mut flows = Flows::default();
            let may_have = |flows: &mut Flows, id| {
                let mut flow = flows.get_or_new(&AT.0, AT.1);
                let may_have = flow.may_have(0, id, policy);
                flows.keep(flow);
                may_have
            };
            assert!(may_have(&mut flows, 0));
            flows.announced(&AT.0, AT.1);
            // One that was overtaken.
            assert!(may_have(&mut flows, 0));
            for id in 65_000..=u16::MAX {
                assert!(may_have(&mut flows, id));
            }
            for id in 0..3000 {
                assert!(may_have(&mut flows, id));
                assert!(id % 1500 != 7 || !may_have(&mut flows, id + 20_000));
            }
            // Looked at again, and nothing has changed.
            flows.announced(&AT.0, AT.1);
            assert!(may_have(&mut flows, 3001));
            assert!(!may_have(&mut flows, 40_000));
        }
    }

    #[test]
    fn a_flow_that_did_not_say_so_loses_a_packet() {
        let ids = [0, 5000, 5001, 5002, 0];
        assert_eq!(passing(IcrcPolicy::AnyId, ids), [0, 5001, 5002, 0]);
        assert_eq!(passing(IcrcPolicy::Strict, ids), [0, 5001, 5002, 0]);
    }

    #[test]
    fn what_is_low_again_does_not_count() {
        let mut flow = Flow::new(AT.0, AT.1);
        flow.went_on(5000);
        (0..Flow::MOST_MISSES).for_each(|_| flow.miss());
        assert_eq!(flow.next(), None);
    }

    /// Other senders choose as they like: at random, or on from anywhere with gaps.
    #[test]
    fn flows_of_others_may_have_any() {
        let ids = [9000, 17, 40_000, 300, 301, 9000];
        assert_eq!(passing(IcrcPolicy::AnyId, ids), ids);
        assert_eq!(passing(IcrcPolicy::Strict, ids), [17, 301]);
        assert_eq!(passing(IcrcPolicy::AnyId, 0..=u16::MAX).len(), 1 << 16);
        assert_eq!(passing(IcrcPolicy::Strict, 0..=u16::MAX).len(), 1 << 16);
        // Not even one that happens to begin like ours is kept from anything for long.
        let ids = [60, 40_000, 12_345, 51_000, 3000, 30_000, 9];
        assert_eq!(passing(IcrcPolicy::AnyId, ids), [60, 3000, 30_000, 9]);
        assert_eq!(passing(IcrcPolicy::Strict, ids), [60, 9]);
    }

    #[test]
    fn a_flow_that_counts_keeps_its_place() {
        let mut flows = Flows::default();
        let other = AT.1 + 256;
        let mut flow = flows.get_or_new(&AT.0, AT.1);
        flow.went_on(5000);
        flows.keep(flow);
        flows.keep(Flow::new(AT.0, other));
        assert_eq!(flows.get_or_new(&AT.0, AT.1).next(), Some(5001));
        flow = flows.get_or_new(&AT.0, other);
        flow.went_on(7000);
        flows.keep(flow);
        assert_eq!(flows.get_or_new(&AT.0, AT.1).next(), None);
    }
}
