//! Debian's opensm and infiniband-diags, as they are, on InfiniBand fabrics in a process of ours.
//!
//! What opensm writes is compared with what it wrote on ibsim (`crates/subnet/examples/opensm`),
//! what the diagnostics print with what they printed on another implementation of a fabric.

mod applications;
mod captures;
mod connections;
mod diags;
mod engines;
mod fabric;
mod lanes;
mod library;
mod parts;
mod verbs;

use std::fs;
use std::path::Path;

use fabric::{Fabric, end, installed, wait_until};

const FT4: &str = include_str!("../../subnet/tests/nets/ft4.net");
const RING: &str = include_str!("../../subnet/tests/nets/ring6.net");
/// Commands of infiniband-diags: each with its output and its exit status.
const DIAGS: &str = include_str!("infiniband/diags.txt");

/// Compares the files of opensm with those that it wrote on ibsim.
fn compare(test: &str, net: &str, options: &str) {
    if installed("opensm").is_none() {
        return;
    }
    let fabric = Fabric::up(test, net);
    let _opensm = fabric.opensm("Host1", options);
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../subnet/examples/opensm/recorded")
        .join(test.trim_start_matches("ib-"));
    let mut compared = 0;
    for entry in fs::read_dir(recorded).expect("a folder") {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).expect("an entry");
        let (ours, theirs) = (fabric.folder.join("Host1").join(&name), path);
        // opensm writes its neighbors in the order of a hash table, whose chains follow the order
        // in which nodes happened to answer.
        let lines = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if name == "neighbors" {
                lines.sort_unstable();
            }
            lines
        };
        let expected = lines(&theirs);
        wait_until(|| lines(&ours).len() >= expected.len());
        assert_eq!(lines(&ours), expected, "{}", name.display());
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn opensm_routes_a_fat_tree_as_on_ibsim() {
    compare("ib-ft4", FT4, "");
}

#[test]
fn opensm_gives_several_lids_as_on_ibsim() {
    compare("ib-ft4-lmc1", FT4, "-l 1");
}

#[test]
fn opensm_routes_a_ring_as_on_ibsim() {
    compare("ib-ring6-minhop", RING, "");
}

#[test]
fn opensm_routes_a_ring_without_credit_loops_as_on_ibsim() {
    compare("ib-ring6-lash", RING, "-R lash -Q");
}

/// Runs recorded commands on a fabric with LIDs. Returns how many there were.
///
/// `check` gets each command, what it printed with its exit status, and what was recorded.
fn replay(test: &str, recorded: &str, mut check: impl FnMut(&str, &str, &str)) -> Option<usize> {
    installed("opensm").and_then(|()| installed("ibnetdiscover"))?;
    let fabric = Fabric::up(test, FT4);
    let _opensm = fabric.opensm("Host1", "");
    let mut count = 0;
    for record in recorded.split("\n$ ") {
        let (title, expected) = record.split_once('\n').expect("a title");
        let (command, host) = title.trim_start_matches("$ ").split_once("   (on ").expect("a host");
        let (said, status) = fabric.run(host.trim_end_matches(')'), command);
        check(command, &format!("{said}rc={status}"), expected);
        count += 1;
    }
    Some(count)
}

#[test]
fn diagnostics_print_what_they_printed_elsewhere() {
    let count = replay("ib-diags", DIAGS, |command, said, expected| {
        assert_eq!(printed(said), printed(expected), "{command}");
    });
    assert!(count.is_none_or(|count| count == 68), "{count:?}");
}

/// What was printed, without times and process ids.
fn printed(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.contains("generated on"));
    let lines = lines.map(|line| match line.split_once(": [") {
        Some((before, rest)) => {
            let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "PID".contains(c));
            format!("{before}: [{after}")
        }
        None => line.to_owned(),
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn long_answers_of_subnet_administration_arrive_whole() {
    if installed("opensm").is_none() || installed("saquery").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-sa", FT4);
    let _opensm = fabric.opensm("Host1", "");
    // Paths from each of eight nodes to each: messages of many segments, from the port itself and
    // from another one.
    for host in ["Host1", "Host4"] {
        let (said, status) = fabric.run(host, "saquery PR");
        assert_eq!(status, 0, "{said}");
        assert_eq!(said.matches("PathRecord dump").count(), 64, "{said}");
    }
    let (said, status) = fabric.run("Host3", "saquery VLAR");
    assert_eq!((status, said.matches("VLArbTableRecord dump").count()), (0, 160), "{said}");
}

#[test]
fn programs_of_vendors_classes_reach_each_other() {
    if installed("opensm").is_none() || installed("ibping").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-ping", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let server = fabric.start("Host4", "ibping -S");
    wait_until(|| fabric.programs("Host4") > 0);
    let (said, status) = fabric.run("Host1", "ibping -c 3 -L 8");
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("3 packets transmitted, 3 received, 0% packet loss"), "{said}");
    // The server is killed: its port closes, and requests are refused.
    end(server);
    wait_until(|| fabric.programs("Host4") == 0);
    let (said, _) = fabric.run("Host1", "ibping -c 1 -L 8");
    assert!(said.contains(" 0 received"), "{said}");
}

#[test]
fn osmtest_passes() {
    if installed("opensm").is_none() || installed("osmtest").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-osmtest", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let (said, status) = fabric.run("Host1", "osmtest -f c -i osmtest.dat");
    assert_eq!(status, 0, "{said}");
    let (said, status) = fabric.run("Host1", "osmtest -f v -i osmtest.dat");
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("PASS") && !said.contains("FAIL"), "{said}");
}

#[test]
fn ibdiagnet_finds_nothing_wrong() {
    if installed("opensm").is_none() || installed("ibdiagnet").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-diagnet", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let (said, status) = fabric.run("Host1", "ibdiagnet -o found");
    assert_eq!(status, 0, "{said}");
    let stages = said.split_once("Stages Status Report:").expect("a report").1;
    let stages: Vec<&str> = stages.lines().filter(|line| line.ends_with("0      0     ")).collect();
    assert_eq!(stages.len(), 6, "{said}");
    // It warns of one thing: that it has no topology to compare with.
    assert_eq!((said.matches("-E-").count(), said.matches("-W-").count()), (0, 1), "{said}");
    assert!(said.contains("-I- Subnet: IPv4 PKey:0x7fff QKey:0x00000b1b MTU:2048Byte rate:10Gbps"));
    // It reads the tables that opensm wrote.
    let ports = |path: &str| -> Vec<String> {
        let text = fs::read_to_string(fabric.folder.join(path)).expect("a file");
        let entries = text.lines().filter(|line| line.starts_with("0x"));
        entries.map(|line| line.chars().take(12).collect()).collect()
    };
    let found = ports("found/ibdiagnet.fdbs");
    assert_eq!((found.len(), &found), (32, &ports("Host1/opensm.fdbs")));
}

/// Eight leaves with 16 hosts each, all connected with each of eight spines.
fn tree128() -> String {
    let mut text = String::new();
    for leaf in 0..8 {
        text += &format!("Switch 24 \"Leaf{leaf}\"\n");
        (1..=16).for_each(|n| text += &format!("[{n}] \"Host{}\"[1]\n", leaf * 16 + n));
        (0..8).for_each(|n| text += &format!("[{}] \"Spine{n}\"[{}]\n", 17 + n, leaf + 1));
    }
    (0..8).for_each(|n| text += &format!("Switch 8 \"Spine{n}\"\n"));
    (1..=128).for_each(|n| text += &format!("Hca 1 \"Host{n}\"\n"));
    text
}

#[test]
fn a_hundred_and_twenty_eight_hosts_come_up() {
    if installed("opensm").is_none() || installed("ibnetdiscover").is_none() {
        return;
    }
    let fabric = Fabric::up_with("ib-128", &tree128(), &["--sm"]);
    let (said, status) = fabric.run("Host77", "ibhosts");
    assert_eq!((status, said.lines().count()), (0, 128), "{said}");
    let (said, status) = fabric.run("Host77", "ibswitches");
    assert_eq!((status, said.lines().count()), (0, 16), "{said}");
    assert_eq!(fabric.done(&["status"]).matches(" active ").count(), 2 * (128 + 64));
}

#[test]
fn a_link_that_goes_down_is_routed_around() {
    if installed("opensm").is_none() || installed("ibtracert").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-link", FT4);
    let _opensm = fabric.opensm("Host1", "");
    let passes = |spine: &str| fabric.run("Host1", "ibtracert 1 8").0.contains(spine);
    assert!(passes("Spine2") && !passes("Spine1"));
    fabric.done(&["link", "Leaf1:8", "down"]);
    wait_until(|| passes("Spine1"));
    fabric.done(&["link", "Leaf1:8", "up"]);
    wait_until(|| passes("Spine2"));
    let (code, said) = fabric.refused(&["link", "Leaf1:9", "down"]);
    assert!(code == Some(2) && said.contains("Leaf1:9"), "{said}");
    let (code, said) = fabric.refused(&["link", "Leaf1:8", "loss", "1%"]);
    assert!(code == Some(2) && said.contains("down"), "{said}");
}

#[test]
fn a_second_subnet_manager_takes_over_from_one_that_is_killed() {
    if installed("opensm").is_none() || installed("sminfo").is_none() {
        return;
    }
    let fabric = Fabric::up("ib-handover", FT4);
    let master = fabric.opensm("Host1", "-p 9");
    // A standby asks every 10 s by default, and believes it after four times without an answer.
    let quick = fabric.folder.join("quick.conf");
    fs::write(&quick, "sminfo_polling_timeout 200\npolling_retry_number 2\n").expect("a file");
    let _standby = fabric.start_opensm("Host4", &format!("-p 2 -F {}", quick.display()));
    let is_manager = |host: &str| fabric.line(host).contains("subnet manager");
    wait_until(|| is_manager("Host1") && is_manager("Host4"));
    let state = |lid: u16| fabric.run("Host2", &format!("sminfo {lid}")).0;
    wait_until(|| state(8).contains("SMINFO_STANDBY"));
    assert!(state(1).contains("SMINFO_MASTER"), "{}", state(1));
    master.kill();
    wait_until(|| !is_manager("Host1"));
    wait_until(|| state(8).contains("SMINFO_MASTER"));
}

#[test]
fn the_fabric_starts_and_ends_a_subnet_manager() {
    if installed("opensm").is_none() || installed("ibstat").is_none() {
        return;
    }
    let fabric = Fabric::up_with("ib-sm", FT4, &["--sm=Host3"]);
    assert!(fabric.line("Host3").contains("subnet manager"), "{}", fabric.line("Host3"));
    let (said, status) = fabric.run("Host2", "ibstat -s");
    assert_eq!(status, 0, "{said}");
    let (said, status) = fabric.run("Host2", "ibstatus");
    assert_eq!(status, 0, "{said}");
    for line in [
        "state:\t\t 4: ACTIVE",
        "phys state:\t 5: LinkUp",
        "rate:\t\t 10 Gb/sec (4X SDR)",
        "link_layer:\t InfiniBand",
        "base lid:\t 0x",
        "fe80:0000:0000:0000:0000:0000:0010:0003",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let process = fabric.manager_pid();
    fabric.done(&["down"]);
    assert!(!Path::new(&format!("/proc/{process}")).exists(), "opensm still runs");
}

#[test]
fn wrong_topologies_and_hosts_are_refused() {
    let fabric = Fabric::new("ib-wrong");
    for (text, line) in [
        ("Switch 8 \"A\"\n[1] \"B\"[1]\n", "line 2: no node has the name \"B\""),
        ("Switch eight \"A\"\n", "line 1: a node has 1 to 254 ports"),
        ("[topology]\n", "line 1: "),
    ] {
        fs::write(fabric.folder.join("wrong.net"), text).expect("a file");
        let (code, said) = fabric.refused(&["up", "wrong.net"]);
        assert!(code == Some(2) && said.contains(line), "{said}");
    }
    fs::write(fabric.folder.join("ft4.net"), FT4).expect("a file");
    let (code, said) = fabric.refused(&["up", "--sm=Host9", "ft4.net"]);
    assert!(code == Some(2) && said.contains("no host Host9"), "{said}");
    fabric.done(&["up", "ft4.net"]);
    let (code, said) = fabric.refused(&["run", "-n", "Leaf1", "--", "true"]);
    assert!(code == Some(2) && said.contains("Host1, Host2, Host3, Host4"), "{said}");
}
