//! The thread of an owner sleeps while other threads post, set deadlines and arm.

use feroce_ring::{Arming, Consumer, DoorbellOwner, LockPair, Sleeper, spsc};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::Parking;

/// What an eventfd is to the thread: readable once written, until read.
#[derive(Default)]
pub(super) struct Wake {
    written: Mutex<bool>,
    readable: Condvar,
}

impl Wake {
    pub(super) fn write(&self) {
        *self.written.lock().unwrap() = true;
        self.readable.notify_one();
    }

    /// Sleeps without a limit: a wake-up that is lost is a deadlock, which loom reports.
    pub(super) fn sleep(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.readable.wait(written).unwrap();
        }
        *written = false;
    }
}

/// What the lock protects.
struct Owned {
    bells: DoorbellOwner,
    ring: Consumer<u32>,
    deadline: Option<u64>,
    found: u32,
}

impl Owned {
    /// Answers the bells. Work that is found sets a deadline: a retransmission, say.
    fn drive(&mut self) {
        let Self { bells, ring, deadline, found } = self;
        bells.drain(|_| {
            while ring.pop().is_some() {
                *found += 1;
                *deadline = Some(5);
            }
        });
    }
}

#[test]
fn the_thread_learns_of_work_or_of_its_deadline() {
    loom::model(|| {
        let mut bells = DoorbellOwner::new();
        let (mut posts, ring) = spsc(1);
        let (bell, set) = (bells.bell(0), bells.set().clone());
        let owned = Owned { bells, ring, deadline: None, found: 0 };
        let owned = LockPair::new(owned, (), Parking::default());
        let shared = Arc::new((owned, Sleeper::new(), Wake::default()));
        let posting = thread::spawn({
            let (shared, set) = (shared.clone(), set.clone());
            move || {
                let (owned, sleeper, wake) = &*shared;
                posts.push(0).expect("there is room");
                bell.ring();
                // As the driver does: the lock is tried as long as a bell is rung.
                while let Some(mut owned) = owned.try_outer() {
                    owned.drive();
                    let deadline = owned.deadline.filter(|_| sleeper.may_sleep());
                    drop(owned);
                    if deadline.is_some_and(|at| sleeper.must_wake_at(at)) {
                        wake.write();
                    }
                    if !set.is_rung_meanwhile() {
                        break;
                    }
                }
            }
        });
        let (owned, sleeper, wake) = &*shared;
        loop {
            let mut owner = owned.lock_outer();
            owner.drive();
            let deadline = owner.deadline;
            sleeper.plan(deadline);
            drop(owner);
            if deadline.is_some() {
                break;
            }
            if !set.is_rung_meanwhile() {
                wake.sleep();
            }
            sleeper.woke();
        }
        posting.join().expect("the poster does not fail");
        assert_eq!(owned.lock_outer().found, 1);
    });
}

#[test]
fn a_deadline_that_is_set_earlier_wakes_the_thread() {
    loom::model(|| {
        let shared = Arc::new((Mutex::new(9), Sleeper::new(), Wake::default()));
        let posting = thread::spawn({
            let shared = shared.clone();
            move || {
                let (deadline, sleeper, wake) = &*shared;
                *deadline.lock().unwrap() = 5;
                if sleeper.must_wake_at(5) {
                    wake.write();
                }
            }
        });
        let (deadline, sleeper, wake) = &*shared;
        loop {
            let deadline = deadline.lock().unwrap();
            let at = *deadline;
            sleeper.plan(Some(at));
            drop(deadline);
            if at == 5 {
                break;
            }
            wake.sleep();
            sleeper.woke();
        }
        posting.join().expect("the poster does not fail");
    });
}

#[test]
fn an_idle_thread_or_the_consumer_that_arms_sees_the_other() {
    loom::model(|| {
        let shared = Arc::new((Sleeper::new(), Wake::default()));
        let arming = thread::spawn({
            let shared = shared.clone();
            move || {
                let (sleeper, wake) = &*shared;
                if sleeper.arm(7, &Arming::new()) {
                    wake.write();
                }
            }
        });
        let (sleeper, wake) = &*shared;
        sleeper.begin_idle();
        while sleeper.armed_at() == 0 {
            wake.sleep();
        }
        sleeper.end_idle();
        arming.join().expect("the consumer does not fail");
    });
}

#[test]
fn a_consumer_that_arms_again_after_it_has_polled_is_seen() {
    loom::model(|| {
        let shared = Arc::new((Sleeper::new(), Wake::default()));
        let arming = thread::spawn({
            let shared = shared.clone();
            move || {
                let (sleeper, wake) = &*shared;
                let consumer = Arming::new();
                if sleeper.arm(7, &consumer) {
                    wake.write();
                }
                sleeper.withdraw(&consumer);
                if sleeper.arm(8, &consumer) {
                    wake.write();
                }
            }
        });
        let (sleeper, wake) = &*shared;
        sleeper.begin_idle();
        while sleeper.armed_at() != 8 {
            wake.sleep();
        }
        sleeper.end_idle();
        arming.join().expect("the consumer does not fail");
    });
}

#[test]
fn a_consumer_that_withdraws_does_not_hide_another_that_has_armed() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper::new());
        let (stays, leaves) = (Arming::new(), Arming::new());
        let leaving = thread::spawn({
            let sleeper = sleeper.clone();
            move || {
                sleeper.arm(9, &leaves);
                sleeper.withdraw(&leaves);
            }
        });
        sleeper.arm(9, &stays);
        leaving.join().expect("the consumer does not fail");
        assert!((9..=10).contains(&sleeper.armed_at()), "armed at {}", sleeper.armed_at());
        sleeper.withdraw(&stays);
        assert_eq!(sleeper.armed_at(), 0);
    });
}
