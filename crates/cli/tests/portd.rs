//! `feroce portd`, run as a user runs it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn feroce(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(args.split(' ')).env_remove("FEROCE_CONFIG").env_remove("FEROCE_FAULT");
    command.stdin(Stdio::null());
    command
}

/// A process that ends with the test.
struct Process(Child, BufReader<ChildStdout>);

impl Process {
    fn start(args: &str) -> Self {
        let mut child = feroce(args).stdout(Stdio::piped()).spawn().expect("feroce starts");
        let stdout = child.stdout.take().expect("piped");
        Self(child, BufReader::new(stdout))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("readable");
        line
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In this test, a client with `shared = off` stands for another host: its packets arrive by UDP,
/// and portd must forward them to the server.
#[test]
fn packets_of_other_hosts_are_handed_on() {
    let net = format!("127.78.{}", std::process::id() % 200 + 20);
    let (here, there) = (format!("{net}.1"), format!("{net}.2"));
    let mut portd = Process::start(&format!("--json portd --address {here}"));
    assert!(portd.line().contains("receiving"));

    let mut server = Process::start(&format!("perf write bw --address {here} -p 18578"));
    assert!(server.line().contains("waiting"), "it is ready");
    let client = format!("perf write bw -n 300 -s 4096 --address {there} -p 18578 {here}");
    let output = feroce(&client).env("FEROCE_SHARED", "off").output().expect("feroce starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let pid = Pid::from_raw(portd.0.id().try_into().expect("a process"));
    kill(pid, Signal::SIGTERM).expect("our child");
    let mut rest = String::new();
    portd.1.read_to_string(&mut rest).expect("readable");
    assert!(portd.0.wait().expect("our child").success());
    let said: Value = serde_json::from_str(&rest).expect("a JSON object");
    assert!(said["forwarded"].as_u64() > Some(0), "{said}");
}
