//! What a ring promises, written once for two checkers: `tests/property.rs` mixes the steps of
//! both sides at random on one thread, `tests/loom.rs` runs them on two in every order.

use alloc::sync::Arc;

use feroce_ring::{Consumer, Producer, spsc};

/// A numbered item, counted while it lives.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) number: u32,
    _alive: Arc<()>,
}

/// Counts the items of one model that live.
#[derive(Clone, Default)]
pub(crate) struct Census(Arc<()>);

impl Census {
    /// How many items live, when both halves of the ring are gone.
    pub(crate) fn alive(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// A step of the producer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Send {
    Push,
    Stage,
    Publish,
    UnstageAll,
}

/// A step of the consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Receive {
    Pop,
    /// Or leave it where it is.
    PopIf(bool),
    /// At most so many at once.
    PopWhile(usize),
    Peek(usize),
    PeekMut(usize),
}

/// Makes a ring whose items are numbered and checked.
pub(crate) fn numbered(capacity: usize, census: &Census) -> (Sender, Receiver) {
    let (producer, consumer) = spsc(capacity);
    let sender = Sender { producer, accepted: 0, staged: 0, census: census.clone() };
    (sender, Receiver { consumer, received: 0 })
}

/// A producer that numbers what it sends from 0.
pub(crate) struct Sender {
    producer: Producer<Item>,
    /// Items taken by the ring, and so the number of the next one.
    accepted: u32,
    /// Those of them not published yet.
    staged: u32,
    census: Census,
}

impl Sender {
    /// Takes one step; returns false if the ring was full.
    pub(crate) fn step(&mut self, step: Send) -> bool {
        let fits = match step {
            Send::Push => self.enter(Producer::push),
            Send::Stage => self.enter(Producer::stage),
            Send::Publish => {
                self.producer.publish();
                true
            }
            Send::UnstageAll => {
                self.producer.unstage_all();
                self.accepted -= self.staged;
                true
            }
        };
        match step {
            Send::Stage => self.staged += u32::from(fits),
            Send::Push if !fits => {}
            _ => self.staged = 0,
        }
        assert_eq!(self.producer.staged(), self.staged as usize);
        fits
    }

    /// Drops the producer, which publishes what is staged; returns how many items were sent in all.
    pub(crate) fn finish(self) -> u32 {
        self.accepted
    }

    /// The producer itself.
    #[cfg(not(loom))]
    pub(crate) fn producer(&mut self) -> &mut Producer<Item> {
        &mut self.producer
    }

    fn enter(&mut self, with: fn(&mut Producer<Item>, Item) -> Result<(), Item>) -> bool {
        let item = Item { number: self.accepted, _alive: self.census.0.clone() };
        match with(&mut self.producer, item) {
            Ok(()) => self.accepted += 1,
            Err(refused) => {
                assert_eq!(refused.number, self.accepted);
                return false;
            }
        }
        true
    }
}

/// A consumer that insists on receiving 0, 1, 2 and so on.
pub(crate) struct Receiver {
    consumer: Consumer<Item>,
    received: u32,
}

impl Receiver {
    /// Takes one step; returns false if there was no such item.
    pub(crate) fn step(&mut self, step: Receive) -> bool {
        let number = match step {
            Receive::Pop => self.consumer.pop().map(|item| item.number),
            Receive::PopIf(takes) => {
                let mut seen = None;
                let taken = self.consumer.pop_if(|item| {
                    seen = Some(item.number);
                    takes.then_some(item.number)
                });
                assert_eq!(taken, seen.filter(|_| takes));
                seen
            }
            Receive::PopWhile(most) => {
                let (first, mut next) = (self.received, self.received);
                let taken = self.consumer.pop_while(|item| {
                    assert_eq!(item.number, next);
                    let takes = ((next - first) as usize) < most;
                    next += u32::from(takes);
                    takes
                });
                assert_eq!(taken, (next - first) as usize);
                self.received = next;
                return taken > 0;
            }
            Receive::Peek(i) => self.consumer.peek(i).map(|item| item.number),
            Receive::PeekMut(i) => self.consumer.peek_mut(i).map(|item| {
                item.number += 1;
                item.number -= 1;
                item.number
            }),
        };
        let Some(number) = number else { return false };
        match step {
            Receive::Pop | Receive::PopIf(true) => {
                assert_eq!(number, self.received);
                self.received += 1;
            }
            Receive::PopIf(false) | Receive::PopWhile(_) => assert_eq!(number, self.received),
            Receive::Peek(i) | Receive::PeekMut(i) => {
                assert_eq!(number as usize, self.received as usize + i);
            }
        }
        true
    }

    /// Takes out everything there is; returns how many items were received in all.
    pub(crate) fn finish(&mut self) -> u32 {
        while self.step(Receive::Pop) {}
        self.received
    }

    /// The consumer itself.
    #[cfg(not(loom))]
    pub(crate) fn consumer(&mut self) -> &mut Consumer<Item> {
        &mut self.consumer
    }
}
