//! `feroce cmtime`.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::netns::with_cable;
use super::{Running, both, refused, run, text};

/// Checks that every connection completed every step.
fn check(record: &Value, connections: u32) {
    let steps = record["steps"].as_object().expect("steps by name");
    assert_eq!(steps.len(), 8);
    for (name, times) in steps {
        assert_eq!(times["done"], connections, "{name}: {record}");
        assert!(times["p50_us"].as_f64() <= times["p99_us"].as_f64(), "{name}: {times}");
        assert!(times["p99_us"].as_f64() <= times["max_us"].as_f64(), "{name}: {times}");
    }
    assert!(record["connections_per_second"].as_f64().expect("a number") > 0.0);
}

#[test]
fn one_process_makes_and_ends_two_thousand_connections() {
    let report = both(60, "cmtime -c 2000");
    check(&report["client"], 2000);
    assert_eq!(report["server"]["served"], 2000);
}

/// Each end of an iWARP connection is a socket: where the limit of descriptors is low, fewer.
#[test]
fn two_thousand_connections_over_iwarp() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let wanted = 6000;
    if soft < wanted && hard >= wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).expect("below the hard limit");
    }
    let connections = if hard >= wanted { 2000 } else { 200 };
    let report = both(61, &format!("--transport iwarp cmtime -c {connections}"));
    check(&report["client"], connections);
    assert_eq!(report["server"]["served"], connections);
}

#[test]
fn connections_cross_a_cable() {
    with_cable(1500, |cable| {
        let server = cable.in_a(|| Running::server("cmtime"));
        for options in ["-s 10.9.0.1 -b 10.9.0.2", "-s 10.9.0.1 -b 10.9.0.2 --window 1"] {
            let output = cable.in_b(|| run(&format!("cmtime -c 50 --json {options}")));
            assert!(output.status.success(), "{}", text(&output.stderr));
            check(&serde_json::from_slice(&output.stdout).expect("one JSON object"), 50);
        }
        let output = cable.in_b(|| run("cmtime -c 5 -s 10.9.0.1"));
        let said = text(&output.stdout);
        assert!(said.starts_with("step ") && !said.contains("bind addr"), "{said}");
        assert!(said.contains("5 connections: "), "{said}");
        server.signal(Signal::SIGINT);
        assert_eq!(server.finish().0, Some(130));
        let server = cable.in_a(|| Running::server("cmtime -b fd09::1"));
        let output = cable.in_b(|| run("cmtime -c 5 -s fd09::1"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        server.signal(Signal::SIGINT);
        assert_eq!(server.finish().0, Some(130));
    });
}

#[test]
fn what_was_measured_before_a_failure_is_told() {
    let _server = Running::server("cmtime -b 127.19.61.1");
    let output = run("cmtime -s 127.19.61.1 -p 7500 -b 127.19.61.2 -c 3 --json");
    assert_eq!(output.status.code(), Some(1));
    let record: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(record["steps"]["create_qp"]["done"], 3);
    assert_eq!(record["steps"]["connect"]["done"], 0);
    assert!(record["error"].as_str().expect("a text").contains("no program listens"), "{record}");
}

#[test]
fn wrong_options_are_refused() {
    refused("cmtime --both -c 0", "0 is not in 1..");
    refused("cmtime --both -r 8", "8 is not in 0..=7");
    refused("cmtime --both --window 0", "0 is not in 1..");
}
