//! Scenarios and traffic that the command makes.

use std::fs;

use serde_json::Value;

use crate::{run, scenario, scratch, stderr, text};

#[test]
fn new_scenarios_run_and_take_traffic() {
    let dir = scratch("new");
    for kind in ["star", "ring", "parking-lot", "torus", "leaf-spine", "fat-tree"] {
        let made = run(&["new", kind, "--rate", "25G"]);
        assert!(made.status.success(), "{}", stderr(&made));
        let file = scenario(&dir, &text(&made).replace("1M", "10K"));
        let output = run(&["run", &file]);
        assert!(output.status.success(), "{kind}: {}", stderr(&output));
    }
    let made =
        run(&["new", "leaf-spine", "--leaves", "2", "--spines", "2", "--hosts", "2", "--empty"]);
    let file = scenario(&dir, &text(&made));
    fs::write(dir.join("sizes.txt"), "0 0\n1000 50\n30000 100\n").expect("a distribution");
    let sizes = dir.join("sizes.txt");
    let drawn = |seed: &str| {
        let sizes = sizes.to_str().expect("UTF-8");
        let args = ["traffic", &file, "--load", "0.5", "--cdf", sizes, "--duration", "50us"];
        let output = run(&[&args[..], &["--seed", seed]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        text(&output)
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    let traffic = drawn("1");
    let output = run(&["run", "--json", &scenario(&dir, &(text(&made) + &traffic))]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summary["flows"], traffic.matches("[[flow]]").count());
    // The same flows by a pattern, which takes the seed of the run.
    let pattern = "[[pattern]]\nkind = \"poisson\"\nload = 0.5\ncdf = \"sizes.txt\"\n\
                   duration = \"50us\"\n";
    let output = run(&["run", "--json", &scenario(&dir, &(text(&made) + pattern))]);
    let same: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&same["slowdown"], &same["packets"]), (&summary["slowdown"], &summary["packets"]));
}

#[test]
fn steps_of_a_collective_wait_for_those_before() {
    let dir = scratch("collective");
    let made = text(&run(&["new", "star", "--hosts", "8", "--congestion", "none", "--empty"]));
    for kind in ["all-reduce-ring", "all-reduce-butterfly"] {
        let file = scenario(&dir, &made);
        let steps = run(&["traffic", &file, "--kind", kind, "--bytes", "8M"]);
        assert!(steps.status.success(), "{}", stderr(&steps));
        let output = run(&["run", "--json", &scenario(&dir, &(made.clone() + &text(&steps)))]);
        assert!(output.status.success(), "{}", stderr(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let us = summary["simulated_s"].as_f64().expect("a number") * 1e6;
        // Every host sends 2 * 7/8 * 8 MB at 100 Gb/s, less headers: no step can be earlier.
        let least = 2.0 * 7.0 / 8.0 * 8e6 * 8.0 / 100e9 * 1e6;
        assert!(us > least && us < least * 1.15, "{kind}: {us} us, at least {least}");
    }
    let refuse = |args: &[&str], what: &str| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(what), "{args:?}: {}", stderr(&output));
    };
    let cycle = "[[flow]]\nfrom = 0\nto = 1\nbytes = 1\nafter = [0]\n";
    refuse(&["run", &scenario(&dir, &(made.clone() + cycle))], "scenario.toml:13: flow.after: 0");
    refuse(&["traffic", "--kind", "incast"], "a scenario, or --hosts");
    refuse(&["traffic", "--hosts", "4", "--kind", "incast"], "--bytes: how much");
    refuse(&["traffic", "--hosts", "4", "--load", "2"], "--load: more than 0");
    refuse(&["traffic", "--hosts", "4", "--load", "0.1", "--cdf", "none"], "none: No such file");
    let six = ["traffic", "--hosts", "6", "--kind", "all-reduce-butterfly", "--bytes", "1M"];
    refuse(&six, "6 hosts are not a power of two");
    let ring = ["traffic", "--hosts", "4", "--kind", "all-reduce-ring", "--bytes", "1M"];
    refuse(&[&ring[..], &["--format", "hpcc"]].concat(), "no flows that wait for others");
    refuse(&["new", "star", "--leaves", "3"], "--leaves does not fit a star");
    refuse(&["new", "star", "--rate", "fast"], "\"fast\" is not a rate");
    refuse(&["new", "torus", "--dims", "4"], "topology.dims: two or three numbers");
    fs::write(dir.join("bad.txt"), "0 0\n10 60\n20 50\n").expect("a distribution");
    let bad = dir.join("bad.txt");
    refuse(
        &["traffic", "--hosts", "4", "--load", "0.1", "--cdf", bad.to_str().expect("UTF-8")],
        "bad.txt:3: sizes and per cent must not fall",
    );
}
