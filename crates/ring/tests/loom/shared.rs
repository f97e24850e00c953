//! The ring of bytes and its sleeper, in every order.

use alloc::sync::Arc;

use feroce_ring::{ByteConsumer, ByteProducer, RingMemory, fall_asleep, must_wake};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// Words of eight bytes, each of which loom watches.
const WORDS: usize = 4;

#[derive(Clone)]
struct Memory(Arc<Shared>);

struct Shared {
    head: AtomicU32,
    tail: AtomicU32,
    words: [UnsafeCell<[u8; 8]>; WORDS],
    sleeping: AtomicU32,
}

// SAFETY: loom reports two threads that touch a word at once; that is what is being checked.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Memory {
    fn new() -> Self {
        Self(Arc::new(Shared {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            words: core::array::from_fn(|_| UnsafeCell::new([0; 8])),
            sleeping: AtomicU32::new(0),
        }))
    }
}

// SAFETY: the capacity is that of the words, whose bounds are checked.
unsafe impl RingMemory for Memory {
    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }

    fn tail(&self) -> &AtomicU32 {
        &self.0.tail
    }

    fn capacity(&self) -> usize {
        WORDS * 8
    }

    unsafe fn fill(&self, at: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; len];
        write(&mut bytes);
        for (i, part) in bytes.chunks(8).enumerate() {
            self.0.words[at / 8 + i].with_mut(|word| {
                // SAFETY: loom reports it if another thread touches the word.
                unsafe { (&mut (*word))[..part.len()].copy_from_slice(part) };
            });
        }
    }

    unsafe fn copy_out(&self, at: usize, out: &mut [u8]) {
        for (i, part) in out.chunks_mut(8).enumerate() {
            self.0.words[at / 8 + i].with(|word| {
                // SAFETY: loom reports it if another thread writes the word.
                part.copy_from_slice(unsafe { &(&(*word))[..part.len()] });
            });
        }
    }
}

fn halves(memory: &Memory) -> (ByteProducer<Memory>, ByteConsumer<Memory>) {
    // SAFETY: the only producer of this memory.
    let producer = unsafe { ByteProducer::new(memory.clone()) };
    // SAFETY: the only consumer of this memory.
    let consumer = unsafe { ByteConsumer::new(memory.clone()) };
    (producer, consumer)
}

fn pop(consumer: &mut ByteConsumer<Memory>) -> Option<u8> {
    let mut out = [0; 16];
    consumer.pop(&mut out).expect("an honest producer").map(|len| {
        assert_eq!(len, 4);
        out[0]
    })
}

#[test]
fn records_between_processes_keep_their_order_and_their_bytes() {
    loom::model(|| {
        let memory = Memory::new();
        let (mut producer, mut consumer) = halves(&memory);
        let sending = thread::spawn(move || {
            // Two fill the ring.
            (1..=3)
                .filter(|&n| {
                    let taken = producer.stage(4, |out| out.fill(n)).expect("an honest consumer");
                    producer.publish();
                    taken
                })
                .collect::<Vec<u8>>()
        });
        let mut got: Vec<u8> = (0..2).filter_map(|_| pop(&mut consumer)).collect();
        let sent = sending.join().expect("the sender does not fail");
        got.extend(core::iter::from_fn(|| pop(&mut consumer)));
        assert_eq!(got, sent);
    });
}

#[test]
fn no_consumer_sleeps_over_a_record() {
    loom::model(|| {
        let memory = Memory::new();
        let (mut producer, consumer) = halves(&memory);
        let woken = Arc::new(AtomicU32::new(0));
        let (waker, flag) = (Arc::clone(&woken), memory.clone());
        let sending = thread::spawn(move || {
            assert_eq!(producer.stage(4, |out| out.fill(7)), Ok(true));
            producer.publish();
            if must_wake(&flag.0.sleeping) {
                waker.store(1, Ordering::Relaxed);
            }
        });
        fall_asleep(&memory.0.sleeping);
        let sleeps = consumer.is_empty();
        sending.join().expect("the sender does not fail");
        assert!(!sleeps || woken.load(Ordering::Relaxed) == 1, "asleep, and no producer wakes it");
    });
}

#[test]
fn no_producer_waits_beside_room() {
    loom::model(|| {
        let memory = Memory::new();
        let (mut producer, mut consumer) = halves(&memory);
        let mut stage = move || producer.stage(4, |out| out.fill(7)) == Ok(true);
        assert!(stage() && stage(), "two records fill the ring");
        // The producer shows them before another thread begins to take them out.
        memory.0.tail.store(32, Ordering::Release);
        let woken = Arc::new(AtomicU32::new(0));
        let (waker, flag) = (Arc::clone(&woken), memory.clone());
        let taking = thread::spawn(move || {
            assert_eq!(pop(&mut consumer), Some(7));
            if must_wake(&flag.0.sleeping) {
                waker.store(1, Ordering::Relaxed);
            }
        });
        fall_asleep(&memory.0.sleeping);
        let has_room = stage();
        taking.join().expect("the receiver does not fail");
        assert!(
            has_room || woken.load(Ordering::Relaxed) == 1,
            "the producer waits, and the consumer does not wake it"
        );
    });
}
