//! Random networks and flows: what must hold for all of them.

use feroce_sim::check_fabric;

#[test]
fn seeds_of_networks_pass() {
    let (mut pauses, mut dropped, mut deadlocks) = (0, 0, 0);
    // The last ones have found faults: frames that overtook others when a link came back, and a
    // packet that went back by the port at which it had come.
    for seed in (0..30).chain([204, 223]) {
        let outcome = check_fabric(seed).unwrap_or_else(|what| panic!("{what}"));
        pauses += outcome.pause_count();
        dropped += outcome.totals.dropped_all().packets;
        deadlocks += u32::from(outcome.deadlock.is_some());
    }
    // What the seeds are about does happen.
    assert!(pauses > 0 && dropped > 0, "{pauses} {dropped} {deadlocks}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..10 {
        let times = || {
            let outcome = check_fabric(seed).unwrap_or_else(|what| panic!("{what}"));
            (outcome.at, outcome.totals, outcome.flows)
        };
        assert_eq!(times(), times(), "FEROCE_SEED={seed}");
    }
}
