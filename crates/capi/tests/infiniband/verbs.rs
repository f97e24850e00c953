//! Programs of libibverbs on hosts of an InfiniBand fabric: they find each other by LID, and their
//! packets follow the tables that opensm has written.

use std::fs;
use std::process::{Command, Output, Stdio};

use super::FT4;
use super::fabric::{Fabric, installed, wait_until};
use crate::common;

/// Whether a TCP port is listened on.
pub(crate) fn is_listened_on(port: u16) -> bool {
    let local = format!(":{port:04X} ");
    ["tcp", "tcp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/net/{family}")).unwrap_or_default();
        table.lines().any(|line| line.contains(&local) && line.contains(" 0A "))
    })
}

/// Whether the programs of a package are there.
pub(crate) fn has(program: &str, package: &str) -> bool {
    let is_there = common::output(Command::new(program).arg("--version"), package).is_some();
    is_there && installed("opensm").is_some()
}

/// What a program that must succeed said.
pub(crate) fn said(output: Output) -> String {
    let Output { status, stdout, stderr } = output;
    let [out, errors] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{status}\n{out}{errors}");
    out
}

/// A program on a host, that is ended if it takes too long.
pub(crate) fn program(fabric: &Fabric, host: &str, program: &str) -> Command {
    let words: Vec<&str> = program.split_whitespace().collect();
    let run = ["run", "-n", host, "--", "timeout", "--kill-after=5", "100"];
    let mut command = fabric.command(&[&run[..], &words].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a program on Host4, and on Host1 as its client, both with the same options. What the client
/// said is returned.
pub(crate) fn pair(fabric: &Fabric, words: &str, port: u16) -> String {
    pair_hosts(fabric, ["Host1", "Host4"], words, port)
}

/// The same on other hosts, the client's first.
pub(crate) fn pair_hosts(
    fabric: &Fabric,
    [client, server]: [&str; 2],
    words: &str,
    port: u16,
) -> String {
    let words = format!("{words} -p {port}");
    let server = program(fabric, server, &words).spawn().expect("it starts");
    wait_until(|| is_listened_on(port));
    let mut client = program(fabric, client, &format!("{words} 127.0.0.1"));
    let client = said(client.output().expect("it ran"));
    said(server.wait_with_output().expect("it ran"));
    client
}

/// Packets that a port has sent.
pub(crate) fn sent(fabric: &Fabric, port: &str) -> u64 {
    column(fabric, port, 3)
}

/// Packets that a port has dropped.
pub(crate) fn discards(fabric: &Fabric, port: &str) -> u64 {
    column(fabric, port, 5)
}

/// Ticks during which a port had packets and could send none.
pub(crate) fn waits(fabric: &Fabric, port: &str) -> u64 {
    column(fabric, port, 6)
}

fn column(fabric: &Fabric, port: &str, n: usize) -> u64 {
    let line = fabric.line(port);
    line.split_whitespace().nth(n).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn a_port_is_what_the_subnet_manager_makes_of_it() {
    if !has("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-port", FT4);
    let expect = |said: &str, lines: &[&str]| {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let all: Vec<String> = said.lines().map(words).collect();
        for line in lines {
            assert!(all.iter().any(|found| found == line), "{line}: {said}");
        }
    };
    let (before, status) = fabric.run("Host4", "ibv_devinfo -v");
    assert_eq!(status, 0, "{before}");
    expect(
        &before,
        &[
            "hca_id: feroce0",
            "node_guid: 0000:0000:0010:0006",
            "state: PORT_INIT (2)",
            "port_lid: 0",
            "sm_lid: 0",
            "link_layer: InfiniBand",
            "GID[ 0]: fe80:0000:0000:0000:0000:0000:0010:0007",
        ],
    );
    let (refused, status) = fabric.run("Host4", "ibv_rc_pingpong -p 18639");
    assert_eq!(status, 1, "{refused}");
    assert!(refused.contains("Couldn't get local LID"), "{refused}");
    let _opensm = fabric.opensm("Host1", "-l 1");
    let (after, status) = fabric.run("Host4", "ibv_devinfo -v");
    assert_eq!(status, 0, "{after}");
    expect(
        &after,
        &[
            "state: PORT_ACTIVE (4)",
            "max_mtu: 2048 (4)",
            "active_mtu: 2048 (4)",
            "port_lid: 14",
            "sm_lid: 2",
            "port_lmc: 0x01",
            "link_layer: InfiniBand",
            "pkey_tbl_len: 64",
            "gid_tbl_len: 32",
            "subnet_timeout: 18",
            "active_width: 4X (2)",
            "active_speed: 2.5 Gbps (1)",
            "phys_state: LINK_UP (5)",
        ],
    );
}

#[test]
fn pingpongs_run_by_lid_between_switches() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-pingpong", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let before = sent(&fabric, "Spine2:2");
    for words in [
        "ibv_rc_pingpong -n 200",
        "ibv_uc_pingpong -n 200",
        "ibv_ud_pingpong -n 200",
        // With several queue pairs it ends while messages of its peer are still under way, which
        // then find no queue pair.
        "ibv_srq_pingpong -n 200 -q 1",
        // Events instead of polling, several packets in a message, a GRH beside the LIDs.
        "ibv_rc_pingpong -n 50 -e -s 20000 -m 2048 -l 2",
        "ibv_rc_pingpong -n 50 -g 0",
        "ibv_ud_pingpong -n 50 -g 0",
        // Files may not be as long as rings to the fabric: messages go through sockets.
        "prlimit --fsize=100000 ibv_rc_pingpong -n 200",
    ] {
        let said = pair(&fabric, words, 18631);
        assert!(said.contains("local address: ") && said.contains("LID 0x0001"), "{said}");
        assert!(said.contains("remote address: LID 0x0008"), "{said}");
        assert!(said.contains(" iters in "), "{words}: {said}");
    }
    // Packets from LID 1 to LID 8 pass the second spine.
    assert!(sent(&fabric, "Spine2:2") > before + 1000, "{}", fabric.done(&["status"]));
    // Processes that have ended have left the adapter.
    wait_until(|| fabric.programs("Host4") == 0);
}

#[test]
fn commands_of_feroce_run_by_lid() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-own", FT4);
    let feroce = common::command().display().to_string();
    for early in ["rc-pingpong --both", "perf send lat --both -n 10"] {
        let (said, status) = fabric.run("Host4", &format!("{feroce} {early}"));
        assert!(status == 1 && said.contains("the port has no LID yet"), "{early}: {said}");
    }
    let _opensm = fabric.opensm("Host1", "-l 1");
    let before = sent(&fabric, "Leaf2:2");
    for (words, expected) in [
        ("rc-pingpong -n 200", "remote address: LID 0x000e, "),
        ("uc-pingpong -n 200", "GID ::"),
        ("ud-pingpong -n 200", "GID ::"),
        ("srq-pingpong -n 200 -q 4", "LID 0x000e"),
        // A GRH beside the LIDs.
        ("rc-pingpong -n 50 -g 0", "GID fe80::10:7"),
        ("ud-pingpong -n 50 -g 0", "GID fe80::10:7"),
        ("perf write bw -n 100 -s 64K", "LID 2 -> LID 14"),
        ("perf send lat -n 100 -c uc", "LID 2 -> LID 14"),
        ("perf send bw -n 100 -s 1K -c ud -x 0", "LID 2 -> LID 14"),
        ("perf read bw -n 100 -q 2 -R", "LID 2 -> LID 14"),
    ] {
        let said = pair(&fabric, &format!("{feroce} {words}"), 18636);
        assert!(said.contains(expected), "{words}: {said}");
    }
    assert!(sent(&fabric, "Leaf2:2") > before + 1000, "{}", fabric.done(&["status"]));
    for both in ["ud-pingpong --both -n 10", "perf write lat --both -n 10"] {
        let (said, status) = fabric.run("Host4", &format!("{feroce} {both}"));
        assert_eq!(status, 0, "{both}: {said}");
    }
    // The original at the other end.
    let server = program(&fabric, "Host4", "ibv_rc_pingpong -n 100 -p 18637").spawn();
    wait_until(|| is_listened_on(18637));
    let client = format!("{feroce} rc-pingpong -n 100 -p 18637 127.0.0.1");
    said(program(&fabric, "Host1", &client).output().expect("it ran"));
    said(server.expect("it starts").wait_with_output().expect("it ran"));
}

#[test]
fn perftest_runs_by_lid() {
    if !has("ib_write_bw", "perftest") {
        return;
    }
    let fabric = Fabric::up("ib-perftest", FT4);
    let _opensm = fabric.opensm("Host1", "");
    for (words, row) in [
        ("ib_write_bw -F -n 100 -s 65536", "65536 100 "),
        ("ib_write_lat -F -n 100 -s 8", "8 100 "),
        ("ib_read_bw -F -n 100 -s 65536", "65536 100 "),
        ("ib_send_bw -F -n 100 -s 65536 -c UC", "65536 100 "),
        ("ib_send_bw -F -n 100 -s 1024 -c UD", "1024 100 "),
        ("ib_send_bw -F -n 100 -s 65536 -c XRC", "65536 100 "),
        ("ib_send_lat -F -n 100 -s 64", "64 100 "),
        ("ib_send_lat -F -n 100 -s 64 -c UD", "64 100 "),
        ("ib_atomic_bw -F -n 100", "8 100 "),
    ] {
        let said = pair(&fabric, words, 18632);
        let said: Vec<&str> = said.split_whitespace().collect();
        let said = said.join(" ") + " ";
        assert!(said.contains("Link type : IB "), "{words}: {said}");
        assert!(said.contains(row), "{words}: {said}");
    }
}

#[test]
fn packets_take_another_way_when_a_link_goes_down() {
    if !has("ib_write_bw", "perftest") {
        return;
    }
    let fabric = Fabric::up("ib-reroute", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let before = sent(&fabric, "Spine2:2");
    // More than it can do before the test ends it.
    let words = "ib_write_bw -F -n 50000000 -s 65536 -u 18 -p 18633";
    let mut server = program(&fabric, "Host4", words).spawn().expect("it starts");
    wait_until(|| is_listened_on(18633));
    let mut client = program(&fabric, "Host1", &format!("{words} 127.0.0.1"));
    let mut client = client.spawn().expect("it starts");
    wait_until(|| sent(&fabric, "Spine2:2") > before + 500);
    let before = sent(&fabric, "Spine1:2");
    fabric.done(&["link", "Leaf1:8", "down"]);
    wait_until(|| sent(&fabric, "Spine1:2") > before + 500);
    assert!(client.try_wait().expect("a child").is_none(), "the connection has ended");
    // Together: a server whose client is gone ends by itself.
    signal(&[children(client.id()), children(server.id())].concat(), "KILL");
    let _ = (client.wait(), server.wait());
}

#[test]
fn a_process_that_is_stopped_stops_no_other() {
    if !has("ib_send_bw", "perftest") || !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-stopped", FT4);
    let _opensm = fabric.opensm("Host1", "");
    // A program that has the adapter open, and is stopped: what is for it stays at the switch.
    let words = "ib_send_bw -F -c UD -s 1024 -n 50000000 -p 18634";
    let mut server = program(&fabric, "Host4", words).spawn().expect("it starts");
    wait_until(|| is_listened_on(18634));
    let before = sent(&fabric, "Leaf2:2");
    let mut client = program(&fabric, "Host1", &format!("{words} 127.0.0.1"));
    let mut client = client.spawn().expect("it starts");
    wait_until(|| sent(&fabric, "Leaf2:2") > before + 100);
    let group = children(server.id());
    signal(&group, "STOP");
    wait_until(|| discards(&fabric, "Leaf2:2") > 0);
    let said = pair_hosts(&fabric, ["Host1", "Host3"], "ibv_rc_pingpong -n 50", 18635);
    assert!(said.contains(" iters in "), "{said}");
    signal(&group, "KILL");
    // The client would send for ever, behind a `timeout` that was killed.
    signal(&children(client.id()), "KILL");
    let _ = client.wait();
    let _ = server.wait();
}

/// The processes that a process has started, which are the programs behind `timeout`.
pub(crate) fn children(pid: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn signal(processes: &[String], signal: &str) {
    assert!(!processes.is_empty(), "nothing runs");
    let mut kill = Command::new("kill");
    assert!(kill.arg(format!("-{signal}")).args(processes).status().expect("kill").success());
}

#[test]
fn programs_hear_of_what_the_subnet_manager_does() {
    if !has("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-events", FT4);
    let events = fabric.folder.join("events");
    let file = fs::File::create(&events).expect("a file");
    let mut watch = program(&fabric, "Host4", "stdbuf -oL ibv_asyncwatch");
    let mut watch = watch.stdout(file).spawn().expect("it starts");
    let has_heard = |event: &str| fs::read_to_string(&events).is_ok_and(|e| e.contains(event));
    wait_until(|| has_heard("async event FD"));
    let opensm = fabric.opensm("Host1", "");
    for event in ["LID_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER", "PORT_ACTIVE"] {
        wait_until(|| has_heard(&format!("IBV_EVENT_{event} ")));
    }
    assert!(!has_heard("IBV_EVENT_PORT_ERR "), "too early");
    fabric.done(&["link", "Leaf2:2", "down"]);
    wait_until(|| has_heard("IBV_EVENT_PORT_ERR "));
    drop(opensm);
    signal(&children(watch.id()), "KILL");
    let _ = watch.wait();
}
