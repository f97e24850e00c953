//! Virtual lanes, credits and lifetimes of packets in real time, with programs of perftest.

use std::fs;
use std::process::Child;

use super::fabric::{Fabric, Running, wait_until};
use super::verbs::{children, discards, has, is_listened_on, pair, program, sent, signal, waits};
use super::{FT4, RING};

/// Settings of opensm by which packets wait at ports of switches for ever.
const PATIENT: &str = "head_of_queue_lifetime 0x14\nleaf_head_of_queue_lifetime 0x14\n";
/// And by which they wait for 67 ms, which is less than the fabric lets them wait, 100 ms.
const IMPATIENT: &str = "head_of_queue_lifetime 0x0e\nleaf_head_of_queue_lifetime 0x0e\n";

/// Starts opensm with settings of a file.
fn opensm(fabric: &Fabric, settings: &str, options: &str) -> Running {
    let file = fabric.folder.join("opensm.conf");
    fs::write(&file, settings).expect("a file");
    fabric.opensm("Host1", &format!("-F {} {options}", file.display()))
}

/// A counter of a port, as perfquery prints it.
fn counted(fabric: &Fabric, lid: u16, port: u8, counter: &str) -> u64 {
    let (text, status) = fabric.run("Host1", &format!("perfquery {lid} {port}"));
    assert_eq!(status, 0, "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{counter}:")));
    let count = line.unwrap_or_else(|| panic!("{counter}: {text}")).trim_start_matches('.');
    count.parse().expect("a number")
}

/// Programs of perftest that end with the test.
struct Programs(Vec<Child>);

impl Drop for Programs {
    fn drop(&mut self) {
        // Together: a program whose peer is gone may end by itself. One that has ended before has
        // failed the test already.
        let running = self.0.iter().flat_map(|process| children(process.id())).collect::<Vec<_>>();
        if !running.is_empty() {
            signal(&running, "KILL");
        }
        for process in &mut self.0 {
            let _ = process.wait();
        }
    }
}

/// Datagrams from one host to another without end, on a service level. The programs are the
/// server and the client. They sleep while they wait (`-e`): twelve that poll would keep each other
/// from sending.
fn flood(fabric: &Fabric, [from, to]: [&str; 2], level: u8, port: u16) -> Programs {
    let words = format!("ib_send_bw -F -e -c UD -s 2048 -n 50000000 -S {level} -p {port}");
    let server = program(fabric, to, &words).spawn().expect("it starts");
    let mut programs = Programs(vec![server]);
    wait_until(|| is_listened_on(port));
    let client = program(fabric, from, &format!("{words} 127.0.0.1"));
    programs.0.push({ client }.spawn().expect("it starts"));
    programs
}

#[test]
fn a_lane_that_is_stuck_stops_no_other() {
    if !has("ib_send_bw", "perftest") || !has("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let fabric = Fabric::up("ib-lanes", FT4);
    let _opensm = opensm(&fabric, PATIENT, "");
    let before = sent(&fabric, "Leaf2:2");
    let programs = flood(&fabric, ["Host1", "Host4"], 0, 18640);
    wait_until(|| sent(&fabric, "Leaf2:2") > before + 500);
    let server = children(programs.0[0].id());
    signal(&server, "STOP");
    // The port of Host1 has packets, and no credits: every buffer on the way is full.
    wait_until(|| {
        let before = waits(&fabric, "Host1:1");
        waits(&fabric, "Host1:1") > before && waits(&fabric, "Host1:1") > 25_000_000
    });
    let stuck = sent(&fabric, "Leaf1:8");
    for level in [1, 2] {
        let said = pair(&fabric, &format!("ibv_rc_pingpong -n 100 -l {level}"), 18641);
        assert!(said.contains(" iters in "), "{said}");
    }
    assert!(sent(&fabric, "Leaf1:8") >= stuck + 200, "they took the same links");
    // Leaf2 has LID 3. Nothing was dropped for want of credits.
    assert!(counted(&fabric, 3, 2, "PortXmitWait") > 1_000_000);
    assert_eq!(counted(&fabric, 3, 2, "PortXmitDiscards"), 0);
    // What is behind it on its own lane waits.
    let waiting = sent(&fabric, "Leaf2:2");
    let before = waits(&fabric, "Leaf2:2");
    wait_until(|| waits(&fabric, "Leaf2:2") > before + 25_000_000);
    assert_eq!(sent(&fabric, "Leaf2:2"), waiting);
    signal(&server, "CONT");
    wait_until(|| sent(&fabric, "Leaf2:2") > waiting + 500);
    assert_eq!(discards(&fabric, "Leaf2:2"), 0);
}

/// A ring of six switches whose links carry a packet of 2 KiB in 4 ms, and datagrams from each host
/// to the next but one. Receive buffers of switches have 60 packets of a host, so that a sender may
/// wait for a processor for a quarter of a second, and the links still have packets of it.
struct Ring {
    fabric: Fabric,
    _opensm: Running,
    _programs: Vec<Programs>,
}

impl Ring {
    /// The servers take six ports from `port` on; tests that run side by side have others.
    fn new(name: &str, settings: &str, options: &str, (levels, port): ([u8; 6], u16)) -> Self {
        let fabric = Fabric::up(name, RING);
        let opensm = opensm(&fabric, settings, options);
        for switch in 1..=6 {
            // Port 2 leads to the next switch.
            fabric.done(&["link", &format!("Sw{switch}:2"), "rate", "4M"]);
        }
        let flows = levels.into_iter().enumerate().map(|(n, level)| {
            let (from, to) = (format!("Host{}", n + 1), format!("Host{}", (n + 2) % 6 + 1));
            flood(&fabric, [&from, &to], level, port + n as u16)
        });
        let programs = flows.collect();
        Self { fabric, _opensm: opensm, _programs: programs }
    }

    /// Packets that each host has received.
    fn received(&self) -> Vec<u64> {
        (1..=6).map(|n| sent(&self.fabric, &format!("Sw{n}:1"))).collect()
    }

    /// The ports that wait for each other.
    fn circle(&self) -> Option<String> {
        let status = self.fabric.done(&["status"]);
        let line = status.lines().find_map(|line| line.strip_prefix("credit loop: "));
        line.map(str::to_owned)
    }

    /// Waits until every host has received so many more packets, or there is a circle.
    fn goes_on(&self, packets: u64) -> bool {
        let before = self.received();
        let has_more =
            || self.received().iter().zip(&before).all(|(now, then)| *now > then + packets);
        wait_until(|| has_more() || self.circle().is_some());
        has_more()
    }
}

#[test]
fn tables_with_a_loop_of_credits_deadlock() {
    if !has("ib_send_bw", "perftest") {
        return;
    }
    let ring = Ring::new("ib-loop", PATIENT, "", ([0; 6], 18650));
    wait_until(|| ring.circle().is_some());
    let circle = ring.circle().expect("a circle");
    for switch in 1..=6 {
        assert!(circle.contains(&format!("Sw{switch}:")), "{circle}");
    }
    // Hosts have what is in their buffers; then nothing moves any more.
    let before = waits(&ring.fabric, "Sw1:2");
    let received = ring.received();
    wait_until(|| waits(&ring.fabric, "Sw1:2") > before + 250_000_000);
    assert_eq!(ring.received(), received);
}

#[test]
fn the_lifetime_of_packets_ends_a_deadlock() {
    if !has("ib_send_bw", "perftest") {
        return;
    }
    let ring = Ring::new("ib-life", IMPATIENT, "", ([0; 6], 18710));
    let dropped = || (1..=6).map(|n| discards(&ring.fabric, &format!("Sw{n}:2"))).sum::<u64>();
    wait_until(|| dropped() > 0);
    let before = ring.received();
    wait_until(|| ring.received().iter().zip(&before).all(|(now, then)| now > then));
}

#[test]
fn service_levels_of_lash_prevent_a_deadlock() {
    if !has("ib_send_bw", "perftest") {
        return;
    }
    // The service levels that `saquery PR` prints for these paths.
    let ring = Ring::new("ib-lash", PATIENT, "-R lash -Q", ([0, 1, 1, 2, 1, 2], 18720));
    assert!(ring.goes_on(1000), "{:?}", ring.circle());
    assert_eq!(ring.circle(), None);
}
