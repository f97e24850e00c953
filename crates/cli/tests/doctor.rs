//! `feroce doctor`, run as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn doctor(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.arg("doctor").args(args).envs(environment.iter().copied());
    command.output().expect("feroce starts")
}

fn findings(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).expect("a list of findings")
}

#[test]
fn a_device_that_can_be_opened_is_good() {
    let output = doctor(&["--json"], &[("FEROCE_ADDRESS", "127.92.0.1")]);
    let found = findings(&output);
    let device = found.iter().find(|finding| {
        finding["what"].as_str().is_some_and(|what| what.starts_with("feroce0 on addresses"))
    });
    assert_eq!(device.expect("the device")["grade"], "ok", "{found:?}");
}

#[test]
fn what_is_wrong_makes_it_fail_and_is_said() {
    let output = doctor(&[], &[("FEROCE_ADDRESS", "192.0.2.222")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("bad   feroce0 on addresses: 192.0.2.222"), "{text}");
    assert!(text.contains("not one of this machine"), "{text}");
    let output = doctor(&["--json"], &[("FEROCE_FALT", "loss=1%")]);
    assert_eq!(output.status.code(), Some(1));
    let found = findings(&output);
    let last = found.last().and_then(|finding| finding["what"].as_str()).unwrap_or_default();
    assert!(last.contains("did you mean FEROCE_FAULT?"), "{found:?}");
}
