//! Queue pairs whose streams have room again.

use std::collections::VecDeque;

use feroce_wire::Qpn;

/// Queue pairs that can send again, in the order in which they could.
#[derive(Debug, Default)]
pub(super) struct Resumed {
    queue: VecDeque<Qpn>,
    /// Those whose streams have ended.
    ended: Vec<Qpn>,
    /// The last turn was one of these.
    was_last: bool,
}

impl Resumed {
    pub(super) fn push(&mut self, qpn: Qpn) {
        self.queue.push_back(qpn);
    }

    /// The stream of a queue pair has ended. It goes first: until its connection is closed, what
    /// arrives there is for the queue pair, which may soon have another.
    pub(super) fn push_ended(&mut self, qpn: Qpn) {
        self.ended.push(qpn);
    }

    /// The queue pair whose turn it is: one of these and one that `ready` gives, alternately. Peers
    /// that read slowly make room all the time, and a turn of the driver sends a limited number of
    /// bursts: neither kind may keep the other waiting.
    pub(super) fn next(&mut self, mut ready: impl FnMut() -> Option<Qpn>) -> Option<Qpn> {
        if let Some(qpn) = self.ended.pop() {
            return Some(qpn);
        }
        let of_others = if self.was_last { ready() } else { None };
        self.was_last = of_others.is_none() && !self.queue.is_empty();
        of_others.or_else(|| self.queue.pop_front()).or_else(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_goes_first() {
        let mut resumed = Resumed::default();
        resumed.push(Qpn::new(1));
        resumed.push_ended(Qpn::new(2));
        let mut next = || resumed.next(|| Some(Qpn::new(3))).map(Qpn::get);
        assert_eq!([next(), next(), next()], [Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn neither_kind_keeps_the_other_waiting() {
        let qpns = |range: std::ops::Range<u32>| range.map(Qpn::new).collect::<VecDeque<_>>();
        let (mut resumed, mut ready) = (Resumed::default(), qpns(10..13));
        qpns(0..4).into_iter().for_each(|qpn| resumed.push(qpn));
        let mut turns = Vec::new();
        while let Some(qpn) = resumed.next(|| ready.pop_front()) {
            // There is always another that can send again.
            if turns.len() < 3 {
                resumed.push(Qpn::new(100 + turns.len() as u32));
            }
            turns.push(qpn.get());
        }
        assert_eq!(turns, [0, 10, 1, 11, 2, 12, 3, 100, 101, 102]);
    }
}
