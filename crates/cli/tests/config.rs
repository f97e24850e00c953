//! `feroce config`, and settings that are refused.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn feroce(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FEROCE_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    command.args(args).envs(settings.iter().copied()).output().expect("feroce starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn settings_are_shown_with_their_sources() {
    let plain = text(&feroce(&["config"], &[]).stdout);
    assert!(plain.starts_with("every setting has its default"), "{plain}");

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("config.toml");
    std::fs::write(&file, "shared = false\nfault = \"loss=2%\"\n").expect("a file");
    let path = file.to_str().expect("text");
    let settings = [("FEROCE_CONFIG", path), ("FEROCE_FAULT", "loss=1%"), ("FEROCE_SEED", "7")];
    let shown = text(&feroce(&["--transport", "iwarp", "config"], &settings).stdout);
    let words: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words.len(), 4, "{shown}");
    for expected in [
        ["transport", "iwarp", "command", "line"].as_slice(),
        &["seed", "7", "FEROCE_SEED"],
        &["fault", "loss=1%", "FEROCE_FAULT"],
        &["shared", "0", path],
    ] {
        assert!(words.iter().any(|line| line == expected), "{expected:?}: {shown}");
    }

    let all = text(&feroce(&["--json", "config", "--all"], &settings).stdout);
    let all: Vec<serde_json::Value> =
        all.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |name: &str| all.iter().find(|record| record["name"] == name).expect("it is there");
    assert_eq!(of("fault")["from"], "FEROCE_FAULT");
    assert_eq!(of("fault")["value"], "loss=1%");
    assert_eq!(of("trace")["from"], "default");
    assert!(of("trace")["value"].is_null());
}

#[test]
fn a_capture_to_standard_output_is_refused() {
    let refused = feroce(&["rc-pingpong", "--both", "-n", "1"], &[("FEROCE_PCAP", "-")]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("FIFO"), "{said}");
}

#[test]
fn servers_do_not_take_the_time_of_clients() {
    for args in [&["rping", "-s", "--timeout", "1"][..], &["ucmatose", "--timeout", "1"]] {
        let output = feroce(args, &[]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("--timeout"), "{args:?}: {said}");
    }
}

#[test]
fn clients_give_up_when_their_time_is_over() {
    // Something that takes packets and never answers.
    let _silent = std::net::UdpSocket::bind("127.98.4.9:4791").expect("a port of our own");
    for args in [
        &["rping", "-c", "-a", "127.98.4.9", "-C", "1", "--timeout", "1"][..],
        &["client", "-s", "127.98.4.9", "--timeout", "1"],
        &["ucmatose", "-s", "127.98.4.9", "--timeout", "1"],
    ] {
        let output = feroce(args, &[]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("--timeout"), "{args:?}: {said}");
    }
}

#[test]
fn the_log_tells_what_happens_inside() {
    let args = ["rping", "--both", "-C", "1", "--address", "127.98.4.1,127.98.4.2"];
    let said = text(&feroce(&args, &[("FEROCE_LOG", "debug")]).stderr);
    for expected in ["device feroce@127.98.4.1 is open", "listening at 127.98.4.1:", "Established"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let args = ["rc-pingpong", "--both", "-n", "1", "--address", "127.98.4.3,127.98.4.4"];
    let said = text(&feroce(&args, &[("FEROCE_LOG", "debug")]).stderr);
    assert!(said.contains(": Rtr, peer QP 0x") && said.contains("at 127.98.4.4"), "{said}");
    assert_eq!(text(&feroce(&args, &[]).stderr), "");
}
