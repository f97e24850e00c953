//! Sweeps, and their parts.

use std::fs;

use serde_json::Value;

use crate::{INCAST, run, scenario, scratch, stderr, text};

#[test]
fn sweeps_are_the_same_however_they_are_split() {
    let dir = scratch("sweep");
    let file = scenario(&dir, &INCAST.replace("500K", "100K"));
    let path = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let sets = [
        "--seeds",
        "3",
        "--set",
        "host.congestion=none,connectx",
        "--set",
        "pattern.0.bytes=50K,2M",
    ];
    let sweep = |more: &[&str]| {
        let output = run(&[&["sweep", file.as_str()], &sets[..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        text(&output)
    };
    let alone = sweep(&["-j", "1", "-o", &path("one.jsonl")]);
    assert_eq!(sweep(&["-j", "4", "-o", &path("four.jsonl")]), alone);
    let read = |name: &str| fs::read_to_string(path(name)).expect("figures");
    assert_eq!(read("one.jsonl"), read("four.jsonl"));
    assert_eq!(read("one.jsonl").lines().count(), 1 + 2 * 2 * 3);
    assert_eq!(alone.lines().count(), 1 + 4, "{alone}");
    assert!(alone.contains("host.congestion") && alone.contains(" +- "), "{alone}");
    for i in ["0", "1", "2"] {
        let part = path(&format!("part-{i}.jsonl"));
        let shown = sweep(&["--shard", &format!("{i}/3"), "-o", &part]);
        assert_eq!(shown, "");
    }
    let parts = ["part-2.jsonl", "part-0.jsonl", "part-1.jsonl"].map(path);
    let merged = run(&["merge", &parts[0], &parts[1], &parts[2], "-o", &path("all.jsonl")]);
    assert!(merged.status.success(), "{}", stderr(&merged));
    assert_eq!(text(&merged), alone);
    assert_eq!(read("all.jsonl"), read("one.jsonl"));
    // Congestion control makes queues shorter.
    let output = run(&["merge", "--json", &path("all.jsonl")]);
    let table: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let queue = |i: usize| table["groups"][i]["figures"]["queue_max_kb"]["mean"].as_f64();
    assert!(queue(1) > queue(3), "{table}");

    let missing = run(&["merge", &parts[0], &parts[1]]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("4 of 12 points are missing"), "{}", stderr(&missing));
    let refuse = |args: &[&str], what: &str| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(what), "{args:?}: {}", stderr(&output));
    };
    refuse(&["merge", &parts[0], &parts[0]], "part-2.jsonl:2: point 2 is there twice");
    fs::write(path("cut.jsonl"), &read("one.jsonl")[..600]).expect("a file");
    refuse(&["merge", &path("cut.jsonl")], "cut.jsonl:");
    refuse(&["sweep", &file, "--seeds", "0"], "--seeds: \"0\" is not like");
    refuse(&["sweep", &file, "--shard", "3/3"], "--shard: \"3/3\" is not I/N");
    refuse(&["sweep", &file, "--set", "host"], "--set: \"host\" is not KEY=VALUE");
    refuse(&["sweep", &file, "--set", "host.cc=none"], "with host.cc = none: unknown field `cc`");
    refuse(&["sweep", &file, "--set", "flow.0.bytes=1"], "the scenario has no flow");
}
