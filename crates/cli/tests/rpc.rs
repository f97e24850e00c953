//! `feroce rpc`, run as a user runs it.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(["rpc", "bench"]).args(args).output().expect("feroce starts")
}

fn rows(out: &Output) -> Vec<serde_json::Value> {
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[test]
fn every_pattern_makes_every_call() {
    let pair = "127.31.1.1,127.31.1.2";
    let rows = rows(&bench(&["--both", "-n", "50", "--json", "--address", pair]));
    let patterns =
        ["send", "inline", "write-poll", "write-imm", "write-send", "read-fetch", "hybrid"];
    let calls = [("echo", 64), ("get", 100), ("put", 100), ("fetch", 1 << 20)];
    let expected = patterns.iter().flat_map(|p| calls.map(|(call, size)| (*p, call, size)));
    let found = rows.iter().map(|row| {
        let text = |field: &str| row[field].as_str().expect("a name");
        (text("pattern"), text("call"), row["size"].as_u64().expect("a number"))
    });
    assert!(found.eq(expected), "{rows:?}");
    for row in &rows {
        let figure = |field: &str| row[field].as_f64().expect("a figure");
        assert_eq!(figure("calls"), 50.0);
        let order = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"].map(figure);
        assert!(order.is_sorted() && order[0] > 0.0, "{row}");
        assert!(figure("cpu_us") >= 0.0 && figure("peer_cpu_us") >= 0.0);
    }
}

#[test]
fn lengths_around_the_limits_arrive_whole() {
    // An echo is a byte longer than its body: nothing, and just beyond two limits.
    for size in ["0", "255", "8192"] {
        let out = bench(&[
            "--both",
            "-n",
            "3",
            "--json",
            "-s",
            size,
            "--address",
            "127.31.2.1,127.31.2.2",
        ]);
        assert_eq!(rows(&out).len(), 28, "{size}");
    }
}

#[test]
fn words_and_a_picture() {
    let path = std::env::temp_dir().join(format!("feroce-rpc-{}.svg", std::process::id()));
    let file = path.to_str().expect("a name");
    let out = bench(&[
        "--both",
        "-n",
        "5",
        "--plot",
        file,
        "--pattern",
        "send,hybrid",
        "--address",
        "127.31.3.1,127.31.3.2",
    ]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("echo of 1048576 bytes: "), "{text}");
    assert!(text.contains("hybrid     is for when lengths differ"), "{text}");
    let drawing = std::fs::read_to_string(&path).expect("a drawing");
    std::fs::remove_file(&path).expect("it is there");
    assert!(drawing.contains("<svg") && drawing.contains("hybrid"), "{drawing}");
}

#[test]
fn mistakes_are_explained() {
    let says = |args: &[&str], what: &str| {
        let out = bench(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && err.contains(what), "{args:?}: {err}");
    };
    says(&["--pattern", "shout", "--both"], "possible values: send, inline, write-poll");
    says(&["--both", "--plot", "calls.png"], "ends with .svg");
    says(&["--both", "--address", "127.31.4.1"], "--address SERVER,CLIENT");
    says(&["--address", "127.31.4.2", "no such host"], "no address of \"no such host\" is known");
}
