//! `feroce stat` and `feroce ps`, run as a user runs them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn feroce(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(args.split(' ')).env_remove("FEROCE_CONFIG").env_remove("FEROCE_FAULT");
    command.stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A server that waits for connections, and ends with the test.
struct Server(Child);

impl Server {
    fn start(address: &str) -> Self {
        let mut command = feroce(&format!("rping -s -P -a {address}"));
        let mut child = command.stderr(Stdio::piped()).spawn().expect("feroce starts");
        let mut line = String::new();
        let stderr = child.stderr.as_mut().expect("piped");
        BufReader::new(stderr).read_line(&mut line).expect("readable");
        assert!(line.contains("listening"), "{line}");
        Self(child)
    }

    /// What a command says about it.
    fn seen(&self, command: &str) -> Vec<Value> {
        let output = feroce(&format!("--json {command} {}", self.0.id())).output();
        serde_json::from_str(&text(&output.expect("feroce starts"))).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_running_server_is_seen_and_what_it_does_is_counted() {
    let server = Server::start("127.96.0.1");
    let pid = server.0.id().to_string();
    let before = server.seen("ps");
    let device = before.iter().find(|device| device["addresses"][0] == "127.96.0.1");
    let device = device.unwrap_or_else(|| panic!("{before:?}"));
    assert_eq!(device["program"], "feroce");
    let listening = |c: &Value| c["state"] == "listening" && c["local"] == "127.96.0.1:7174";
    let connections = device["connections"].as_array().expect("a list");
    assert!(connections.iter().any(listening), "{connections:?}");

    let client = feroce("rping -c -a 127.96.0.1 -C 20").output().expect("feroce starts");
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let after = server.seen("stat");
    // Each ping is a READ and a WRITE by the server, and a message in between.
    let requests: u64 = after.iter().filter_map(|d| d["totals"]["requests"].as_u64()).sum();
    assert!(requests >= 60, "{requests}: {after:?}");

    let shown = text(&feroce(&format!("ps {pid}")).output().expect("feroce starts"));
    assert!(shown.starts_with(&format!("{pid} feroce  ")), "{shown}");
    assert!(shown.contains("rping -s -P -a 127.96.0.1\n"), "{shown}");
    assert!(shown.contains("connection 127.96.0.1:7174 listening"), "{shown}");
    let shown = text(&feroce(&format!("stat -v {pid}")).output().expect("feroce starts"));
    let mut lines = shown.lines();
    assert!(lines.next().is_some_and(|line| line.trim_start().starts_with("PID  PROGRAM")));
    assert!(lines.next().is_some_and(|line| line.trim_start().starts_with(&pid)), "{shown}");
    assert!(shown.contains("  rdma_sends "), "{shown}");
}

#[test]
fn rates_are_shown_again_and_again() {
    let server = Server::start("127.96.0.2");
    let pid = server.0.id();
    let mut command = feroce(&format!("stat --watch 0.05 {pid}"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("feroce starts");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let headings = |line: &String| line.contains("OUT-bit/s");
    assert_eq!(stdout.lines().map_while(Result::ok).filter(headings).take(3).count(), 3);
    child.kill().expect("our child");
    child.wait().expect("our child");
}

#[test]
fn what_is_not_there_is_said() {
    let output = feroce("stat no-such-program").output().expect("feroce starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(errors, "feroce: no open device matches no-such-program\n");
    let output = feroce("stat -w fast").output().expect("feroce starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected seconds"));
}
