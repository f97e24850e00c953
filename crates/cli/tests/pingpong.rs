//! The pingpong commands: both ends in one process, two processes, and a scripted peer that uses
//! the side channel as rdma-core's programs do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::ports::free_port;

/// Bytes of an address on the side channel.
const ADDRESS: usize = 52;

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

/// Runs both ends on 127.18.`net`.1 and .2 and returns their report.
fn both(net: u8, args: &str) -> Value {
    let output = run(&format!("{args} --json --both {}", addresses(net)));
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{args}: {} {stderr}", text(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn addresses(net: u8) -> String {
    format!("--address 127.18.{net}.1 --address 127.18.{net}.2")
}

/// A process that is killed when the test ends, also if it fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(args: &str) -> Self {
        let mut command = feroce(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(child.expect("the program runs"))
    }

    fn next_line(&mut self) -> String {
        let mut line = Vec::new();
        let stdout = self.0.stdout.as_mut().expect("piped");
        let mut byte = [0];
        while stdout.read(&mut byte).expect("readable") == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        text(&line)
    }

    /// Waits until the process ends; returns its exit status, output and errors.
    fn finish(mut self) -> (Option<i32>, String, String) {
        let mut texts = (String::new(), String::new());
        let stdout = self.0.stdout.as_mut().expect("piped");
        stdout.read_to_string(&mut texts.0).expect("readable");
        let stderr = self.0.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut texts.1).expect("readable");
        let status = self.0.wait().expect("our child");
        (status.code(), texts.0, texts.1)
    }
}

#[test]
fn every_service_bounces_messages_unchanged() {
    for (net, kind) in (10..).zip(["rc", "uc", "ud", "srq"]) {
        for mode in ["", "-e"] {
            let report = both(net, &format!("{kind}-pingpong -c -n 200 {mode}"));
            for end in ["server", "client"] {
                let end = &report[end];
                assert_eq!(end["test"], format!("{kind}_pingpong"));
                assert_eq!(end["iters"], 200);
                assert_eq!(end["valid"], true, "{kind} {mode}");
                assert_eq!(end["interrupted"], false);
                assert!(end["usec_per_iter"].as_f64().expect("a number") > 0.0);
            }
            assert_eq!(report["client"]["local"], report["server"]["remote"]);
            assert_eq!(report["server"]["local"], report["client"]["remote"]);
        }
    }
}

#[test]
fn every_size_arrives() {
    for (net, kind) in (20..).zip(["rc -m 4096", "uc -m 4096", "srq -m 4096", "rc -m 256"]) {
        let (kind, mtu) = kind.split_once(' ').expect("two words");
        for size in [0, 1, 4096, 65536] {
            let report = both(net, &format!("{kind}-pingpong -c -n 50 -s {size} {mtu}"));
            assert_eq!(report["client"]["bytes"], size * 100);
            assert_eq!(report["client"]["valid"], true, "{kind} {size}");
        }
    }
    for size in [0, 1, 4096] {
        let report = both(24, &format!("ud-pingpong -c -n 50 -s {size}"));
        assert_eq!(report["client"]["valid"], true, "ud {size}");
    }
}

#[test]
fn a_datagram_beyond_the_mtu_is_refused() {
    let output = run(&format!("ud-pingpong --both -s 65536 {}", addresses(30)));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("larger than port MTU (4096)"));
}

#[test]
fn the_lines_are_those_of_rdma_core() {
    let output = run("rc-pingpong --both -n 100 -t");
    let text = text(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("  client address: LID 0x0000, QPN 0x"), "{text}");
    assert!(lines[1].starts_with("  server address: LID 0x0000, QPN 0x"), "{text}");
    assert!(lines[1].contains(", GID ::ffff:127.0.0."), "{text}");
    assert!(lines[2].starts_with("819200 bytes in "), "{text}");
    assert!(lines[2].ends_with(" Mbit/sec"), "{text}");
    assert!(lines[3].starts_with("100 iters in "), "{text}");
    assert!(lines[3].ends_with(" usec/iter"), "{text}");
    assert!(lines[4].starts_with("Max receive completion clock cycles = "), "{text}");
}

#[test]
fn both_ends_can_share_a_device() {
    let output = run("rc-pingpong --json --both -c -n 100 --address 127.18.31.1");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["server"]["device"], report["client"]["device"]);
    assert_eq!(report["client"]["valid"], true);
}

#[test]
fn two_processes_find_each_other() {
    for (net, kind) in (40..).zip(["rc", "uc", "ud", "srq"]) {
        let port = free_port();
        let common = format!("{kind}-pingpong -c -n 200 -p {port}");
        let mut server = Running::start(&format!("{common} --address 127.18.{net}.1"));
        let line = server.next_line();
        assert!(line.starts_with("  local address:  LID 0x0000, QPN 0x"), "{line}");
        let client = run(&format!("{common} --address 127.18.{net}.2 127.0.0.1"));
        assert!(client.status.success(), "{}", text(&client.stderr));
        let (code, stdout, stderr) = server.finish();
        assert_eq!(code, Some(0), "{stderr}");
        for output in [stdout, text(&client.stdout)] {
            assert!(output.contains("  remote address: LID 0x0000, QPN 0x"), "{output}");
            assert!(output.contains("200 iters in "), "{output}");
        }
    }
}

/// The usual first attempt of a user: both ends on this machine, by its name and by its address.
#[test]
fn two_processes_share_an_address() {
    for (host, kind) in [("localhost", "rc"), ("127.0.0.1", "srq"), ("127.0.0.1", "uc")] {
        let port = free_port();
        let common = format!("{kind}-pingpong -c -n 200 -p {port}");
        let mut server = Running::start(&format!("{common} --address 127.0.0.1"));
        server.next_line();
        let client = run(&format!("{common} --address 127.0.0.1 {host}"));
        assert!(client.status.success(), "{kind}: {}", text(&client.stderr));
        let (code, stdout, stderr) = server.finish();
        assert_eq!(code, Some(0), "{kind}: {stderr}");
        assert!(stdout.contains("200 iters in "), "{kind}: {stdout}");
    }
}

#[test]
fn without_a_device_the_connection_decides() {
    let port = free_port();
    let mut server = Running::start(&format!("rc-pingpong -n 100 -p {port}"));
    let mut line = String::new();
    let stderr = server.0.stderr.as_mut().expect("piped");
    BufReader::new(stderr).read_line(&mut line).expect("readable");
    assert!(line.contains("waiting for a client"), "{line}");
    let client = run(&format!("rc-pingpong -n 100 -p {port} 127.18.44.1"));
    assert!(client.status.success(), "{}", text(&client.stderr));
    let (code, stdout, stderr) = server.finish();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("GID ::ffff:127.18.44.1"), "{stdout}");
}

#[test]
fn an_absent_server_is_named() {
    let port = free_port();
    let output = run(&format!("rc-pingpong -p {port} 127.0.0.1"));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("no program listens there; start the server first"), "{error}");
}

/// Starts a server and does what a client of rdma-core does first.
fn scripted_client(net: u8, kind: &str, hello: &[u8]) -> (Running, TcpStream) {
    let port = free_port();
    let args = format!("{kind}-pingpong -p {port} --address 127.18.{net}.1 --timeout 2");
    let mut server = Running::start(&args);
    server.next_line();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a server");
    stream.write_all(hello).expect("an open connection");
    (server, stream)
}

/// The wire form of an address on 127.18.`net`.9, which no adapter has.
fn absent(net: u8) -> Vec<u8> {
    format!("0000:000011:abcdef:00000000000000000000ffff7f12{net:02x}09\0").into_bytes()
}

/// Checks the form of an address: digits and colons where rdma-core puts them, and the GID.
fn check_address(bytes: &[u8], net: u8) {
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(bytes.len(), ADDRESS);
    for (at, byte) in bytes.iter().enumerate() {
        match at {
            4 | 11 | 18 => assert_eq!(*byte, b':', "{text}"),
            51 => assert_eq!(*byte, 0, "{text}"),
            _ => assert!(matches!(byte, b'0'..=b'9' | b'a'..=b'f'), "{text}"),
        }
    }
    assert_eq!(&text[..5], "0000:", "{text}");
    assert_eq!(text[19..49], format!("00000000000000000000ffff7f12{net:02x}"), "{text}");
}

#[test]
fn the_server_answers_byte_for_byte() {
    let (server, mut stream) = scripted_client(50, "rc", &absent(50));
    let mut answer = [0; ADDRESS];
    stream.read_exact(&mut answer).expect("an address");
    check_address(&answer, 50);
    stream.write_all(b"done\0").expect("an open connection");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end");
    assert!(rest.is_empty(), "{rest:?}");
    let (code, stdout, stderr) = server.finish();
    assert_eq!(code, Some(1));
    let peer = "  remote address: LID 0x0000, QPN 0x000011, PSN 0xabcdef, GID ::ffff:127.18.50.9";
    assert!(stdout.contains(peer), "{stdout}");
    assert!(stderr.contains("nothing came for 2 s"), "{stderr}");
}

#[test]
fn the_client_begins_byte_for_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let client = Running::start(&format!("rc-pingpong -p {port} --address 127.18.51.1 127.0.0.1"));
    let (mut stream, _) = listener.accept().expect("a client");
    let mut hello = [0; ADDRESS];
    stream.read_exact(&mut hello).expect("an address");
    check_address(&hello, 51);
    stream.write_all(&absent(51)).expect("an open connection");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end");
    assert_eq!(rest, b"done\0");
    let (code, _, stderr) = client.finish();
    assert_eq!(code, Some(1));
    assert!(stderr.contains("transport retry counter exceeded (12)"), "{stderr}");
    assert!(stderr.contains("the peer does not answer"), "{stderr}");
}

#[test]
fn shared_receives_exchange_256_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let args = format!("srq-pingpong -q 3 -p {port} --address 127.18.52.1 127.0.0.1");
    let client = Running::start(&args);
    let (mut stream, _) = listener.accept().expect("a client");
    let mut hello = vec![0; 256 * ADDRESS];
    stream.read_exact(&mut hello).expect("addresses");
    for (i, address) in hello.chunks(ADDRESS).enumerate() {
        if i < 3 {
            check_address(address, 52);
        } else {
            assert_eq!(address, b"0000:000000:000000:00000000000000000000000000000000\0");
        }
    }
    stream.write_all(&absent(52).repeat(256)).expect("an open connection");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end");
    assert_eq!(rest, b"done\0");
    drop(client);
}

#[test]
fn strangers_are_refused_in_words() {
    let no_gid = b"0000:000011:abcdef:00000000000000000000000000000000\0";
    let ipv6 = b"0000:000011:abcdef:fd000000000000000000000000000001\0";
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n";
    for (kind, hello, expected) in [
        ("rc", &no_gid[..], "start it with `-g INDEX`"),
        ("ud", ipv6, "choose another with -g"),
        ("uc", http, "does not speak pingpong"),
        ("srq", &no_gid[..10], "before it said its address"),
        ("srq", &no_gid[..], "1 of 256 addresses"),
    ] {
        let (server, stream) = scripted_client(53, kind, hello);
        drop(stream);
        let (code, _, stderr) = server.finish();
        assert_eq!(code, Some(1));
        assert!(stderr.contains(expected), "{kind}: {stderr}");
    }
}

#[test]
fn an_interrupt_still_shows_what_was_measured() {
    let args = format!("rc-pingpong --both -n 1000000000 {}", addresses(54));
    let mut running = Running::start(&args);
    running.next_line();
    running.next_line();
    let pid = running.0.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    assert!(killed.success());
    let (code, stdout, stderr) = running.finish();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stdout.starts_with("stopped after "), "{stdout}");
    assert!(stdout.contains(" usec/iter"), "{stdout}");
}

#[test]
fn two_devices_are_named_by_address() {
    let output = run("rc-pingpong --both -n 1 -m 1k --json --address 127.18.55.1,127.18.55.2");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run("rc-pingpong --both -n 1 -d lo -d lo");
    assert!(text(&output.stderr).contains("-d names one device"), "{}", text(&output.stderr));
}

#[test]
fn without_a_loopback_both_ends_say_so() {
    // A new network namespace has a loopback interface that is down.
    let mut command = Command::new("unshare");
    command.args(["-Urn", env!("CARGO_BIN_EXE_feroce"), "rc-pingpong", "--both"]);
    let output = command.output().expect("unshare is installed");
    let said = text(&output.stderr);
    if std::env::var_os("CI").is_none() && said.starts_with("unshare:") {
        eprintln!("SKIPPED: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ip link set lo up"), "{said}");
}

#[test]
fn too_large_a_message_is_an_error() {
    // Enough for the program, and for its buffers at no end.
    for command in ["rc-pingpong --both -n 1 -s 1G", "perf send bw --both -n 1 -s 1G"] {
        let limited = format!("ulimit -v 2000000; exec {} {command}", env!("CARGO_BIN_EXE_feroce"));
        let output = Command::new("sh").args(["-c", &limited]).output().expect("a shell");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("memory"), "{command}: {said}");
    }
}

#[test]
fn usage_errors_exit_with_2() {
    for args in ["rc-pingpong -m 1000", "ud-pingpong -m 1024", "srq-pingpong -q 256"] {
        assert_eq!(run(args).status.code(), Some(2), "{args}");
    }
}
