//! Scenarios on InfiniBand: engines as hosts, credits and lanes between them.

use std::fs;
use std::path::Path;

use feroce_sim::scenario::{self, Outcome, Reading, Run};

fn read(test: &str, text: &str) -> Result<scenario::Scenario, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("infiniband");
    fs::create_dir_all(&dir).expect("a directory for tests");
    let file = dir.join(format!("{test}.toml"));
    fs::write(&file, text).expect("a file to write");
    scenario::read(&file, Reading { seed: 1, ..Reading::default() }).map_err(|e| e.to_string())
}

fn run(test: &str, text: &str) -> Outcome {
    let scenario = read(test, text).expect("a sound scenario");
    Run::new(scenario, 1).expect("a sound scenario").run()
}

/// Five switches in a ring; each host sends to the second next one. Flows that pass the link from
/// the last switch to the first have service level 1.
fn ring(infiniband: &str) -> String {
    let mut text = format!(
        "stop = \"20ms\"\n[topology]\nkind = \"ring\"\nswitches = 5\nrate = \"100G\"\ndelay = \
         \"1us\"\n[infiniband]\n{infiniband}\n"
    );
    for from in 0..5 {
        let (to, sl) = ((from + 2) % 5, u8::from(from + 2 >= 5));
        text += &format!("[[flow]]\nfrom = {from}\nto = {to}\nbytes = \"10M\"\npriority = {sl}\n");
    }
    text
}

#[test]
fn a_credit_deadlock_is_found_and_a_dateline_breaks_it() {
    let outcome = run("one-lane", &ring("lanes = 1"));
    assert_eq!(outcome.deadlock.expect("a circle").len(), 5);
    assert!(outcome.flows.iter().all(|flow| !flow.is_complete()));
    let outcome = run("dateline", &ring("lanes = 2"));
    assert_eq!(outcome.deadlock, None);
    assert!(outcome.flows.iter().all(|flow| flow.is_complete()), "{:?}", outcome.flows);
    assert_eq!(outcome.totals.dropped_all().packets, 0);
    // The same lane for both service levels is no dateline.
    let outcome = run("same-lane", &ring("lanes = 2\nsl_to_vl = [0, 0, 0, 0, 1, 1, 1, 1]"));
    assert_eq!(outcome.deadlock.expect("a circle").len(), 5);
}

#[test]
fn an_incast_is_lossless() {
    let text = "[topology]\nkind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 4\nrate = \
                \"100G\"\ndelay = \"500ns\"\n[infiniband]\nlanes = 4\n[[pattern]]\nkind = \
                \"incast\"\nto = 0\nbytes = \"1M\"\n";
    let outcome = run("incast", text);
    assert!(outcome.flows.iter().all(|flow| flow.is_complete()));
    assert_eq!(outcome.totals.dropped_all().packets, 0);
    // Seven flows over one link, with headers of 28 bytes to 4,096 of payload.
    let ideal_us = 7.0 * 1e6 * (4096.0 + 28.0) / 4096.0 * 8.0 / 100e3;
    let us = outcome.at.as_ns() as f64 / 1e3;
    assert!((us / ideal_us - 1.0).abs() < 0.05, "{us} {ideal_us}");
}

#[test]
fn wrong_tables_are_refused() {
    let refused = |test, table: &str| read(test, &ring(table)).expect_err("a wrong table");
    for (table, what) in [
        ("lanes = 9", "8: infiniband.lanes: from 1 to 8"),
        ("buffer = 1000", "8: infiniband.buffer: a packet has"),
        ("lanes = 2\n[switch]\npfc = false", "9: switch: of Ethernet"),
        ("sl_to_vl = [0, 1]", "8: infiniband.sl_to_vl: 8 lanes below 1"),
        ("lanes = 2\nlow = [[2, 1]]", "9: infiniband: lane 2 of 2"),
        ("lanes = 2\nlow = [[0, 1]]", "9: infiniband: lane 1 has no weight in `high` or `low`"),
        ("credits = 3", "8: unknown field `credits`"),
    ] {
        let error = refused("refused", table);
        assert!(error.contains(&format!("refused.toml:{what}")), "{table}: {error}");
    }
}
