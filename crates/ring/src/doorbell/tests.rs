//! Behaviour on one thread, and a stress test on several; see `tests/loom.rs` for the models.

use alloc::{vec, vec::Vec};
use core::sync::atomic::AtomicU64;
use std::{panic, thread};

use super::*;

/// Drains into a list.
fn drained(owner: &mut DoorbellOwner) -> Vec<u32> {
    let mut ids = VecDeque::new();
    owner.drain_into(&mut ids);
    ids.into()
}

#[test]
fn rung_slots_are_drained_once_and_oldest_first() {
    let mut owner = DoorbellOwner::new();
    let bells: Vec<_> = (0..5).map(|id| owner.bell(id)).collect();
    assert!(!owner.is_rung());
    for id in [3, 0, 4, 0, 3, 1] {
        bells[id].ring();
    }
    assert!(owner.is_rung() && owner.set().is_rung());
    assert_eq!(drained(&mut owner), [3, 0, 4, 1]);
    assert!(!owner.is_rung() && !owner.set().is_rung());
    assert_eq!(drained(&mut owner), []);
}

#[test]
fn only_the_first_ring_asks_for_a_wake_up() {
    let mut owner = DoorbellOwner::new();
    let bell = owner.bell(7);
    assert_eq!((bell.ring(), bell.ring()), (true, false));
    assert_eq!(drained(&mut owner), [7]);
    assert_eq!((bell.ring(), bell.ring()), (true, false));
}

#[test]
fn a_slot_keeps_its_bell() {
    let mut owner = DoorbellOwner::default();
    let bell = owner.bell(2);
    assert_eq!((bell.id(), owner.bell(0).id(), owner.bell(9).id()), (2, 0, 9));
    assert!(Arc::ptr_eq(&bell, &owner.bell(2)));
}

#[test]
fn a_bell_rung_while_draining_is_left_for_the_next_drain() {
    let mut owner = DoorbellOwner::new();
    let bells = [owner.bell(0), owner.bell(1), owner.bell(2)];
    bells[0].ring();
    bells[1].ring();
    let mut seen = vec![];
    owner.drain(|id| {
        seen.push(id);
        assert!(bells[id as usize].ring(), "cleared before it was passed on");
        bells[2].ring();
    });
    assert_eq!(seen, [0, 1]);
    assert_eq!(drained(&mut owner), [0, 2, 1]);
}

#[test]
fn a_panic_while_draining_loses_no_other_slot() {
    let mut owner = DoorbellOwner::new();
    for id in 0..3 {
        owner.bell(id).ring();
    }
    let drain = || owner.drain(|id| assert_ne!(id, 1, "expected by the test"));
    assert!(panic::catch_unwind(panic::AssertUnwindSafe(drain)).is_err());
    assert!(owner.is_rung());
    assert_eq!(drained(&mut owner), [2]);
}

#[test]
fn a_bell_may_outlive_its_owner() {
    let bell = DoorbellOwner::new().bell(0);
    assert!(bell.ring());
}

#[test]
fn debug_shows_the_state() {
    let mut owner = DoorbellOwner::new();
    let bell = owner.bell(1);
    bell.ring();
    let text = alloc::format!("{bell:?} {owner:?} {:?}", owner.set());
    assert_eq!(
        text,
        "Doorbell { id: 1, rung: true } DoorbellOwner { bells: 2, is_rung: true } \
         DoorbellSet { is_rung: true }"
    );
}

#[test]
fn many_threads_ring_and_no_work_is_overlooked() {
    const SLOTS: u32 = 8;
    const THREADS: u64 = 4;
    const POSTS: u64 = 25_000;

    let mut owner = DoorbellOwner::new();
    let bells: Vec<_> = (0..SLOTS).map(|id| owner.bell(id)).collect();
    let posted: Vec<_> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    let mut seen = vec![0; SLOTS as usize];
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bells, posted) = (&bells, &posted);
            scope.spawn(move || {
                for post in 0..POSTS {
                    let slot = ((post * (thread + 1)) % u64::from(SLOTS)) as usize;
                    posted[slot].fetch_add(1, Ordering::Relaxed);
                    bells[slot].ring();
                }
            });
        }
        while seen.iter().sum::<u64>() < THREADS * POSTS {
            owner.drain(|id| seen[id as usize] = posted[id as usize].load(Ordering::Relaxed));
            thread::yield_now();
        }
    });
}
