//! Packets on their way.

use alloc::rc::Rc;

use feroce_fabric::credit_blocks;

use super::Receipt;
use crate::data::DataRun;

/// Packets that wait at a port: some of a run.
#[derive(Clone, Debug)]
pub(super) struct Flight<B> {
    pub(super) run: DataRun,
    pub(super) body: B,
    /// The first of the packets, and how many there are.
    pub(super) first: u32,
    pub(super) count: u32,
    /// The port by which a switch received them; 0 at the adapter that sends them.
    pub(super) arrived_by: u8,
    pub(super) hops: u32,
    /// The receive buffer that they occupy.
    pub(super) held: Held,
}

/// What packets occupy.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// Nothing: the memory of the program that sends them.
    Nothing,
    /// A receive buffer, from which they leave one by one.
    Buffer(Receipt),
    /// A receive buffer, together with copies that leave by other ports: all of it is free when the
    /// last of them has left.
    Shared(Rc<Receipt>),
}

impl<B: Clone> Flight<B> {
    /// Blocks of credit that the first packet takes.
    pub(super) fn head_blocks(&self) -> u16 {
        credit_blocks(self.run.len_of(self.first))
    }

    /// How many packets, and how many blocks, fit so many blocks of credit. One fits at least.
    pub(super) fn fitting(&self, may_send: impl Fn(u16) -> bool, most: u32) -> (u32, u16) {
        let (mut count, mut blocks) = (1, self.head_blocks());
        while count < self.count.min(most) {
            let more = blocks.saturating_add(credit_blocks(self.run.len_of(self.first + count)));
            if !may_send(more) {
                break;
            }
            (count, blocks) = (count + 1, more);
        }
        (count, blocks)
    }

    /// Takes the first packets. What is left is empty if those are all.
    pub(super) fn take(&mut self, count: u32) -> Self {
        let count = count.min(self.count);
        let mut taken = Self { count, ..self.clone() };
        if let (Held::Buffer(taken), Held::Buffer(left)) = (&mut taken.held, &mut self.held) {
            let blocks = self.run.blocks(self.first, count);
            taken.blocks = blocks.min(left.blocks);
            left.blocks -= taken.blocks;
        }
        self.first += count;
        self.count -= count;
        taken
    }
}
