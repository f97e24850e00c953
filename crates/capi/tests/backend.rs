//! The other backend of `feroce`, on this library: what calls libibverbs meets what is called.
//!
//! The command loads the library as if it were that of the system, so every call goes through the
//! C interface and back, without hardware and without the kernel's drivers.

use crate::common;
use std::path::Path;
use std::process::{Command, Output};

/// Tests of the Rust interface that hold for any device: those beside them are about what only our
/// own adapter has, or promises.
const API_TESTS: &[(&str, &[&str])] = &[
    ("verbs", &[]),
    ("asynchronous", &[]),
    (
        "cm",
        &[
            "connections_carry",
            "datagram_services",
            "events_follow",
            "group_is_joined",
            "by_hand",
            "ids_work_call_by_call",
            "many_connect_at_once",
            "refusals_say_why",
            "tasks_connect",
        ],
    ),
    (
        "objects",
        &[
            "a_shared_queue_grows",
            "completion_events_go",
            "is_reset_leaves",
            "memory_with_a_window",
            "what_is_in_use_stays",
        ],
    ),
];

/// Runs something on this library as the other backend, with two devices in `127.0.net.0/24`; or,
/// where the kernel chooses an address, with one at the address that it chooses.
fn on_library(command: &mut Command, directory: &Path, net: u8) -> Output {
    let addresses = match net {
        0 => "127.0.0.1".to_owned(),
        net => format!("127.0.{net}.1;127.0.{net}.2"),
    };
    command.env("FEROCE_RDMA_CORE", directory).env("FEROCE_ADDRESS", addresses);
    command.output().expect("the command runs")
}

fn feroce(directory: &Path, net: u8, args: &[&str]) -> String {
    let mut command = Command::new(common::command());
    command.args(["--backend", "rdma-core"]).args(args);
    let output = on_library(&mut command, directory, net);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn devices_are_those_of_the_library() {
    let directory = common::directory("backend-devices");
    let listed = feroce(&directory, 61, &["--json", "devices"]);
    assert!(listed.contains(r#""name":"feroce1""#) && listed.contains("127.0.61.2"), "{listed}");
    assert!(listed.contains(r#""kind":"kernel""#), "{listed}");
    let info = feroce(&directory, 61, &["devinfo", "-v"]);
    assert!(info.contains("PORT_ACTIVE") && info.contains("MEM_WINDOW"), "{info}");
}

#[test]
fn messages_bounce() {
    let directory = common::directory("backend-pingpong");
    for kind in ["rc-pingpong", "uc-pingpong", "ud-pingpong", "srq-pingpong"] {
        for how in [["-n", "50", "-c"].as_slice(), &["-n", "50", "-e"]] {
            let args = [&[kind, "--both"], how].concat();
            let printed = feroce(&directory, 62, &args);
            assert!(printed.contains("50 iters"), "{args:?}: {printed}");
        }
    }
}

#[test]
fn every_operation_can_be_measured() {
    let directory = common::directory("backend-perf");
    for op in ["write", "read", "send", "atomic"] {
        for mode in ["bw", "lat"] {
            let args = ["--json", "perf", op, mode, "--both", "-n", "20"];
            let row = feroce(&directory, 63, &args);
            assert!(row.contains(r#""iterations":20"#), "{op} {mode}: {row}");
        }
    }
    let events = ["--json", "perf", "send", "bw", "--both", "-n", "20", "-e", "-q", "2"];
    assert!(feroce(&directory, 63, &events).contains(r#""op":"send""#));
}

#[test]
fn ends_connect() {
    let directory = common::directory("backend-cm");
    for (command, said) in [
        (["rping", "-C", "3"].as_slice(), "3 pings"),
        (&["client"], "end 0"),
        (&["ucmatose", "-c", "2"], "return status 0"),
        (&["udaddy", "-c", "2"], "return status 0"),
        (&["cmtime", "-c", "2"], "2 connections"),
    ] {
        let printed = feroce(&directory, 65, &[command, &["--both"]].concat());
        assert!(printed.contains(said), "{command:?}: {printed}");
    }
}

#[test]
fn what_it_lacks_it_names() {
    let directory = common::directory("backend-lacks");
    let mut capturing = Command::new(common::command());
    capturing.args(["--backend", "rdma-core", "rc-pingpong", "--both", "-d", "feroce0"]);
    let output = on_library(capturing.env("FEROCE_FAULT", "loss=1%"), &directory, 64);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("injecting faults"), "{errors}");

    let nowhere = common::scratch("backend-nowhere");
    let mut listing = Command::new(common::command());
    let output = on_library(listing.args(["--backend", "rdma-core", "devices"]), &nowhere, 64);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("install rdma-core"), "{errors}");
}

#[test]
fn the_tests_of_the_interface_pass() {
    let directory = common::directory("backend-api");
    for (target, names) in API_TESTS {
        let (mut cargo, _) = common::cargo("test");
        cargo.args(["--package", "feroce", "--test", target, "--"]).args(*names);
        cargo.env("FEROCE_BACKEND", "rdma-core").env("FEROCE_TEST_DEVICE", "feroce0");
        let output = on_library(&mut cargo, &directory, 0);
        let (printed, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{target}:\n{printed}\n{errors}");
        let passed = printed.lines().filter(|line| line.ends_with("... ok")).count();
        assert!(passed >= names.len().max(1), "{target}:\n{printed}");
    }
}
