use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use proptest::prelude::*;

use super::*;

/// The memory of a ring on the heap; both halves of a test are on one thread.
#[derive(Clone)]
struct Heap(Rc<Shared>);

struct Shared {
    head: AtomicU32,
    tail: AtomicU32,
    bytes: Vec<UnsafeCell<u8>>,
}

impl Heap {
    fn new(capacity: usize) -> Self {
        let bytes = (0..capacity).map(|_| UnsafeCell::new(0xee)).collect();
        Self(Rc::new(Shared { head: AtomicU32::new(0), tail: AtomicU32::new(0), bytes }))
    }

    fn scribble(&self, at: usize, bytes: &[u8]) {
        for (cell, &byte) in self.0.bytes[at..].iter().zip(bytes) {
            // SAFETY: one thread, and no reference to the byte exists.
            unsafe { *cell.get() = byte };
        }
    }
}

// SAFETY: the capacity is that of the vector, whose bounds are checked; tests use powers of two.
unsafe impl RingMemory for Heap {
    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }

    fn tail(&self) -> &AtomicU32 {
        &self.0.tail
    }

    fn capacity(&self) -> usize {
        self.0.bytes.len()
    }

    unsafe fn fill(&self, at: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut bytes = alloc::vec![0; len];
        write(&mut bytes);
        assert!(at + len <= self.capacity());
        self.scribble(at, &bytes);
    }

    unsafe fn copy_out(&self, at: usize, out: &mut [u8]) {
        let cells = &self.0.bytes[at..at + out.len()];
        for (out, cell) in out.iter_mut().zip(cells) {
            // SAFETY: one thread, and no reference to the byte exists.
            *out = unsafe { *cell.get() };
        }
    }
}

fn halves(memory: &Heap) -> (ByteProducer<Heap>, ByteConsumer<Heap>) {
    // SAFETY: the only producer of this memory.
    let producer = unsafe { ByteProducer::new(memory.clone()) };
    // SAFETY: the only consumer of this memory.
    let consumer = unsafe { ByteConsumer::new(memory.clone()) };
    (producer, consumer)
}

fn push(producer: &mut ByteProducer<Heap>, record: &[u8]) -> Result<bool, Corrupt> {
    let fits = producer.stage(record.len(), |out| out.copy_from_slice(record))?;
    producer.publish();
    Ok(fits)
}

fn pop(consumer: &mut ByteConsumer<Heap>) -> Result<Option<Vec<u8>>, Corrupt> {
    let mut out = [0; 64];
    Ok(consumer.pop(&mut out)?.map(|len| out[..len].to_vec()))
}

#[test]
fn records_come_out_as_they_went_in() {
    let (mut producer, mut consumer) = halves(&Heap::new(64));
    assert_eq!(producer.max_record(), 24);
    assert_eq!(pop(&mut consumer), Ok(None));
    for turn in 0..50_u8 {
        let len = usize::from(turn) % 25;
        let record: Vec<u8> = (0..len as u8).map(|i| i ^ turn).collect();
        assert_eq!(push(&mut producer, &record), Ok(true), "{turn}");
        assert!(!consumer.is_empty());
        assert_eq!(pop(&mut consumer), Ok(Some(record)), "{turn}");
        assert!(consumer.is_empty());
    }
}

#[test]
fn a_full_ring_takes_nothing_until_something_is_removed() {
    let (mut producer, mut consumer) = halves(&Heap::new(64));
    for n in 0..4 {
        assert_eq!(push(&mut producer, &[n; 8]), Ok(true));
    }
    assert_eq!(push(&mut producer, &[]), Ok(false));
    assert_eq!(producer.removed(), 0);
    assert!(!producer.is_empty());
    assert_eq!(pop(&mut consumer), Ok(Some([0; 8].to_vec())));
    assert_eq!(producer.removed(), 16);
    assert_eq!(push(&mut producer, &[4; 8]), Ok(true));
    assert_eq!(push(&mut producer, &[9; 25]), Ok(false), "too long for ever");
}

#[test]
fn what_is_staged_is_not_seen() {
    let (mut producer, mut consumer) = halves(&Heap::new(64));
    assert_eq!(producer.stage(3, |out| out.copy_from_slice(b"one")), Ok(true));
    assert_eq!(pop(&mut consumer), Ok(None));
    producer.publish();
    assert_eq!(pop(&mut consumer), Ok(Some(b"one".to_vec())));
}

#[test]
fn a_sleeper_is_woken_once() {
    let sleeping = AtomicU32::new(0);
    assert!(!must_wake(&sleeping));
    fall_asleep(&sleeping);
    assert!(must_wake(&sleeping));
    assert!(!must_wake(&sleeping));
}

proptest! {
    /// Records in, records out, in any mixture and of any length.
    #[test]
    fn it_is_a_queue(steps in prop::collection::vec(prop::option::of(0..60_usize), 0..300)) {
        let (mut producer, mut consumer) = halves(&Heap::new(128));
        let mut model = alloc::collections::VecDeque::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Some(len) => {
                    let record = alloc::vec![n as u8; len];
                    let free = 128 - model.iter().map(|r: &Vec<u8>| space(r.len())).sum::<usize>();
                    let fits = push(&mut producer, &record).expect("honest");
                    prop_assert!(!fits || space(len) <= free);
                    prop_assert!(fits || !model.is_empty() || len > 56);
                    if fits {
                        model.push_back(record);
                    }
                }
                None => prop_assert_eq!(pop(&mut consumer).expect("honest"), model.pop_front()),
            }
        }
    }

    /// Whatever the other side writes, wherever: an answer, never a byte outside (the memory here
    /// checks its bounds) and never an endless run.
    #[test]
    fn nothing_that_the_other_side_does_leads_outside(
        counters in (any::<u32>(), any::<u32>()),
        near in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 64),
        words in prop::collection::vec((0..8_usize, prop_oneof![Just(SKIP), 0..80_u32]), 0..8),
    ) {
        let memory = Heap::new(64);
        let (mut producer, mut consumer) = halves(&memory);
        prop_assert_eq!(push(&mut producer, b"honest"), Ok(true));
        prop_assert!(pop(&mut consumer).is_ok());
        memory.scribble(0, &bytes);
        for (at, word) in words {
            memory.scribble(at * 8, &word.to_ne_bytes());
        }
        let (head, tail) = counters;
        let bound = |n: u32| if near { n % 20 * 8 } else { n };
        memory.0.head.store(bound(head), Ordering::Relaxed);
        memory.0.tail.store(bound(tail), Ordering::Relaxed);
        for _ in 0..20 {
            let _ = pop(&mut consumer);
            let _ = push(&mut producer, &[1; 24]);
        }
    }
}
