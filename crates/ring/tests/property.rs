//! The ring agrees with a `VecDeque`, whatever the two sides do.
#![cfg(not(loom))]

extern crate alloc;

mod model;

use alloc::collections::VecDeque;

use model::{Census, Receive, Send, numbered};
use proptest::prelude::*;

/// A step of either side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(Send),
    Receive(Receive),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Send(Send::Push)),
        6 => Just(Step::Send(Send::Stage)),
        3 => Just(Step::Send(Send::Publish)),
        1 => Just(Step::Send(Send::UnstageAll)),
        8 => Just(Step::Receive(Receive::Pop)),
        2 => any::<bool>().prop_map(|takes| Step::Receive(Receive::PopIf(takes))),
        2 => (0..20usize).prop_map(|most| Step::Receive(Receive::PopWhile(most))),
        1 => (0..70usize).prop_map(|i| Step::Receive(Receive::Peek(i))),
        1 => (0..70usize).prop_map(|i| Step::Receive(Receive::PeekMut(i))),
    ]
}

/// The ring as it would be written without threads: what is published, and what is staged.
#[derive(Default)]
struct Plain {
    capacity: usize,
    published: VecDeque<()>,
    staged: usize,
}

impl Plain {
    fn len(&self) -> usize {
        self.published.len() + self.staged
    }

    fn publish(&mut self) {
        self.published.extend((0..self.staged).map(|_| ()));
        self.staged = 0;
    }

    fn send(&mut self, step: Send) -> bool {
        let fits = self.len() < self.capacity;
        match step {
            Send::Push | Send::Stage if !fits => return false,
            Send::Push => {
                self.staged += 1;
                self.publish();
            }
            Send::Stage => self.staged += 1,
            Send::Publish => self.publish(),
            Send::UnstageAll => self.staged = 0,
        }
        true
    }

    fn receive(&mut self, step: Receive) -> bool {
        match step {
            Receive::Pop | Receive::PopIf(true) => self.published.pop_front().is_some(),
            Receive::PopIf(false) => !self.published.is_empty(),
            Receive::PopWhile(most) => {
                self.published.drain(..most.min(self.published.len())).len() > 0
            }
            Receive::Peek(i) | Receive::PeekMut(i) => i < self.published.len(),
        }
    }
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        capacity in prop_oneof![0..5usize, 14..19usize, 30..70usize],
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let census = Census::default();
        let (mut sender, mut receiver) = numbered(capacity, &census);
        let mut plain = Plain { capacity, ..Plain::default() };
        for step in steps {
            match step {
                Step::Send(step) => prop_assert_eq!(sender.step(step), plain.send(step)),
                Step::Receive(step) => prop_assert_eq!(receiver.step(step), plain.receive(step)),
            }
            prop_assert_eq!(sender.producer().len(), plain.len());
            prop_assert_eq!(sender.producer().is_empty(), plain.len() == 0);
            prop_assert_eq!(sender.producer().free(), capacity - plain.len());
            prop_assert_eq!(receiver.consumer().len(), plain.published.len());
            prop_assert_eq!(receiver.consumer().is_empty(), plain.published.is_empty());
        }
        let sent = sender.finish();
        prop_assert_eq!(receiver.finish(), sent);
        drop(receiver);
        prop_assert_eq!(census.alive(), 0);
    }
}
