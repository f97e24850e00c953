//! What a ring costs before it is used, and as it is used, counted at the allocator.
#![cfg(not(loom))]

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
};
use std::alloc::System;

use feroce_ring::{DoorbellOwner, spsc};

/// The system's allocator, and how many bytes it has lent to this thread.
struct Counting;

thread_local! {
    // Per thread: the test harness allocates on its own thread while the test runs. Bytes that
    // one thread allocates and another frees wrap the counters; the test compares differences on
    // one thread.
    static LENT: Cell<usize> = const { Cell::new(0) };
}

/// Bytes lent to this thread so far.
fn lent() -> usize {
    LENT.get()
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LENT.set(LENT.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LENT.set(LENT.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes lent since `before`.
fn since(before: usize) -> usize {
    lent().wrapping_sub(before)
}

/// About the size of a work queue entry.
type Entry = [u64; 16];
const ENTRY: usize = size_of::<Entry>();
const HEADER: usize = 192;

#[test]
fn memory_is_taken_as_it_is_used() {
    let start = lent();

    let (mut producer, mut consumer) = spsc::<Entry>(128);
    assert!(since(start) <= HEADER + 128, "an idle ring of 128: {} bytes", since(start));
    let idle = lent();
    assert!(consumer.pop().is_none() && consumer.peek(0).is_none());
    assert_eq!(since(idle), 0);
    for used in 1..=128_usize {
        producer.push([0; 16]).unwrap();
        assert_eq!(since(idle), used.next_multiple_of(16) * ENTRY);
    }
    let full = lent();
    for _ in 0..1000 {
        assert!(producer.push([0; 16]).is_err());
        consumer.pop().unwrap();
        producer.push([0; 16]).unwrap();
    }
    assert_eq!(since(full), 0, "a ring in use allocates nothing");
    drop((producer, consumer));
    assert_eq!(since(start), 0);

    let small = spsc::<Entry>(3);
    let idle = lent();
    let (mut producer, consumer) = small;
    producer.push([0; 16]).unwrap();
    assert_eq!(since(idle), 3 * ENTRY, "no more slots than the capacity");
    drop((producer, consumer));

    let large = spsc::<Entry>(1 << 20);
    assert!(since(start) <= HEADER + (1 << 20), "one byte per slot of an idle ring at most");
    drop(large);

    let mut owner = DoorbellOwner::new();
    let bell = owner.bell(99);
    assert!(since(start) <= 100 * 48 + 128 * 8 + 64, "a hundred bells: {} bytes", since(start));
    let idle = lent();
    bell.ring();
    let mut rung = 0;
    owner.drain(|_| rung += 1);
    assert_eq!((rung, since(idle)), (1, 0), "ringing allocates nothing");
}
