//! The swarm itself: it passes, it is deterministic, and its oracles can fail.

use feroce_sim::{Options, RxStyle, Sabotage, run};

#[test]
fn seeds_pass() {
    for seed in 0..60 {
        if let Err(failure) = run(seed, &Options::default()) {
            panic!("{failure}");
        }
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in 100..120 {
        let first = run(seed, &Options::default());
        assert_eq!(first, run(seed, &Options::default()), "FEROCE_SEED={seed}");
    }
}

/// Where answers are taken only after all packets of a train, nobody can tell whether they came
/// as a train: the very same packets go out at the very same times.
#[test]
fn a_train_is_its_packets() {
    for seed in 200..260 {
        let with = |rx| {
            let options = Options { rx: Some(rx), ..Options::default() };
            run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"))
        };
        assert_eq!(with(RxStyle::Train), with(RxStyle::Packets), "FEROCE_SEED={seed}");
    }
}

/// Where answers are taken after each packet, acknowledgements differ, but not what completes
/// and not what is in memory.
#[test]
fn a_train_and_single_packets_come_to_the_same() {
    for seed in 300..360 {
        let with = |rx| {
            let options = Options { rx: Some(rx), predictable: true, ..Options::default() };
            run(seed, &options).unwrap_or_else(|failure| panic!("{failure}")).result_hash
        };
        assert_eq!(with(RxStyle::Train), with(RxStyle::EachPacket), "FEROCE_SEED={seed}");
    }
}

/// How often each kind of damage is noticed in 40 runs, and by which oracles.
fn noticed(sabotage: Sabotage, oracles: &[&str]) -> usize {
    let options = Options {
        sabotage: Some(sabotage),
        no_faults: true,
        predictable: true,
        ..Options::default()
    };
    (400..440)
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
    assert!(noticed(Sabotage::PayloadByte, &["memory", "completions"]) > 30);
    assert_eq!(noticed(Sabotage::DoubleCompletion, &["completions"]), 40);
    assert!(noticed(Sabotage::LoseCompletion, &["completions", "liveness"]) > 30);
    assert_eq!(noticed(Sabotage::StrayByte, &["memory"]), 40);
}

#[test]
fn a_failure_says_how_to_replay_it() {
    let options = Options { sabotage: Some(Sabotage::StrayByte), ..Options::default() };
    let text = run(7, &options).expect_err("damage is noticed").to_string();
    assert!(text.starts_with("FEROCE_SEED=7\nreplay: cargo xtask swarm --seed 7\n"), "{text}");
    assert!(text.contains("violated: memory: "), "{text}");
    assert!(text.contains("->"), "the trace shows packets: {text}");
}
