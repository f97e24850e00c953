//! Two processes of one host where the system gives them little: they use the wire, or say why they
//! cannot.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const FEROCE: &str = env!("CARGO_BIN_EXE_feroce");

/// Runs a script with `server`, `client` and the port of the server as the kernel prints it, in a
/// mount namespace of its own.
fn run(net: u8, script: &str) -> Output {
    let at = |number| format!("127.25.{net}.{number}");
    let port = 19_000 + u16::from(net);
    let shown = format!("{port:04X}");
    let server = format!("{FEROCE} rc-pingpong --address {} -p {port} -n 50", at(1));
    let client = format!("{FEROCE} rc-pingpong --address {} -p {port} -n 50 {}", at(2), at(1));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh", &server, &client, &shown]);
    command.current_dir(folder).env("XDG_CONFIG_HOME", "/nowhere").stdin(Stdio::null());
    command.env_remove("FEROCE_CONFIG").output().expect("unshare is installed")
}

/// Starts the server, starts the client once the server listens, and succeeds if both do.
const BOTH: &str = "$1 & server=$!
    until grep -qsE \":$3 0+:0000 0A\" /proc/net/tcp /proc/net/tcp6
    do kill -0 $server || break; sleep 0.05; done
    $2 || { kill $server; wait $server; exit 1; }
    wait $server";

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn without_room_in_shared_memory_packets_take_the_wire() {
    for (net, size) in [(1, "64k"), (2, "256k"), (3, "1m")] {
        let out = run(net, &format!("mount -t tmpfs -o size={size} tmpfs /dev/shm\n{BOTH}"));
        assert!(out.status.success(), "{size}: {}", text(&out));
    }
    let out = run(4, &format!("mount -t tmpfs -o size=64k tmpfs /dev/shm\n{BOTH}"));
    assert!(text(&out).contains("/dev/shm has"), "it is not said: {}", text(&out));
}

#[test]
fn a_limit_on_the_size_of_files_does_not_end_the_program() {
    for (net, limit) in [(5, 0), (6, 1024), (7, 4096)] {
        let out = run(net, &format!("ulimit -f {limit}\n{BOTH}"));
        assert!(out.status.success(), "{limit}: {}", text(&out));
    }
}

#[test]
fn with_few_descriptors_messages_arrive_or_the_reason_is_said() {
    for (net, limit) in (8..).zip((10..31).chain([32, 48])) {
        let out = run(net, &format!("ulimit -n {limit}\n{BOTH}"));
        let is_said = text(&out).contains("Too many open files");
        let is_enough = limit >= 30;
        assert!(out.status.success() || is_said && !is_enough, "{limit}: {}", text(&out));
        assert!(!text(&out).contains("retry counter exceeded"), "{limit}: {}", text(&out));
    }
}
