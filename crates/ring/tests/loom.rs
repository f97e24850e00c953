//! Every order in which the threads of a ring or a doorbell can run, within loom's memory model.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p feroce-ring --release --test loom
//! ```
#![cfg(loom)]

extern crate alloc;

#[path = "loom/events.rs"]
mod events;
mod model;
#[path = "loom/shards.rs"]
mod shards;
#[path = "loom/shared.rs"]
mod shared;
#[path = "loom/sleep.rs"]
mod sleep;

use feroce_ring::{
    Consumer, Doorbell, DoorbellOwner, DoorbellSet, Life, LockPair, OuterGuard, Park, Producer,
    Unclaimed, spsc,
};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use model::{
    Census,
    Receive::{self, Peek, PeekMut, Pop, PopIf, PopWhile},
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
fn slots_change_hands_together() {
    check(2, &[Push, Push, Push, Push], &[PopWhile(1), PopWhile(3), PopWhile(2)]);
    check(3, &[Stage, Stage, Publish, Stage, Push], &[Peek(1), PopWhile(2), Pop, PopWhile(3)]);
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

/// Waits as the driver does, except that it does not spin.
#[derive(Default)]
struct Parking {
    gate: Mutex<()>,
    released: Condvar,
}

impl Park for Parking {
    fn park_until(&self, take: &mut dyn FnMut() -> bool) {
        let mut gate = self.gate.lock().unwrap();
        while !take() {
            gate = self.released.wait(gate).unwrap();
        }
    }

    fn unpark_all(&self) {
        drop(self.gate.lock().unwrap());
        self.released.notify_all();
    }
}

/// The outer lock covers the bells, the inner one a second value.
type Locks = LockPair<Owned, u32, Parking>;
type Owner<'a> = OuterGuard<'a, Owned, u32, Parking>;

/// Answers the bells, releases the lock, and looks again.
fn finish<'a>(locks: &'a Locks, mut owner: Owner<'a>, set: &DoorbellSet) {
    loop {
        let Owned { bells, ring, found } = &mut *owner;
        bells.drain(|_| {
            while ring.pop().is_some() {
                *found += 1;
            }
        });
        drop(owner);
        if !set.is_rung_meanwhile() {
            return;
        }
        match locks.try_outer() {
            Some(again) => owner = again,
            None => return,
        }
    }
}

/// What a thread does that posts work, rings, and gets the lock or leaves the bell to its owner.
fn post_one(
    mut posts: Producer<u32>,
    bell: alloc::sync::Arc<Doorbell>,
    locks: &Arc<Locks>,
    set: &alloc::sync::Arc<DoorbellSet>,
) -> impl FnOnce() + use<> {
    let (locks, set) = (locks.clone(), set.clone());
    move || {
        posts.push(0).expect("there is room");
        if bell.ring()
            && let Some(owner) = locks.try_outer()
        {
            finish(&locks, owner, &set);
        }
    }
}

/// A thread rings. Another has the lock from the beginning, or waits for it.
fn check_answered(has_lock: bool) {
    loom::model(move || {
        let mut bells = DoorbellOwner::new();
        let (posts, ring) = spsc(1);
        let (bell, set) = (bells.bell(0), bells.set().clone());
        let owned = Owned { bells, ring, found: 0 };
        let locks = Arc::new(Locks::new(owned, 0, Parking::default()));
        let owner = has_lock.then(|| locks.lock_outer());
        let posting = thread::spawn(post_one(posts, bell, &locks, &set));
        let owner = owner.unwrap_or_else(|| locks.lock_outer());
        finish(&locks, owner, &set);
        posting.join().expect("the poster does not fail");
        assert_eq!(locks.lock_outer().found, 1);
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

/// A thread rings while another claims the lock, takes it perhaps, and ends its claim.
#[test]
fn a_bell_that_is_left_to_a_claiming_thread_is_answered() {
    loom::model(|| {
        let mut bells = DoorbellOwner::new();
        let (posts, ring) = spsc(1);
        let (bell, set) = (bells.bell(0), bells.set().clone());
        let owned = Owned { bells, ring, found: 0 };
        let locks = Arc::new(Locks::new(owned, 0, Parking::default()));
        locks.claim_outer();
        let posting = thread::spawn(post_one(posts, bell, &locks, &set));
        if let Some(owner) = locks.try_claimed_outer() {
            finish(&locks, owner, &set);
        }
        locks.end_claim();
        drop(locks.lock_outer());
        if set.is_rung_meanwhile()
            && let Some(owner) = locks.try_outer()
        {
            finish(&locks, owner, &set);
        }
        posting.join().expect("the poster does not fail");
        assert_eq!(locks.lock_outer().found, 1);
    });
}

/// Adds one to both values, as a thread of the data path does: with both locks if they are free.
fn add_to_both(locks: &LockPair<u32, u32, Parking>) {
    let (mut outer, mut inner) = locks.try_both().unwrap_or_else(|| {
        let outer = locks.lock_outer();
        (outer, locks.lock_inner())
    });
    *outer += 1;
    *inner += 1;
    outer.unlock_both(inner);
}

#[test]
fn threads_that_take_one_lock_or_both_exclude_each_other() {
    loom::model(|| {
        let locks = Arc::new(LockPair::new(0, 0, Parking::default()));
        let adding = thread::spawn({
            let locks = locks.clone();
            move || add_to_both(&locks)
        });
        *locks.lock_inner() += 1;
        add_to_both(&locks);
        adding.join().expect("the thread does not fail");
        assert_eq!((*locks.lock_outer(), *locks.lock_inner()), (2, 3));
    });
}

/// Three threads wait for one lock, so that one may have to let another be the next owner. They are
/// too many for every interleaving; those with up to two preemptions take seconds.
#[test]
fn threads_that_wait_for_one_lock_all_get_it() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let locks = Arc::new(LockPair::new((), 0, Parking::default()));
        let add = || {
            let locks = locks.clone();
            thread::spawn(move || *locks.lock_inner() += 1)
        };
        let adding = [add(), add()];
        *locks.lock_inner() += 1;
        for thread in adding {
            thread.join().expect("the thread does not fail");
        }
        assert_eq!(*locks.lock_inner(), 3);
    });
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
