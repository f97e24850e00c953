//! Captures of InfiniBand packets: of a program, and of a port of the fabric. Wireshark dissects
//! them, and so does `feroce decode`.

use std::path::Path;
use std::process::{Command, Stdio};

use super::FT4;
use super::connections::{TCP, serve};
use super::fabric::{Fabric, wait_until};
use super::verbs::{has, program, said};
use crate::common;

/// What `feroce decode` says of a capture.
fn decoded(file: &Path) -> String {
    let mut decode = Command::new(common::command());
    said(decode.arg("decode").arg(file).output().expect("it ran"))
}

/// The packets of a capture that match a filter of Wireshark; `None` if it is not there.
fn filtered(file: &Path, filter: &str) -> Option<usize> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "fields", "-e", "frame.number"]);
    let output = common::output(&mut tshark, "tshark")?;
    Some(said(output).lines().count())
}

/// Checks that Wireshark understands every packet, and finds some that match the filter.
fn check(file: &Path, filter: &str) {
    let Some(malformed) = filtered(file, "_ws.malformed || !infiniband") else { return };
    assert_eq!(malformed, 0, "{}", file.display());
    assert!(filtered(file, filter).is_some_and(|found| found > 0), "{filter}");
}

#[test]
fn a_program_is_captured() {
    if !has("rping", "rdmacm-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-pcap", FT4, &["--addresses", "127.97", "--sm"]);
    let server = serve(&fabric, "Host4", "rping -s -C 3", TCP + 7174);
    let capture = fabric.folder.join("client.pcapng");
    let name = capture.display().to_string();
    let client = ["run", "-n", "Host1", "--pcap", &name, "--", "timeout", "60", "rping", "-c"];
    let mut client = fabric.command(&[&client[..], &["-C", "3", "-a", "127.97.0.4"]].concat());
    said(client.output().expect("it ran"));
    said(server.wait_with_output().expect("it ran"));
    let text = decoded(&capture);
    for expected in ["CM REQ", "CM REP", "CM RTU", "CM DREQ", "LID 1 → LID 8", "LID 8 → LID 1"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("BAD ICRC"), "a checksum is wrong: {text}");
    // The request is in the subnet, and names its LIDs.
    check(
        &capture,
        "infiniband.cm.req.serviceid.dport == 7174 || infiniband.mad.attributeid == 16",
    );
    check(&capture, "infiniband.lrh.slid == 1 && infiniband.lrh.dlid == 8");
    check(&capture, "infiniband.reth");
}

#[test]
fn a_port_is_captured_with_its_management() {
    if !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-tap", FT4, &["--sm"]);
    let (code, text) = fabric.refused(&["pcap", "Leaf1:5", "no.pcapng"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no link at a port Leaf1:5"), "{text}");
    let capture = |port: &str, count: &str, name: &str| {
        let mut command = fabric.command(&["pcap", "-c", count, port, name]);
        command.stdout(Stdio::null()).spawn().expect("it starts")
    };
    // Datagrams of the tools, by LID and by directed route, and of subnet administration.
    let mut tap = capture("Leaf1:2", "40", "tools.pcapng");
    let mut is_over = || tap.try_wait().expect("a process").is_some();
    let tools =
        ["smpquery nodeinfo -D 0,1", "smpquery portinfo 8 1", "saquery PR", "perfquery 8 1"];
    for turn in 0.. {
        if is_over() {
            break;
        }
        let (text, status) = fabric.run("Host2", tools[turn % tools.len()]);
        assert_eq!(status, 0, "{text}");
    }
    let file = fabric.folder.join("tools.pcapng");
    let text = decoded(&file);
    for expected in ["SubnGet(NodeInfo) by directed route", "SubnGetResp(PortInfo)", "SubnAdm"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("BAD ICRC"), "a checksum is wrong: {text}");
    check(&file, "infiniband.lrh.vl == 15 && infiniband.mad.mgmtclass == 0x81");
    check(&file, "infiniband.mad.mgmtclass == 3");
    // Data between two hosts, at a switch on its way.
    let mut tap = capture("Leaf2:2", "20", "data.pcapng");
    let words = "ibv_rc_pingpong -n 50 -p 18701";
    let mut is_over = || tap.try_wait().expect("a process").is_some();
    for _ in 0..20 {
        if is_over() {
            break;
        }
        let server = program(&fabric, "Host4", words).spawn().expect("it starts");
        wait_until(|| super::verbs::is_listened_on(18701));
        said(program(&fabric, "Host1", &format!("{words} 127.0.0.1")).output().expect("it ran"));
        said(server.wait_with_output().expect("it ran"));
    }
    wait_until(ended(tap));
    check(&fabric.folder.join("data.pcapng"), "infiniband.lrh.slid == 1 && infiniband.bth");
}

/// Whether a process has ended.
fn ended(child: std::process::Child) -> impl Fn() -> bool {
    let child = std::cell::RefCell::new(child);
    move || child.borrow_mut().try_wait().expect("a process").is_some()
}
