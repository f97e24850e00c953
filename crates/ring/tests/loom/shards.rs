//! Two shards of a device: operations on both, beside threads that are in one.
//!
//! A shard is a [`LockPair`]: the outer lock is that of its link, the inner one that of its engine.
//! Locks are taken in the order of the shards, the link of each before its engine. Threads that
//! wait for each other in a circle are a deadlock, which loom reports.

use feroce_ring::LockPair;
use loom::sync::Arc;
use loom::thread;

use super::Parking;

/// What the engine of a shard has.
#[derive(Default)]
struct Engine {
    /// Changes of the table that all shards have.
    changes: u32,
    /// Packets that were computed.
    packets: u32,
}

/// The value of a link counts what has left.
type Shard = LockPair<u32, Engine, Parking>;
type Shards = [Shard; 2];

/// Changes what all shards have, as a deregistration or the end of a completion queue does: with
/// every link and every engine. Then each shard is driven.
fn change_all([first, second]: &Shards) {
    let first_link = first.lock_outer();
    let mut engine = first.lock_inner();
    let second_link = second.lock_outer();
    let mut other = second.lock_inner();
    assert_eq!(engine.changes, other.changes, "a change was seen in one shard only");
    engine.changes += 1;
    other.changes += 1;
    drop((engine, other));
    for (shard, mut link) in [(first, first_link), (second, second_link)] {
        let mut engine = shard.lock_inner();
        engine.packets += 1;
        *link += 1;
        link.unlock_both(engine);
    }
}

/// Adds to the tables of all shards: only the engines have to stand still.
fn create_in_all([first, second]: &Shards) {
    let mut engine = first.lock_inner();
    let mut other = second.lock_inner();
    assert_eq!(engine.changes, other.changes, "a change was seen in one shard only");
    engine.changes += 1;
    other.changes += 1;
}

/// Computes and sends in one shard, as a thread of the data path does: the engine is free while the
/// link sends.
fn drive(shard: &Shard) {
    let (mut link, mut engine) = shard.try_both().unwrap_or_else(|| {
        let link = shard.lock_outer();
        (link, shard.lock_inner())
    });
    engine.packets += 1;
    drop(engine);
    *link += 1;
}

/// Connection management, which is in the first shard, changes a queue pair of the second one, and
/// drives that when it has no lock any more.
fn modify_in_second([first, second]: &Shards) {
    let link = first.lock_outer();
    let engine = first.lock_inner();
    second.lock_inner().packets += 1;
    drop(engine);
    drop(link);
    let mut link = second.lock_outer();
    *link += 1;
}

/// Runs three threads at once and returns what the shards have then: changes, packets and what has
/// left. Every interleaving of them would take hours; those with up to two preemptions take
/// seconds.
fn check(threads: [fn(&Shards); 3], expected: [(u32, u32, u32); 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let shard = || LockPair::new(0, Engine::default(), Parking::default());
        let shards = Arc::new([shard(), shard()]);
        let [here, rest @ ..] = threads;
        let others = rest.map(|run| {
            let shards = shards.clone();
            thread::spawn(move || run(&shards))
        });
        here(&shards);
        others.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
        for (shard, expected) in shards.iter().zip(expected) {
            let (link, engine) = (shard.lock_outer(), shard.lock_inner());
            assert_eq!((engine.changes, engine.packets, *link), expected);
        }
    });
}

#[test]
fn a_change_of_all_shards_beside_traffic_of_one() {
    check([change_all, create_in_all, |shards| drive(&shards[1])], [(2, 1, 1), (2, 2, 2)]);
}

#[test]
fn connection_management_beside_a_change_of_all_shards() {
    check([change_all, modify_in_second, |shards| drive(&shards[1])], [(1, 1, 1), (1, 3, 3)]);
}

#[test]
fn two_changes_of_all_shards_and_connection_management() {
    check([change_all, change_all, modify_in_second], [(2, 2, 2), (2, 3, 3)]);
}
