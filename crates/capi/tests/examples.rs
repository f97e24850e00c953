//! The examples in C, compiled as their README says and run with `feroce run`.

use std::path::Path;
use std::process::Command;

use crate::common::{command, gcc, headers, library, scratch};

/// Compiles an example, runs it at this address, and returns what it prints.
fn run(name: &str, address: &str) -> Option<String> {
    headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/c/{name}.c"));
    let program = scratch(&format!("example-{name}")).join(name);
    let (source, program) = (source.display().to_string(), program.display().to_string());
    let warnings = ["-Wall", "-Wextra", "-Werror", "-O2"];
    let rest = [&source, "-o", &program, "-libverbs", "-lrdmacm"];
    gcc(&[&warnings[..], &rest[..]].concat())?;
    let mut run = Command::new("timeout");
    run.arg("60").arg(command()).args(["run", "--", &program]);
    run.env("FEROCE_LIB", library()).env("FEROCE_ADDRESS", address);
    let output = run.output().expect("timeout is part of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs an example, which must print this.
fn expect(name: &str, address: &str, line: &str) {
    if let Some(printed) = run(name, address) {
        assert!(printed.contains(line), "{name}:\n{printed}");
    }
}

#[test]
fn rc_write() {
    expect("rc_write", "127.122.1.1", "target: \"hello from another process\"");
}

#[test]
fn cm_echo() {
    expect("cm_echo", "127.122.1.2", "\"message 4\" came back");
}

#[test]
fn atomics() {
    expect("atomics", "127.122.1.3", "3 clients drew 600 tickets; the counter says 600");
}

#[test]
fn ud_multicast() {
    expect("ud_multicast", "127.122.1.4", "listener: \"datagram 4\"");
}

/// What `feroce demo --code` shows.
#[test]
fn scenes() {
    expect("scenes", "127.122.1.6", "16 scenes, as they should be");
}

#[test]
fn error_handling() {
    expect("error_handling", "127.122.1.5", "9, remote invalid request error");
}
