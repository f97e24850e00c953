//! Behaviour on one thread, and a stress test on two; see `tests/` for the models.

use alloc::{boxed::Box, format, sync::Arc, vec::Vec};
use core::mem::{offset_of, size_of};
use std::thread;

use super::*;

/// Fills a ring of `capacity` through and through, several times, in uneven steps.
fn wrap_around(capacity: usize) {
    let (mut producer, mut consumer) = spsc(capacity);
    let (mut sent, mut received) = (0, 0);
    for step in 0..10 * (capacity + 1) {
        while producer.push(sent).is_ok() {
            sent += 1;
        }
        assert_eq!((producer.len(), producer.free(), consumer.len()), (capacity, 0, capacity));
        for _ in 0..=step % (capacity + 1) {
            if let Some(number) = consumer.pop() {
                assert_eq!(number, received);
                received += 1;
            }
        }
        for i in 0..consumer.len() {
            assert_eq!(consumer.peek(i), Some(&(received + i)));
        }
        assert_eq!(consumer.peek(consumer.len()), None);
        assert_eq!(producer.free(), capacity - consumer.len());
    }
}

#[test]
fn items_come_out_in_order_whatever_the_capacity() {
    for capacity in [1, 2, 3, 15, 16, 17, 31, 32, 33, 100] {
        wrap_around(capacity);
    }
}

#[test]
fn counters_may_wrap_around() {
    let (mut producer, mut consumer) = spsc(3);
    let start = u32::MAX - 4;
    (producer.tail, producer.published, producer.head) = (start, start, start);
    (consumer.head, consumer.tail) = (start, Cell::new(start));
    for counter in [&producer.shared.head, &producer.shared.tail] {
        counter.store(start, Ordering::Relaxed);
    }
    for number in 0..10 {
        producer.push(Box::new(number)).unwrap();
        producer.push(Box::new(number + 1)).unwrap();
        producer.stage(Box::new(number + 2)).unwrap();
        assert_eq!((producer.len(), producer.free(), producer.staged()), (3, 0, 1));
        assert_eq!(consumer.peek(1), Some(&Box::new(number + 1)));
        assert_eq!(consumer.peek(2), None);
        producer.unstage_all();
        assert_eq!(consumer.pop(), Some(Box::new(number)));
        assert_eq!(consumer.pop(), Some(Box::new(number + 1)));
    }
    // What is left is dropped from where it is.
    producer.push(Box::new(10)).unwrap();
}

#[test]
fn a_ring_of_capacity_zero_is_full_and_empty() {
    let (mut producer, mut consumer) = spsc(0);
    assert_eq!(producer.push(1), Err(1));
    producer.publish();
    producer.unstage_all();
    assert_eq!((producer.free(), producer.len(), producer.capacity()), (0, 0, 0));
    assert_eq!((consumer.pop(), consumer.peek(0)), (None, None));
    assert_eq!(consumer.capacity(), 0);
    assert!(consumer.is_empty() && producer.is_empty());
}

#[test]
#[should_panic(expected = "too large")]
fn a_capacity_beyond_the_limit_is_refused() {
    let _ = spsc::<u8>(MAX_CAPACITY + 1);
}

#[test]
fn peek_beyond_any_capacity_finds_nothing() {
    let (mut producer, consumer) = spsc(4);
    producer.push(1).unwrap();
    assert_eq!(consumer.peek(usize::MAX), None);
    assert_eq!(consumer.peek(u32::MAX as usize + 1), None);
}

#[test]
fn staged_items_take_room_but_are_not_seen() {
    let (mut producer, mut consumer) = spsc(3);
    producer.push(0).unwrap();
    producer.stage(1).unwrap();
    producer.stage(2).unwrap();
    assert_eq!(producer.stage(3), Err(3));
    assert_eq!((producer.staged(), producer.len(), consumer.len()), (2, 3, 1));
    assert_eq!((consumer.pop(), consumer.pop()), (Some(0), None));
    producer.publish();
    assert_eq!((producer.staged(), consumer.len()), (0, 2));
    assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some(1), Some(2), None));
}

#[test]
fn a_push_publishes_what_is_staged() {
    let (mut producer, mut consumer) = spsc(2);
    producer.stage(1).unwrap();
    producer.push(2).unwrap();
    assert_eq!((consumer.pop(), consumer.pop()), (Some(1), Some(2)));
}

#[test]
fn unstaging_gives_the_room_back() {
    let (mut producer, mut consumer) = spsc(3);
    let item = Arc::new(());
    for _ in 0..10 {
        producer.push(item.clone()).unwrap();
        producer.stage(item.clone()).unwrap();
        producer.stage(item.clone()).unwrap();
        assert_eq!(Arc::strong_count(&item), 4);
        producer.unstage_all();
        assert_eq!(Arc::strong_count(&item), 2);
        assert_eq!((producer.staged(), producer.free()), (0, 2));
        assert!(consumer.pop().is_some());
        assert!(consumer.pop().is_none());
    }
}

#[test]
fn a_peeked_item_can_be_changed() {
    let (mut producer, mut consumer) = spsc(20);
    for number in 0..20 {
        producer.push(number).unwrap();
    }
    *consumer.peek_mut(18).unwrap() = 100;
    assert_eq!(consumer.peek_mut(20), None);
    let items: Vec<_> = core::iter::from_fn(|| consumer.pop()).collect();
    assert_eq!(items[17..], [17, 100, 19]);
}

#[test]
fn items_left_are_dropped_with_the_second_half() {
    for producer_first in [true, false] {
        let item = Arc::new(());
        let (mut producer, mut consumer) = spsc(20);
        for _ in 0..20 {
            producer.push(item.clone()).unwrap();
        }
        for _ in 0..5 {
            drop(consumer.pop());
            producer.stage(item.clone()).unwrap();
        }
        assert_eq!(Arc::strong_count(&item), 21);
        if producer_first {
            drop(producer);
            assert_eq!((Arc::strong_count(&item), consumer.len()), (21, 20));
            drop(consumer);
        } else {
            assert!(!producer.is_closed());
            drop(consumer);
            assert!(producer.is_closed());
            assert_eq!((Arc::strong_count(&item), producer.len()), (21, 20));
            drop(producer);
        }
        assert_eq!(Arc::strong_count(&item), 1);
    }
}

#[test]
fn an_item_that_was_only_looked_at_is_dropped_once_and_its_slot_is_free() {
    let item = Arc::new(());
    let count = |item: &Arc<()>| Some(Arc::strong_count(item));
    let (mut producer, mut consumer) = spsc(2);
    assert_eq!(consumer.pop_if(count), None);
    producer.push(Arc::clone(&item)).unwrap();
    producer.push(Arc::clone(&item)).unwrap();
    assert_eq!(consumer.pop_if(|_| None::<()>), None);
    assert_eq!(consumer.pop_if(count), Some(3));
    assert_eq!((Arc::strong_count(&item), producer.free()), (2, 1));
    assert_eq!(consumer.pop_if(count), Some(2));
    assert_eq!(consumer.pop_if(count), None);
    drop((producer, consumer));
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
fn an_item_that_was_only_looked_at_and_whose_drop_panics_is_not_dropped_again() {
    struct Bomb(Arc<()>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(thread::panicking() || Arc::strong_count(&self.0) < 3, "boom");
        }
    }
    let item = Arc::new(());
    let (mut producer, mut consumer) = spsc(4);
    producer.push(Bomb(Arc::clone(&item))).ok().unwrap();
    producer.push(Bomb(Arc::clone(&item))).ok().unwrap();
    let discard = std::panic::AssertUnwindSafe(|| consumer.pop_if(|_| Some(())));
    assert!(std::panic::catch_unwind(discard).is_err());
    assert_eq!((Arc::strong_count(&item), consumer.len()), (2, 1));
    drop((producer, consumer));
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
fn items_that_go_together_are_dropped_where_they_are_and_their_slots_are_free_afterwards() {
    let alive = Arc::new(());
    let (mut producer, mut consumer) = spsc(4);
    assert_eq!(consumer.pop_while(|_| unreachable!("the ring is empty")), 0);
    for number in 0..10 {
        for i in 0..3 {
            producer.push((3 * number + i, Arc::clone(&alive))).ok().unwrap();
        }
        let (mut seen, shared) = (Vec::new(), Arc::clone(&consumer.shared));
        let before = shared.head.load(Ordering::Relaxed);
        let taken = consumer.pop_while(|(i, _)| {
            assert_eq!(shared.head.load(Ordering::Relaxed), before, "none is free yet");
            seen.push(*i);
            i % 3 < 2
        });
        assert_eq!((taken, seen), (2, Vec::from([0, 1, 2].map(|i| 3 * number + i))));
        assert_eq!((Arc::strong_count(&alive), producer.free()), (2, 3));
        assert_eq!(consumer.pop_while(|_| true), 1);
        assert_eq!((Arc::strong_count(&alive), producer.free()), (1, 4));
    }
}

#[test]
fn items_that_went_together_until_a_drop_panicked_are_not_dropped_again() {
    struct Bomb(Arc<()>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(thread::panicking() || Arc::strong_count(&self.0) != 3, "boom");
        }
    }
    let alive = Arc::new(());
    let (mut producer, mut consumer) = spsc(4);
    for _ in 0..3 {
        producer.push(Bomb(Arc::clone(&alive))).ok().unwrap();
    }
    let discard = std::panic::AssertUnwindSafe(|| consumer.pop_while(|_| true));
    assert!(std::panic::catch_unwind(discard).is_err());
    assert_eq!((Arc::strong_count(&alive), consumer.len()), (2, 1));
    drop((producer, consumer));
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_dropped_producer_publishes_what_it_staged() {
    let (mut producer, mut consumer) = spsc(2);
    producer.stage(1).unwrap();
    drop(producer);
    assert_eq!((consumer.pop(), consumer.pop()), (Some(1), None));
}

#[test]
fn the_shared_header_is_small_and_its_words_are_apart() {
    let arc_counts = 2 * size_of::<usize>();
    assert!(size_of::<Shared<[u8; 64]>>() + arc_counts <= 192);
    let read_only_end = offset_of!(Shared<u64>, _head_apart);
    assert!(offset_of!(Shared<u64>, head) >= read_only_end.next_multiple_of(16) + 48);
    assert!(offset_of!(Shared<u64>, tail) >= offset_of!(Shared<u64>, head) + 64);
}

#[test]
fn debug_shows_the_state() {
    let (mut producer, consumer) = spsc(2);
    producer.push(1).unwrap();
    producer.stage(2).unwrap();
    let text = format!("{producer:?} {consumer:?}");
    assert_eq!(
        text,
        "Producer { capacity: 2, len: 2, staged: 1 } Consumer { capacity: 2, len: 1 }"
    );
}

/// Stages and publishes batches of 1 to 8 numbered items, and gives up every 13th to redo it.
fn send_numbers(mut producer: Producer<(u32, Box<u32>)>, items: u32) {
    let mut number = 0;
    for round in 1.. {
        for _ in 0..=round % 8 {
            if number == items || producer.stage((number, Box::new(!number))).is_err() {
                break;
            }
            number += 1;
        }
        if round % 13 == 0 {
            number -= producer.staged() as u32;
            producer.unstage_all();
        }
        producer.publish();
        if number == items {
            return;
        }
        if producer.free() == 0 {
            thread::yield_now();
        }
    }
}

/// Moves numbered, allocated items from one thread to another; every one must arrive, in order.
fn two_threads(capacity: usize, items: u32) {
    let (producer, mut consumer) = spsc(capacity);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send_numbers(producer, items));
        let mut expected = 0;
        while expected < items {
            if let Some((number, _)) = consumer.peek(3) {
                assert_eq!(*number, expected + 3);
            }
            let Some((number, inverse)) = consumer.pop() else {
                thread::yield_now();
                continue;
            };
            assert_eq!((number, *inverse), (expected, !expected));
            expected += 1;
        }
        sending.join().expect("the sender does not fail");
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn a_million_items_cross_between_threads() {
    two_threads(100, 1_000_000);
}

#[test]
fn items_cross_between_threads_through_tiny_rings() {
    two_threads(1, 20_000);
    two_threads(5, 100_000);
}
