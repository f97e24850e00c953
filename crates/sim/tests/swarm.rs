//! The swarm itself: it passes, it is deterministic, and its oracles can fail.

use feroce_sim::{Options, Sabotage, check, compare_trains, program, run};

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
        if let Err(failure) = compare_trains(seed, None) {
            panic!("{failure}");
        }
    }
}

#[test]
fn programs_are_written_down() {
    let mut words = String::new();
    for seed in 1..13 {
        let text = program(seed).unwrap_or_else(|failure| panic!("{failure}"));
        let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
        // Two ends have each flow, and every message has its receive.
        let flows = text.lines().next().and_then(|line| line.trim().strip_prefix("flows "));
        assert_eq!(flows.and_then(|n| n.parse().ok()).map(|n: usize| 2 * n), Some(count("flow ")));
        assert_eq!((count("node "), count("memory ")), (2, 1), "FEROCE_SEED={seed}");
        let sends = text.lines().filter(|l| l.starts_with("send ") || l.starts_with("inline "));
        let opcodes: Vec<&str> = sends.filter_map(|line| line.split(' ').nth(1)).collect();
        let messages = opcodes.iter().filter(|opcode| ["1", "2", "3"].contains(opcode)).count();
        assert_eq!(messages, count("recv "), "FEROCE_SEED={seed}");
        words.extend(opcodes);
    }
    // All of them are drawn sooner or later.
    assert!("0123456".chars().all(|opcode| words.contains(opcode)), "{words}");
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
    let text = run(6, &options).expect_err("damage is noticed").to_string();
    assert!(text.starts_with("FEROCE_SEED=6\nreplay: cargo xtask swarm --seed 6\n"), "{text}");
    assert!(text.contains("violated: memory: "), "{text}");
    assert!(text.contains("->"), "the trace shows packets: {text}");
}

#[test]
fn devices_have_shards() {
    for shards in 1..=4 {
        let mut passed_on = 0;
        let options = Options { shards: Some(shards), ..Options::default() };
        for seed in 60..66 {
            let first = check(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
            let again = run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(first, again, "FEROCE_SEED={seed}, {shards} shards");
            passed_on += first.counts.get("passed_on").copied().unwrap_or_default();
        }
        assert_eq!(passed_on > 0, shards > 1, "{passed_on} of {shards} shards");
        if let Err(failure) = compare_trains(66, options.shards) {
            panic!("{failure}");
        }
    }
}

/// How often what one of several shards does not learn of is noticed in 40 runs: by what it does
/// to requests, and at all.
fn forgotten(sabotage: Sabotage, predictable: bool, by: &str) -> (usize, usize) {
    let (sabotage, shards, no_faults) = (Some(sabotage), Some(2), true);
    let options = Options { sabotage, shards, no_faults, predictable, ..Options::default() };
    let failures = (500..540).filter_map(|seed| run(seed, &options).err());
    let noticed: Vec<_> = failures.map(|failure| failure.violation.oracle).collect();
    assert!(noticed.iter().all(|oracle| [by, "shards"].contains(oracle)), "{noticed:?}");
    (noticed.iter().filter(|oracle| **oracle == by).count(), noticed.len())
}

#[test]
fn what_a_shard_does_not_learn_of_is_noticed() {
    let (by_requests, all) = forgotten(Sabotage::ForgetReg, true, "completions");
    assert!(by_requests > 10 && all == 40, "{by_requests} of {all}");
    // Not every run deregisters what its flows use.
    let (by_requests, all) = forgotten(Sabotage::ForgetDereg, false, "memory");
    assert!(by_requests > 0 && all > 20, "{by_requests} of {all}");
}
