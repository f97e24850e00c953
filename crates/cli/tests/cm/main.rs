//! The commands that connect by address: on the loopback, and between two machines with a cable.
#![allow(clippy::disallowed_methods, reason = "two ends that wait need two threads")]

#[path = "../../../link/tests/common/netns.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod netns;

mod cmtime;
mod datagrams;
mod flood;
mod messages;
mod portd;
mod rping;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use netns::Cable;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn feroce(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(args.split_whitespace()).env_remove("FEROCE_FAULT").stdin(Stdio::null());
    command
}

fn run(args: &str) -> Output {
    feroce(args).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The report of a command that must succeed.
fn record(args: &str) -> Value {
    let output = run(&format!("{args} --json"));
    assert!(output.status.success(), "{args}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The report of both ends, on 127.19.`net`.1 and .2.
fn both(net: u8, args: &str) -> Value {
    record(&format!("{args} --both --address 127.19.{net}.1,127.19.{net}.2"))
}

/// Checks that a command refuses wrong options, and the reason it prints.
fn refused(args: &str, why: &str) {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args}: {}", text(&output.stdout));
    assert!(text(&output.stderr).contains(why), "{args}: {}", text(&output.stderr));
}

/// A process that is killed when the test ends, also if it fails.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(args: &str) -> Self {
        Self::of(feroce(args).stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts a command whose output and errors are piped.
    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program runs");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, stderr }
    }

    /// Starts a server and waits until it listens.
    fn server(args: &str) -> Self {
        let mut server = Self::start(args);
        server.wait_until_listening(args);
        server
    }

    fn wait_until_listening(&mut self, args: &str) {
        let mut line = String::new();
        while !line.contains("listening at") {
            line.clear();
            let len = self.stderr.read_line(&mut line).expect("readable");
            assert_ne!(len, 0, "{args}: it does not listen");
        }
    }

    /// Waits until the process has printed the text.
    fn wait_for_output(&mut self, what: &str) {
        let (stdout, mut seen) = (self.child.stdout.as_mut().expect("piped"), Vec::new());
        let mut chunk = [0; 4096];
        while !text(&seen).contains(what) {
            let len = stdout.read(&mut chunk).expect("readable");
            assert_ne!(len, 0, "it ended without {what}: {}", text(&seen));
            seen.extend_from_slice(&chunk[..len]);
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("our child");
    }

    /// Waits until the process ends; returns its exit status, output and errors.
    fn finish(mut self) -> (Option<i32>, String, String) {
        let mut texts = (String::new(), String::new());
        let stdout = self.child.stdout.as_mut().expect("piped");
        stdout.read_to_string(&mut texts.0).expect("readable");
        self.stderr.read_to_string(&mut texts.1).expect("readable");
        let status = self.child.wait().expect("our child");
        (status.code(), texts.0, texts.1)
    }
}

/// The addresses of the two machines: IPv4, IPv6 and link-local.
const CABLES: [(&str, &str); 3] =
    [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2"), ("fe80::1%wire", "fe80::2%wire")];

/// Runs a server on one machine and a client on the other, and returns what they print.
fn across(cable: &Cable, server: &str, client: &str) -> (String, String) {
    let serving = cable.in_a(|| Running::server(server));
    let (status, called, errors) = cable.in_b(|| Running::start(client)).finish();
    assert_eq!(status, Some(0), "{client}: {called} {errors}");
    let (status, served, errors) = serving.finish();
    assert_eq!(status, Some(0), "{server}: {served} {errors}");
    (served, called)
}
