//! Programs of librdmacm on hosts of an InfiniBand fabric: addresses lead to ports, opensm tells
//! paths, and requests for connections go to LIDs.

use std::process::{Child, Command};

use super::FT4;
use super::fabric::{Fabric, wait_until};
use super::verbs::{children, has, program, said, signal};
use crate::common;

/// Port spaces, as the upper half of service numbers.
pub(crate) const TCP: u64 = 0x0106 << 16;
const UDP: u64 = 0x0111 << 16;
const IPOIB: u64 = 0x0002 << 16;
const IB: u64 = 0x013f << 16;

/// Whether the programs of librdmacm and opensm are there.
fn has_all() -> bool {
    has("rping", "rdmacm-utils")
}

/// Starts a server, and waits until it listens for a service.
pub(crate) fn serve(fabric: &Fabric, host: &str, words: &str, service: u64) -> Child {
    let server = program(fabric, host, words).spawn().expect("it starts");
    wait_until(|| fabric.is_listened_for(host, service));
    server
}

/// Runs a server on Host4 and a client on Host1 to their end. Returns what both said.
fn pair(fabric: &Fabric, service: u64, server: &str, client: &str) -> [String; 2] {
    let server = serve(fabric, "Host4", server, service);
    let client = said(program(fabric, "Host1", client).output().expect("it ran"));
    [said(server.wait_with_output().expect("it ran")), client]
}

#[test]
fn programs_of_librdmacm_connect_by_address() {
    if !has_all() {
        return;
    }
    let fabric = Fabric::up_with("ib-cm", FT4, &["--addresses", "127.91", "--sm"]);
    let [server, client] =
        pair(&fabric, TCP + 7174, "rping -s -C 5 -v", "rping -c -C 5 -v -a 127.91.0.4");
    assert!(server.contains("server ping data: rdma-ping-4"), "{server}");
    assert!(client.contains("ping data: rdma-ping-4"), "{client}");
    let [server, client] =
        pair(&fabric, TCP + 7471, "ucmatose -c 4 -S 3000", "ucmatose -c 4 -S 3000 -s 127.91.0.4");
    assert!(server.contains("return status 0") && client.contains("return status 0"));
    let [server, client] =
        pair(&fabric, UDP + 7174, "udaddy -c 2 -S 200", "udaddy -c 2 -S 200 -s 127.91.0.4");
    assert!(server.contains("return status 0"), "{server}");
    assert!(client.contains("return status 0"), "{client}");
    let [_, client] = pair(&fabric, TCP + 7471, "rstream -S 5000", "rstream -S 5000 -s 127.91.0.4");
    assert!(client.contains("Gb/sec"), "{client}");
    // The server of cmtime serves until it is ended.
    let mut server = serve(&fabric, "Host4", "cmtime", TCP + 7471);
    let client = program(&fabric, "Host1", "cmtime -c 10 -s 127.91.0.4").output();
    let client = said(client.expect("it ran"));
    assert!(client.contains("resolve route"), "{client}");
    end(server.id().cast_signed());
    server.wait().expect("it ends");
}

#[test]
fn programs_of_librdmacm_connect_by_gid() {
    if !has_all() {
        return;
    }
    let fabric = Fabric::up_with("ib-gid", FT4, &["--addresses", "127.97", "--sm"]);
    let host4 = "-s fe80::10:7";
    for (service, words, at, expected) in [
        (TCP + 7471, "ucmatose -f gid -c 3 -S 3000", host4, "return status 0"),
        (IB + 7471, "ucmatose -f gid -P ib", host4, "return status 0"),
        (IB + 7471, "ucmatose -P ib", "-s 127.97.0.4", "return status 0"),
        (UDP + 7174, "udaddy -f gid -c 2 -S 200", host4, "return status 0"),
        (IPOIB + 7174, "udaddy -P ipoib", "-s 127.97.0.4", "return status 0"),
        (TCP + 7471, "rstream -f gid -S 5000", host4, "Gb/sec"),
        (TCP + 7471, "riostream -f gid -S 5000", host4, "Gb/sec"),
    ] {
        let [server, client] = pair(&fabric, service, words, &format!("{words} {at}"));
        assert!(client.contains(expected), "{words}: {client}");
        assert!(server.contains(expected), "{words}: {server}");
    }
    // A server at one GID, and a client that says its own.
    let [_, client] = pair(
        &fabric,
        TCP + 7471,
        "ucmatose -f gid -b fe80::10:7",
        "ucmatose -f gid -b fe80::10:1 -s fe80::10:7",
    );
    assert!(client.contains("return status 0"), "{client}");
    let (text, status) = fabric.run("Host1", "ucmatose -f gid -b fe80::10:7");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("bind address failed: No such device"), "{text}");
    // A GID of another subnet is behind no port, and an unknown one has no path.
    let (text, status) = fabric.run("Host1", "ucmatose -f gid -s fec0::10:7");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("failure getting addr: No such device"), "{text}");
    let (text, _) = fabric.run("Host1", "ucmatose -f gid -s fe80::77");
    assert!(text.contains("RDMA_CM_EVENT_ROUTE_ERROR, error: -22"), "{text}");
}

#[test]
fn perftest_exchanges_over_the_connection_manager() {
    if !has("ib_write_bw", "perftest") {
        return;
    }
    let fabric = Fabric::up_with("ib-cm-perf", FT4, &["--addresses", "127.92", "--sm"]);
    for test in ["ib_write_bw -n 200", "ib_send_bw -n 200", "ib_read_lat -n 200"] {
        let words = format!("{test} -R -p 18700");
        let [_, client] = pair(&fabric, TCP + 18700, &words, &format!("{words} 127.92.0.4"));
        let expected =
            ["Link type : IB", "Data ex. method : rdma_cm", "local address: LID 0x01", "LID 0x08"];
        let client: Vec<&str> = client.split_whitespace().collect();
        let client = client.join(" ");
        for text in expected {
            assert!(client.contains(text), "{test}: {text}: {client}");
        }
    }
}

#[test]
fn commands_of_feroce_connect_by_address() {
    if !has_all() {
        return;
    }
    let fabric = Fabric::up_with("ib-cm-own", FT4, &["--addresses", "127.93", "--sm"]);
    let feroce = common::command().display();
    let (server, client) =
        (format!("{feroce} rping -s -C 3 -v"), format!("{feroce} rping -c -C 3 -v -a 127.93.0.4"));
    let [server, client] = pair(&fabric, TCP + 7174, &server, &client);
    assert!(server.contains("rdma-ping-2") && client.contains("rdma-ping-2"), "{server}{client}");
    // A disk of one host is written by a second and read by a third.
    let serving = format!("{feroce} disk serve --memory 1M --listen 127.93.0.4");
    let mut target = serve(&fabric, "Host4", &serving, TCP + 4420);
    let (from, to) = (fabric.folder.join("from"), fabric.folder.join("to"));
    let data: Vec<u8> = (0..50 * 512).map(|i| (i % 251) as u8).collect();
    std::fs::write(&from, &data).expect("a file");
    let write = format!("{feroce} disk write 127.93.0.4 --offset 8K {}", from.display());
    let (text, status) = fabric.run("Host1", &write);
    assert_eq!(status, 0, "{text}");
    let part = "--offset 8K --length 25600 -o";
    let read = format!("{feroce} disk read 127.93.0.4 {part} {}", to.display());
    let (text, status) = fabric.run("Host2", &read);
    assert_eq!(status, 0, "{text}");
    assert!(std::fs::read(&to).expect("a file") == data, "other bytes");
    signal(&children(target.id()), "KILL");
    target.wait().expect("it ends");
}

#[test]
fn paths_have_the_lids_and_addresses_of_the_topology() {
    if !has_all() {
        return;
    }
    // Host4 has an address of the file, and every port has two LIDs.
    let net = FT4.replace("Hca\t1 \"Host4\"", "address=10.91.0.4\nHca\t1 \"Host4\"");
    assert_ne!(net, FT4);
    let fabric = Fabric::up_with("ib-cm-lmc", &net, &["--addresses", "127.94"]);
    assert!(fabric.line("Host4").contains(" 10.91.0.4 "));
    assert!(fabric.line("Host3").contains(" 127.94.0.3 "));
    let (text, status) = fabric.run("Host1", "rping -c -C 1 -a 10.91.0.4");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("rdma_resolve_route: Resource temporarily unavailable"), "{text}");
    let _opensm = fabric.opensm("Host1", "-l 1");
    let rping = |a: &str| format!("rping -c -C 3 -v -a {a}");
    let [_, client] = pair(&fabric, TCP + 7174, "rping -s -C 3", &rping("10.91.0.4"));
    assert!(client.contains("rdma-ping-2"), "{client}");
    // The GID of a port is an address, too.
    let [_, client] = pair(&fabric, TCP + 7174, "rping -s -a :: -C 3", &rping("fe80::10:7"));
    assert!(client.contains("rdma-ping-2"), "{client}");
    let (text, status) = fabric.run("Host1", "rping -c -C 1 -a 10.91.0.9");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("RDMA_CM_EVENT_ADDR_ERROR, error -113"), "{text}");
    let (text, status) = fabric.run("Host1", "rping -c -C 1 -a fe80::77");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("RDMA_CM_EVENT_ROUTE_ERROR, error -22"), "{text}");
    // No address of this host.
    let (text, status) = fabric.run("Host1", "rping -s -C 1 -a 10.91.0.4");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("rdma_bind_addr: Cannot assign requested address"), "{text}");
}

#[test]
fn a_service_belongs_to_one_process_of_a_host() {
    if !has_all() {
        return;
    }
    let fabric = Fabric::up_with("ib-cm-claim", FT4, &["--addresses", "127.95", "--sm"]);
    let mut server = serve(&fabric, "Host4", "rping -s -P -v", TCP + 7174);
    let (text, status) = fabric.run("Host4", "rping -s -C 1");
    assert_eq!(status, 255, "{text}");
    assert!(text.contains("Address already in use"), "{text}");
    // Two clients are served at the same time, by processes of other hosts and of its own.
    for host in ["Host1", "Host4"] {
        let client = said(
            program(&fabric, host, "rping -c -C 2 -v -a 127.95.0.4").output().expect("it ran"),
        );
        assert!(client.contains("rdma-ping-1"), "{host}: {client}");
    }
    // A host without any program of verbs has a connection manager nevertheless, which answers.
    let output = program(&fabric, "Host1", "rping -c -C 1 -a 127.95.0.3").output().expect("it ran");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{text}");
    let (text, _) = fabric.run("Host1", "udaddy -s 127.95.0.3");
    assert!(text.contains("RDMA_CM_EVENT_UNREACHABLE, error: 1"), "{text}");
    // A process of the host that does not listen either rejects the request.
    let mut other = program(&fabric, "Host4", "rping -c -C 1 -a 127.95.0.4 -p 9");
    let output = other.output().expect("it ran");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{text}");
    let pid = server.id().cast_signed();
    end(pid);
    server.wait().expect("it ends");
    wait_until(|| !fabric.is_listened_for("Host4", TCP + 7174));
}

#[test]
fn groups_are_joined_through_subnet_administration() {
    if !has("mckey", "rdmacm-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-mcast", FT4, &["--addresses", "127.96", "--sm"]);
    let group = "ff12:4001:ffff::f01:203";
    assert_eq!(ports(&fabric, "Leaf2"), None);
    let feroce = common::command().display();
    let receive = |host: &str, command: &str, address: &str| {
        let command = format!("{command} -m 239.1.2.3 -b {address}");
        program(&fabric, host, &command).spawn().expect("it starts")
    };
    // Two programs of one host, and one of a host behind the same switch.
    let receivers = [
        receive("Host4", "mckey", "127.96.0.4"),
        receive("Host4", &format!("{feroce} mckey"), "127.96.0.4"),
        receive("Host3", "mckey", "127.96.0.3"),
    ];
    // Ports 1 and 2.
    wait_until(|| ports(&fabric, "Leaf2").as_deref() == Some("0006"));
    wait_until(|| fabric.programs("Host4") >= 2);
    let sender = program(&fabric, "Host1", "mckey -m 239.1.2.3 -b 127.96.0.1 -s").output();
    let sender = said(sender.expect("it ran"));
    assert!(sender.contains(&format!("joined dgid: {group} mlid 0xc001")), "{sender}");
    for receiver in receivers {
        let text = said(receiver.wait_with_output().expect("it ran"));
        assert!(text.contains(&format!("joined dgid: {group} mlid 0xc001")), "{text}");
        assert!(text.contains("data transfers complete"), "{text}");
    }
    // Every port has left the group, and its switches know that.
    wait_until(|| ports(&fabric, "Leaf1").is_none() && ports(&fabric, "Leaf2").is_none());
    // The port of a program that is killed leaves, too.
    let [mut killed, other] = [("Host3", "127.96.0.3"), ("Host4", "127.96.0.4")]
        .map(|(host, address)| receive(host, "mckey", address));
    wait_until(|| ports(&fabric, "Leaf2").as_deref() == Some("0006"));
    kill(&mut killed);
    wait_until(|| ports(&fabric, "Leaf2").as_deref() != Some("0006"));
    end(other.id().cast_signed());
    let _ = other.wait_with_output();
}

/// What `dump_mfts` prints on ibsim when all four hosts have joined the group of broadcasts of
/// IPoIB.
const TABLES: &str = include_str!("mfts.txt");

#[test]
fn tables_of_groups_are_as_on_ibsim() {
    if !has("mckey", "rdmacm-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-mfts", FT4, &["--addresses", "127.102", "--sm"]);
    let mut members = ["1", "2", "3", "4"].map(|n| {
        let command = format!("mckey -M ff12:401b:ffff::ffff:ffff -p 2 -b 127.102.0.{n}");
        program(&fabric, &format!("Host{n}"), &command).spawn().expect("it starts")
    });
    // None if a switch did not answer in time.
    let tables = || {
        let (text, status) = fabric.run("Host1", "dump_mfts");
        let lines = text.lines().take_while(|line| !line.is_empty());
        (status == 0).then(|| lines.map(|line| format!("{line}\n")).collect::<String>())
    };
    wait_until(|| tables().as_deref() == Some(TABLES));
    members.iter_mut().for_each(kill);
}

#[test]
fn groups_are_joined_by_gid_as_those_of_ipoib_and_only_to_send() {
    if !has("mckey", "rdmacm-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-mgid", FT4, &["--addresses", "127.98", "--sm"]);
    for (group, receives, sends) in [
        ("ff12:4001:ffff::7", "mckey -M ff12:4001:ffff::7", ""),
        // A group of IPoIB that opensm makes, whose queue key only programs of IPoIB have.
        ("ff12:401b:ffff::1", "mckey -M ff12:401b:ffff::1 -p 2", ""),
        ("ff12:401b:ffff::f01:204", "mckey -m 239.1.2.4 -p 2", ""),
        ("ff12:4001:ffff::f01:205", "mckey -m 239.1.2.5", "-o"),
    ] {
        // Two, because opensm writes no table for one member.
        let receivers = ["3", "4"].map(|n| {
            let command = format!("{receives} -b 127.98.0.{n}");
            program(&fabric, &format!("Host{n}"), &command).spawn().expect("it starts")
        });
        wait_until(|| has_members(&fabric, "Leaf2") == Some(true));
        let sender = format!("{receives} -b 127.98.0.1 -s {sends}");
        let sender = said(program(&fabric, "Host1", &sender).output().expect("it ran"));
        let received = receivers.map(|it| said(it.wait_with_output().expect("it ran")));
        for text in received.into_iter().chain([sender]) {
            assert!(text.contains(&format!("joined dgid: {group} mlid 0xc0")), "{text}");
            assert!(text.contains("data transfers complete"), "{text}");
        }
        wait_until(|| has_members(&fabric, "Leaf2") == Some(false));
    }
    // A program with another queue key is refused.
    let (text, _) = fabric.run("Host1", "mckey -M ff12:401b:ffff::1 -b 127.98.0.1 -s");
    assert!(text.contains("RDMA_CM_EVENT_MULTICAST_ERROR, error: -22"), "{text}");
}

#[test]
fn a_member_that_only_sends_receives_nothing() {
    if !has("mckey", "rdmacm-utils") {
        return;
    }
    let fabric = Fabric::up_with("ib-send-only", FT4, &["--addresses", "127.100", "--sm"]);
    let receive = |host: &str, words: &str| {
        let command = format!("mckey -m 239.1.2.3 {words}");
        program(&fabric, host, &command).spawn().expect("it starts")
    };
    let mut deaf = receive("Host4", "-o -b 127.100.0.4");
    let members = [receive("Host3", "-b 127.100.0.3"), receive("Host2", "-b 127.100.0.2")];
    // opensm sends packets to ports that joined only to send (state 8), too: both of Leaf2.
    wait_until(|| ports(&fabric, "Leaf1").is_some());
    wait_until(|| ports(&fabric, "Leaf2").is_some_and(|mask| mask.ends_with('6')));
    let sender = program(&fabric, "Host1", "mckey -m 239.1.2.3 -b 127.100.0.1 -s").output();
    said(sender.expect("it ran"));
    for member in members {
        let text = said(member.wait_with_output().expect("it ran"));
        assert!(text.contains("data transfers complete"), "{text}");
    }
    let reached = || {
        let command = format!("perfquery -x {} 2", lid(&fabric, "Leaf2"));
        let (text, status) = fabric.run("Host1", &command);
        assert_eq!(status, 0, "{text}");
        let line = text.lines().find_map(|line| line.strip_prefix("PortMulticastXmitPkts:"));
        line.expect("a count").trim_start_matches('.').parse::<u64>().expect("a number")
    };
    wait_until(|| reached() >= 10);
    // A program that had received ten messages would have ended; this one's queue pair is in no
    // group.
    assert!(deaf.try_wait().expect("a child").is_none(), "it waits for messages");
    kill(&mut deaf);
}

/// Whether a switch forwards packets of some group; `None` if it did not answer in time.
fn has_members(fabric: &Fabric, switch: &str) -> Option<bool> {
    let (text, status) = fabric.run("Host1", &format!("ibroute -M -n {}", lid(fabric, switch)));
    (status == 0).then(|| text.lines().any(|line| line.starts_with("0xc")))
}

/// The ports by which a switch forwards the packets of the group: a mask.
fn ports(fabric: &Fabric, switch: &str) -> Option<String> {
    let (text, status) = fabric.run("Host1", &format!("ibroute -M -n {}", lid(fabric, switch)));
    assert_eq!(status, 0, "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix("0xc001"))?;
    Some(line.trim().to_owned())
}

fn lid(fabric: &Fabric, node: &str) -> String {
    fabric.line(node).split_whitespace().nth(3).expect("a LID").to_owned()
}

/// Kills a program behind `timeout`, which cannot say goodbye.
fn kill(child: &mut Child) {
    signal(&children(child.id()), "KILL");
    child.wait().expect("it ends");
}

/// Ends what a test has started with `timeout`, which passes the signal on.
fn end(pid: i32) {
    let status = Command::new("kill").arg(pid.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()));
}
