//! Every order in which the threads of a ring or a doorbell can run, within loom's memory model.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p feroce-ring --release --test loom
//! ```
#![cfg(loom)]

extern crate alloc;

mod model;
#[path = "loom/shared.rs"]
mod shared;
#[path = "loom/sleep.rs"]
mod sleep;

use feroce_ring::{Consumer, DoorbellOwner, DoorbellSet, Life, Unclaimed, spsc};
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use model::{
    Census,
    Receive::{self, Peek, PeekMut, Pop, PopIf},
    Send::{self, Publish, Push, Stage, UnstageAll},
    numbered,
};

/// Runs both scripts at once in every order; all that was sent must arrive, and all that was made
/// must be dropped.
fn check(capacity: usize, send: &'static [Send], receive: &'static [Receive]) {
    loom::model(move || {
        let census = Census::default();
        let (mut sender, mut receiver) = numbered(capacity, &census);
        let sending = thread::spawn(move || {
            for &step in send {
                sender.step(step);
            }
            sender.finish()
        });
        for &step in receive {
            receiver.step(step);
        }
        let sent = sending.join().expect("the sender does not fail");
        assert_eq!(receiver.finish(), sent);
        drop(receiver);
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn push_pop_and_peek_keep_the_order() {
    check(2, &[Push, Push, Push], &[Pop, Peek(1), Pop, Pop]);
    check(3, &[Push, Push, Push, Push], &[Peek(0), Pop, PeekMut(1), Pop]);
}

#[test]
fn one_slot_changes_hands() {
    check(1, &[Push, Push, Push], &[Pop, PeekMut(0), Pop, Pop]);
    check(1, &[Push, Push, Push], &[PopIf(false), PopIf(true), PopIf(true), Pop]);
}

#[test]
fn staged_items_are_published_whole() {
    check(3, &[Stage, Stage, Publish, Stage, Push], &[Peek(1), Pop, Pop, Pop]);
    check(2, &[Stage, Publish, Stage, UnstageAll, Stage, Push], &[Pop, Peek(0), Pop]);
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (mut producer, consumer) = spsc(3);
        let sending = thread::spawn(move || {
            for number in 0..3 {
                producer.stage(number).unwrap();
            }
        });
        assert!(matches!(consumer.len(), 0 | 3));
        if consumer.peek(0).is_some() {
            assert_eq!(consumer.peek(2), Some(&2));
        }
        sending.join().unwrap();
        assert_eq!(consumer.len(), 3);
    });
}

#[test]
fn both_halves_may_go_at_once_while_the_ring_is_full() {
    loom::model(|| {
        let census = Census::default();
        let (mut sender, mut receiver) = numbered(3, &census);
        for _ in 0..3 {
            assert!(sender.step(Push));
        }
        assert!(receiver.step(Pop));
        let sending = thread::spawn(move || {
            sender.step(Push);
            sender.step(Stage);
            drop(sender);
        });
        receiver.step(Pop);
        drop(receiver);
        sending.join().unwrap();
        assert_eq!(census.alive(), 0);
    });
}

#[test]
fn the_producer_learns_that_the_consumer_is_gone() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc(1);
        producer.push(0).unwrap();
        let receiving = thread::spawn(move || consumer.pop());
        if producer.is_closed() {
            assert_eq!(producer.free(), 1, "what it did before it went is seen");
        }
        assert_eq!(receiving.join().unwrap(), Some(0));
        assert!(producer.is_closed());
    });
}

/// Two threads post to a ring each and ring a bell each, the same one or two; the owner looks into
/// a ring only when its bell was rung, and must find everything.
fn check_doorbells(bell_of: [u32; 2], posts: u32, drains: usize) {
    loom::model(move || {
        let mut owner = DoorbellOwner::new();
        let mut rings = Vec::new();
        let mut threads = Vec::new();
        for id in bell_of {
            let (mut producer, consumer) = spsc(posts as usize);
            rings.push((id, consumer));
            let bell = owner.bell(id);
            threads.push(thread::spawn(move || {
                for number in 0..posts {
                    assert!(producer.push(number).is_ok());
                    bell.ring();
                }
            }));
        }
        let mut found = 0;
        let mut look = |owner: &mut DoorbellOwner| {
            owner.drain(|id| {
                for (_, ring) in rings.iter_mut().filter(|(bell, _)| *bell == id) {
                    while ring.pop().is_some() {
                        found += 1;
                    }
                }
            });
        };
        for _ in 0..drains {
            look(&mut owner);
        }
        for thread in threads {
            thread.join().expect("a ringer does not fail");
        }
        look(&mut owner);
        assert!(!owner.is_rung());
        assert_eq!(found, 2 * posts);
    });
}

#[test]
fn two_ringers_of_one_bell_are_both_heard() {
    check_doorbells([0, 0], 1, 2);
}

#[test]
fn two_ringers_of_two_bells_are_both_heard() {
    check_doorbells([0, 1], 1, 2);
}

#[test]
fn ringing_again_is_heard_again() {
    check_doorbells([0, 1], 2, 1);
}

/// What the thread that has a lock owns: the bells, and a ring to look into.
struct Owned {
    bells: DoorbellOwner,
    ring: Consumer<u32>,
    found: u32,
}

/// A lock. A thread that tries it looks first, and what it sees may be old; the mutex inside is
/// never contended. It leaves the lock to threads that wait for it.
struct Lock {
    is_taken: AtomicBool,
    waiters: AtomicU32,
    owned: Mutex<Owned>,
}

impl Lock {
    fn new(owned: Owned, is_taken: bool) -> Self {
        let (is_taken, waiters) = (AtomicBool::new(is_taken), AtomicU32::new(0));
        Self { is_taken, waiters, owned: Mutex::new(owned) }
    }

    fn is_ours(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) == 0 && self.takes()
    }

    fn takes(&self) -> bool {
        let (won, lost) = (Ordering::Acquire, Ordering::Relaxed);
        !self.is_taken.load(Ordering::Relaxed)
            && self.is_taken.compare_exchange(false, true, won, lost).is_ok()
    }

    fn wait(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while !self.takes() {
            thread::yield_now();
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Answers the bells, gives the lock up, and looks again.
    fn finish(&self, set: &DoorbellSet) {
        loop {
            let mut owned = self.owned.try_lock().expect("the lock is ours");
            let Owned { bells, ring, found } = &mut *owned;
            bells.drain(|_| {
                while ring.pop().is_some() {
                    *found += 1;
                }
            });
            drop(owned);
            self.is_taken.store(false, Ordering::Release);
            if !set.is_rung_meanwhile() || !self.is_ours() {
                return;
            }
        }
    }
}

/// A thread rings. Another has the lock from the beginning, or waits for it.
fn check_answered(has_lock: bool) {
    loom::model(move || {
        let mut bells = DoorbellOwner::new();
        let (mut posts, ring) = spsc(1);
        let (bell, set) = (bells.bell(0), bells.set().clone());
        let lock = Arc::new(Lock::new(Owned { bells, ring, found: 0 }, has_lock));
        let posting = thread::spawn({
            let (lock, set) = (lock.clone(), set.clone());
            move || {
                posts.push(0).expect("there is room");
                if bell.ring() && lock.is_ours() {
                    lock.finish(&set);
                }
            }
        });
        if !has_lock {
            lock.wait();
        }
        lock.finish(&set);
        posting.join().expect("the poster does not fail");
        assert_eq!(lock.owned.lock().unwrap().found, 1);
    });
}

#[test]
fn every_bell_is_answered() {
    check_answered(true);
}

#[test]
fn a_bell_that_is_left_to_a_waiting_thread_is_answered() {
    check_answered(false);
}

/// Ends an object whose id is 0, as `attempts` says of each try whether it succeeds; says how often
/// it did.
fn end(life: &Life, table: &Mutex<Vec<u32>>, attempts: &[bool]) -> usize {
    let mut ended = 0;
    for &succeeds in attempts {
        match life.claim() {
            Ok(claim) if succeeds => {
                let mut table = table.lock().unwrap();
                assert_eq!(*table, [0], "the object is there, and no newcomer at its place");
                // The name goes to another object at once.
                *table = vec![1];
                drop(table);
                claim.finish();
                ended += 1;
            }
            Ok(_) => assert_eq!(*table.lock().unwrap(), [0]),
            Err(Unclaimed::Ended) => assert_eq!(*table.lock().unwrap(), [1]),
            Err(Unclaimed::Ending) => {}
        }
    }
    ended
}

#[test]
fn an_object_that_two_threads_end_ends_once() {
    for attempts in [[&[true, true][..], &[true]], [&[false, true], &[true]], [&[false], &[true]]] {
        loom::model(move || {
            let shared = Arc::new((Life::new(), Mutex::new(vec![0])));
            let other = thread::spawn({
                let shared = shared.clone();
                move || end(&shared.0, &shared.1, attempts[1])
            });
            let ended = end(&shared.0, &shared.1, attempts[0]) + other.join().unwrap();
            // A thread that fails may keep another from trying; afterwards the next one succeeds.
            assert_eq!(ended + end(&shared.0, &shared.1, &[true]), 1);
        });
    }
}
