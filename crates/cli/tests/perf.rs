//! `feroce perf`, run as a user runs it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::ports::free_port;

fn feroce() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.env_remove("FEROCE_CONFIG").env_remove("FEROCE_FAULT").stdin(Stdio::null());
    command
}

/// Two loopback addresses that no other test uses: an address belongs to one process.
fn addresses() -> (String, String) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let n = NEXT.fetch_add(2, Ordering::Relaxed);
    let own = std::process::id() % 200 + 20;
    (format!("127.77.{own}.{n}"), format!("127.77.{own}.{}", n + 1))
}

fn output(args: &[&str]) -> Output {
    feroce().arg("perf").args(args).output().expect("feroce starts")
}

/// Runs both ends in one process and returns the rows.
fn both(args: &[&str]) -> Vec<Value> {
    let (a, b) = addresses();
    let pair = format!("{a},{b}");
    let all = [args, &["--both", "--json", "--address", &pair]].concat();
    let out = output(&all);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "feroce perf {all:?}: {err}");
    rows(&String::from_utf8(out.stdout).expect("text"))
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

/// One row, after checks of the fields that every row has.
fn row(args: &[&str]) -> Value {
    let mut rows = both(args);
    assert_eq!(rows.len(), 1, "{args:?}: one row per size");
    let row = rows.remove(0);
    for field in ["gbit_per_s", "msg_per_s", "p50_us", "p99_us", "max_us", "elapsed_s"] {
        assert!(row[field].as_f64().is_some_and(|n| n > 0.0), "{args:?}: {field} in {row}");
    }
    assert!(row["cpu_s"].as_f64().is_some_and(|n| n >= 0.0), "{row}");
    assert!(row["peer_cpu_s"].is_null(), "there is but one process: {row}");
    assert!(row["p50_us"].as_f64() <= row["p99_us"].as_f64(), "{row}");
    row
}

#[test]
fn every_operation_has_bandwidth() {
    for op in ["write", "read", "send"] {
        let row = row(&[op, "bw", "-n", "300", "-s", "4096"]);
        assert_eq!(row["op"], op);
        assert_eq!(row["mode"], "bw");
        assert_eq!((row["size"].as_u64(), row["iterations"].as_u64()), (Some(4096), Some(300)));
    }
    let row = row(&["atomic", "bw", "-n", "300", "-A", "cmp-swap"]);
    assert_eq!(row["size"], 8);
}

#[test]
fn every_operation_has_latency() {
    for op in ["write", "read", "send", "atomic"] {
        let row = row(&[op, "lat", "-n", "100", "-s", "8"]);
        assert_eq!((row["op"].as_str(), row["mode"].as_str()), (Some(op), Some("lat")));
        assert_eq!(row["iterations"], 100);
    }
}

#[test]
fn unreliable_services_say_what_was_lost() {
    for args in [
        ["send", "bw", "-c", "uc"],
        ["send", "bw", "-c", "UD"],
        ["write", "bw", "-c", "UC"],
        ["send", "lat", "-c", "ud"],
    ] {
        let row = row(&[&args[..], &["-n", "200", "-s", "256"]].concat());
        assert_eq!(row["lost"].is_number(), args[1] == "bw", "{row}");
    }
}

#[test]
fn events_depths_lists_and_several_queue_pairs() {
    assert_eq!(row(&["send", "bw", "-n", "200", "-s", "64", "-e"])["iterations"], 200);
    assert_eq!(row(&["send", "lat", "-n", "50", "-e"])["iterations"], 50);
    assert_eq!(row(&["write", "bw", "-n", "200", "-e", "-s", "64K"])["iterations"], 200);
    assert_eq!(row(&["write", "bw", "-n", "200", "-q", "4", "-s", "1024"])["iterations"], 800);
    let lists = ["write", "bw", "-n", "201", "-s", "16", "-t", "16", "-l", "8", "-I", "16"];
    assert_eq!(row(&lists)["iterations"], 201);
    assert_eq!(row(&["write", "bw", "-n", "5", "-t", "1", "-Q", "1", "-m", "1024"])["mtu"], 1024);
}

#[test]
fn several_threads() {
    for op in ["write", "read", "send", "atomic"] {
        let row = row(&[op, "bw", "--threads", "3", "-b", "-n", "200", "-s", "8"]);
        assert_eq!((row["qps"].as_u64(), row["threads"].as_u64()), (Some(3), Some(3)), "{op}");
        assert_eq!(row["iterations"], 2 * 3 * 200, "{op}");
    }
    let datagrams = ["send", "bw", "-c", "ud", "--threads", "2", "-q", "4", "-n", "100"];
    let row = row(&[&datagrams[..], &["-s", "64"]].concat());
    assert_eq!((row["qps"].as_u64(), row["threads"].as_u64()), (Some(4), Some(2)));
    let refused = output(&["write", "bw", "--both", "--threads", "2", "-q", "3"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("-q 3: not as many queue pairs for each of 2 threads"), "{why}");
    let refused = output(&["write", "lat", "--both", "--threads", "2"]);
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn both_ways() {
    for op in ["write", "read", "send"] {
        assert_eq!(row(&[op, "bw", "-b", "-n", "200", "-s", "2048"])["iterations"], 400, "{op}");
    }
}

#[test]
fn a_sweep_is_drawn() {
    let path = std::env::temp_dir().join(format!("feroce-perf-{}.svg", std::process::id()));
    let file = path.to_str().expect("a path of text");
    let rows = both(&["write", "lat", "-a", "-n", "10", "--plot", file]);
    assert_eq!(rows.len(), 23);
    assert_eq!((rows[0]["size"].as_u64(), rows[22]["size"].as_u64()), (Some(2), Some(8 << 20)));
    let drawn = std::fs::read_to_string(&path).expect("the drawing");
    std::fs::remove_file(&path).expect("it was there");
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    assert!(drawn.contains("write latency"));
}

#[test]
fn options_of_perftest_are_taken() {
    let row = row(&[
        "write",
        "bw",
        "-F",
        "-x",
        "0",
        "--report_gbits",
        "-u",
        "12",
        "--iters",
        "100",
        "-s",
        "4k",
    ]);
    assert_eq!((row["size"].as_u64(), row["iterations"].as_u64()), (Some(4096), Some(100)));
    let refused = output(&["write", "bw", "--both", "-n", "10", "--plot", "/tmp/drawing.png"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("--plot draws SVG"), "{why}");
}

#[test]
fn the_way_of_the_messages_is_said() {
    let way = |shared: &str| {
        let (a, b) = addresses();
        let mut command = feroce();
        command.args(["perf", "write", "bw", "-n", "100", "--both", "--json", "--address"]);
        let out = command.arg(format!("{a},{b}")).env("FEROCE_SHARED", shared).output();
        let out = out.expect("feroce starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        rows(&String::from_utf8(out.stdout).expect("text"))[0]["path"].clone()
    };
    assert_eq!(way("off"), "UDP packets");
    let way = way("on");
    assert!(way.as_str().is_some_and(|way| way.starts_with("shared memory")), "{way}");
}

#[test]
fn datagrams_end_at_the_mtu() {
    let rows = both(&["send", "bw", "-c", "ud", "-a", "-n", "20"]);
    assert_eq!(rows.last().map(|r| r["size"].clone()), Some(4096.into()));
}

/// With `--no-poll`, an end makes no verbs call while it waits, so the adapter must deliver the
/// data without one.
#[test]
fn whoever_waits_may_only_look_at_its_memory() {
    for memory in ["ordinary", "shareable"] {
        for signals in ["1", "16"] {
            let args =
                ["write", "lat", "-n", "200", "-Q", signals, "--no-poll", "--memory", memory];
            assert_eq!(row(&args)["iterations"], 200, "{args:?}");
        }
    }
}

#[test]
fn sockets_for_comparison() {
    let rows = both(&["write", "lat", "-n", "50", "--reference", "udp"]);
    assert_eq!((rows[0]["op"].as_str(), rows[1]["op"].as_str()), (Some("write"), Some("udp")));
    let rows = both(&["write", "bw", "-n", "50", "--reference", "tcp"]);
    assert_eq!((rows[1]["op"].as_str(), rows[1]["iterations"].as_u64()), (Some("tcp"), Some(50)));
}

#[test]
fn the_table_is_for_people() {
    let (a, b) = addresses();
    let pair = format!("{a},{b}");
    let out = output(&["write", "bw", "-n", "20", "--both", "--address", &pair]);
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(
        text.contains("#bytes") && text.contains("BW[Gb/s]") && text.contains("65536"),
        "{text}"
    );
    assert!(out.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn mistakes_are_explained() {
    for (args, why) in [
        (&["write", "bw", "-c", "ud"][..], "datagrams only send"),
        (&["read", "bw", "-c", "uc"], "reliable connection"),
        (&["atomic", "bw", "-s", "16"], "8 bytes"),
        (&["write", "lat", "-e"], "polling memory"),
        (&["send", "lat", "--no-poll"], "only writes are waited for in memory"),
        (&["write", "bw", "--no-poll"], "where latency is measured"),
        (&["write", "lat", "-b"], "-b is for bandwidth"),
        (&["write", "bw", "-n", "0"], "nothing to measure"),
        (&["write", "bw", "-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["send", "bw", "-c", "ud", "-s", "8192"], "at most 4096"),
    ] {
        let (a, b) = addresses();
        let out = output(&[args, &["--both", "--address", &format!("{a},{b}")]].concat());
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{args:?}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
    let out = output(&["write", "bw", "127.0.0.1", "-p", "1"]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("start `feroce perf write bw` there first"), "{err}");
}

/// A process that is killed if the test ends before it does.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, once it listens.
fn server(args: &[&str]) -> Guard {
    let child = feroce().arg("perf").args(args).stdout(Stdio::piped()).spawn().expect("starts");
    let mut guard = Guard(child);
    let out = guard.0.stdout.take().expect("its output");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert!(line.contains("waiting for a client"), "{line}");
    guard
}

/// Interrupts a process as the terminal does (SIGINT).
fn interrupt(child: &Child) {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
}

/// Waits for a process to end by itself.
fn ends(child: &mut Child) -> bool {
    for _ in 0..2000 {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.success();
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    false
}

#[test]
fn two_processes() {
    let ((a, b), port) = (addresses(), free_port().to_string());
    let mut server = server(&["send", "bw", "-p", &port, "--address", &a]);
    let args = ["send", "bw", "-p", &port, "--address", &b, "-n", "100", "--json", "127.0.0.1"];
    let out = output(&args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let rows = rows(&String::from_utf8(out.stdout).expect("text"));
    assert_eq!(rows[0]["iterations"], 100);
    assert!(rows[0]["peer_cpu_s"].as_f64().is_some_and(|n| n >= 0.0), "{}", rows[0]);
    assert!(ends(&mut server.0));
}

/// Two processes at one address, which transfer long messages with one copy, from memory of either
/// kind.
#[test]
fn two_processes_at_one_address() {
    for memory in ["ordinary", "shareable"] {
        for op in ["write", "read", "send"] {
            let ((a, _), port) = (addresses(), free_port().to_string());
            let mut server = server(&[op, "bw", "-p", &port, "--address", &a]);
            let long = ["-s", "1M", "-n", "50", "--memory", memory];
            let out = output(&[&[op, "bw", "-p", &port, "--json", &a][..], &long].concat());
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let rows = rows(&String::from_utf8(out.stdout).expect("text"));
            assert_eq!(rows[0]["iterations"], 50, "{op}, {memory}");
            assert!(ends(&mut server.0));
        }
    }
}

#[test]
fn the_wrong_server_says_so() {
    let ((a, b), port) = (addresses(), free_port().to_string());
    let mut server = server(&["read", "lat", "-p", &port, "--address", &a]);
    let out = output(&["write", "bw", "-p", &port, "--address", &b, "127.0.0.1"]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("this side was started for read lat"), "{err}");
    assert!(!ends(&mut server.0));
}

#[test]
fn an_interrupt_shows_what_was_measured() {
    let (a, b) = addresses();
    let pair = format!("{a},{b}");
    let mut child = Guard(
        feroce()
            .args(["perf", "write", "bw", "-D", "600", "--both", "--json", "--address", &pair])
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts"),
    );
    std::thread::park_timeout(Duration::from_millis(1500));
    interrupt(&child.0);
    assert!(ends(&mut child.0), "an interrupt is no failure");
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().expect("its output")).read_line(&mut line).expect("text");
    let row: Value = serde_json::from_str(&line).expect("a row");
    assert!(row["iterations"].as_u64().is_some_and(|n| n > 0), "{row}");
    assert!(row["elapsed_s"].as_f64().is_some_and(|s| s < 60.0), "{row}");
}

#[test]
fn an_interrupt_ends_a_server_that_waits() {
    let port = free_port().to_string();
    let mut server = server(&["write", "bw", "-p", &port]);
    interrupt(&server.0);
    assert!(ends(&mut server.0));
}

/// Over iWARP the connection manager connects, with or without `-R`.
#[test]
fn every_operation_over_iwarp() {
    let iwarp = |args: &[&str]| {
        let (a, b) = addresses();
        let pair = format!("{a},{b}");
        let mut command = feroce();
        command.args(["--transport", "iwarp", "perf"]).args(args);
        command.args(["--both", "--json", "--address", &pair]).output().expect("feroce starts")
    };
    for args in [
        &["write", "bw", "-n", "300", "-s", "5000", "-R"][..],
        &["read", "bw", "-n", "300", "-s", "5000", "-q", "3"],
        // More messages than there are receives: the receiver says how many it has.
        &["send", "bw", "-n", "3000", "-s", "100", "-r", "64", "-b", "-q", "2"],
        &["write", "lat", "-n", "100"],
        &["read", "lat", "-n", "100"],
        &["send", "lat", "-n", "100", "-e"],
    ] {
        let out = iwarp(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        let rows = rows(&String::from_utf8(out.stdout).expect("text"));
        assert_eq!((rows.len(), &rows[0]["path"]), (1, &"TCP connections".into()), "{rows:?}");
    }
    for (args, why) in [
        (["atomic", "bw", "-n", "10", "-t", "1"], "iWARP has no atomics"),
        (["send", "bw", "-n", "10", "-c", "ud"], "iWARP has reliable connections only"),
        (["send", "bw", "-n", "10", "-c", "uc"], "iWARP has reliable connections only"),
    ] {
        let out = iwarp(&args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(why), "{args:?}: {said}");
    }
}

/// With the extensions of RFC 7306, iWARP has atomics.
#[test]
fn atomics_over_iwarp() {
    let (a, b) = addresses();
    let pair = format!("{a},{b}");
    let mut command = feroce();
    command.env("FEROCE_IWARP_EXTENSIONS", "1").args(["--transport", "iwarp", "perf"]);
    command.args(["atomic", "bw", "-n", "300", "--both", "--json", "--address", &pair]);
    let out = command.output().expect("feroce starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// The connection manager also connects over RoCE.
#[test]
fn by_the_connection_manager() {
    let row = row(&["write", "bw", "-n", "300", "-s", "4096", "-R", "-q", "2"]);
    assert_eq!(row["iterations"], 600);
    let out = output(&["send", "bw", "-R", "-c", "ud", "--both", "-n", "1"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("-R: `perf` connects only reliable"), "{said}");
}

/// Perftest has the same TCP port, and its first message is no line.
#[test]
fn strangers_are_told_from_ends() {
    let port = free_port().to_string();
    let mut server = feroce();
    let server = server.args(["perf", "write", "bw", "-p", &port, "--address", "127.77.10.1"]);
    let server = server.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server");
    let mut stranger = loop {
        match std::net::TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(stream) => break stream,
            Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    };
    std::io::Write::write_all(&mut stranger, b"6.06\0").expect("a message");
    let output = server.wait_with_output().expect("the server ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("if it is perftest"), "{said}");

    // A server that reads what it does not understand, and leaves.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let args = ["write", "bw", "127.0.0.1", "-p", &port, "--address", "127.77.10.2"];
    let said = std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept().expect("a client")));
        output_text(&args)
    });
    assert!(said.contains("if it is perftest"), "{said}");
}

#[test]
fn a_reference_needs_both_ends() {
    let said = output_text(&["write", "bw", "127.0.0.1", "--reference", "tcp"]);
    assert!(said.contains("--reference") && said.contains("it needs --both"), "{said}");
}

/// What a run that fails says.
fn output_text(args: &[&str]) -> String {
    let output = output(args);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}
