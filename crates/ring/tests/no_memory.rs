//! What a ring does when the allocator has no memory.
#![cfg(not(loom))]

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr,
};
use std::alloc::System;

use feroce_ring::{DoorbellOwner, try_spsc};

/// The system's allocator, which a thread can tell to have nothing.
struct Failing;

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call is passed on unchanged to the system's allocator, or allocates nothing.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if FAILS.get() {
            return ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs something while this thread cannot allocate.
fn without_memory<R>(run: impl FnOnce() -> R) -> R {
    FAILS.set(true);
    let result = run();
    FAILS.set(false);
    result
}

#[test]
fn a_ring_is_not_made() {
    assert!(without_memory(|| try_spsc::<u64>(1000).is_none()));
}

#[test]
fn an_item_without_a_segment_is_given_back_and_fits_later() {
    let (mut producer, mut consumer) = try_spsc(40).expect("a ring");
    assert_eq!(without_memory(|| producer.push(1)), Err(1));
    assert!(without_memory(|| producer.vacant().is_none()));
    assert_eq!(producer.len(), 0);
    for item in 0..16 {
        producer.push(item).expect("the first segment");
    }
    assert_eq!(without_memory(|| producer.stage(16)), Err(16));
    producer.push(16).expect("the second segment");
    assert!((0..=16).all(|item| consumer.pop() == Some(item)));
}

#[test]
fn memory_that_is_to_be_spared_is_left() {
    let (mut producer, _consumer) = try_spsc::<u8>(40).expect("a ring");
    assert!(producer.vacant_sparing(usize::MAX / 4).is_none());
    assert!(producer.vacant_sparing(4096).is_some());
    assert!(without_memory(|| producer.vacant_sparing(4096).is_some()), "it has its memory");
}

#[test]
fn reserved_items_need_no_memory() {
    let (mut producer, mut consumer) = try_spsc(40).expect("a ring");
    assert!(!without_memory(|| producer.reserve(1)));
    assert!(!producer.reserve(41), "more than the capacity");
    assert!(producer.reserve(40));
    assert!(without_memory(|| (0..40).all(|item| producer.push(item).is_ok())));
    assert!((0..40).all(|item| consumer.pop() == Some(item)));
}

#[test]
fn a_doorbell_is_not_made() {
    let mut owner = DoorbellOwner::new();
    assert!(without_memory(|| owner.try_bell(7).is_none()));
    owner.bell(7).ring();
    assert!(owner.is_rung());
}
