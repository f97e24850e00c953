//! The swarm itself: it passes, it is deterministic, and its oracles can fail.

use feroce_sim::{Options, Sabotage, check, compare_trains, run};

#[test]
fn seeds_pass() {
    for seed in 1..31 {
        if let Err(failure) = check(seed, &Options::default()) {
            panic!("{failure}");
        }
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in 100..106 {
        let first = run(seed, &Options::default());
        assert_eq!(first, run(seed, &Options::default()), "FEROCE_SEED={seed}");
    }
}

#[test]
fn a_train_is_its_packets() {
    for seed in 200..206 {
        if let Err(failure) = compare_trains(seed) {
            panic!("{failure}");
        }
    }
}

/// How often each kind of damage is noticed in 12 runs, and by which oracles.
fn noticed(sabotage: Sabotage, oracles: &[&str]) -> usize {
    let options = Options {
        sabotage: Some(sabotage),
        no_faults: true,
        predictable: true,
        ..Options::default()
    };
    (400..412)
        .filter(|&seed| match run(seed, &options) {
            Ok(_) => false,
            Err(failure) => {
                let oracle = failure.violation.oracle;
                assert!(oracles.contains(&oracle), "{sabotage:?} seen as {failure}");
                true
            }
        })
        .count()
}

#[test]
fn damage_is_noticed() {
    // A run of which little is left after its mishaps may have no payload to damage, or no
    // completion that matters.
    assert!(noticed(Sabotage::PayloadByte, &["memory", "completions"]) > 8);
    assert_eq!(noticed(Sabotage::DoubleCompletion, &["completions"]), 12);
    assert!(noticed(Sabotage::LoseCompletion, &["completions", "liveness"]) > 8);
    assert_eq!(noticed(Sabotage::StrayByte, &["memory"]), 12);
}

#[test]
fn a_failure_says_how_to_replay_it() {
    let options = Options { sabotage: Some(Sabotage::StrayByte), ..Options::default() };
    let text = run(7, &options).expect_err("damage is noticed").to_string();
    assert!(text.starts_with("FEROCE_SEED=7\nreplay: cargo xtask swarm --seed 7\n"), "{text}");
    assert!(text.contains("violated: memory: "), "{text}");
    assert!(text.contains("->"), "the trace shows packets: {text}");
}
