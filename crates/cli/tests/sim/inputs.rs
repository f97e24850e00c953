//! Inputs: what is read, and how what is wrong with them is reported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{INCAST, SQUARE, ns3, run, scenario, scratch, stderr};

/// A scenario is refused, and the message has its file, the line, and what is wrong.
fn refused(dir: &Path, text: &str, what: &str) {
    let output = run(&["run", &scenario(dir, text)]);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let error = stderr(&output);
    assert!(error.contains(&format!("scenario.toml:{what}")), "{what}: {error}");
}

#[test]
fn inputs_of_ns3_give_its_results() {
    let dir = scratch("ns3");
    let (input, out) = (ns3("s1_65536"), dir.join("out"));
    let paths = [input.to_str().expect("UTF-8"), out.to_str().expect("UTF-8")];
    let output = run(&["run", paths[0], "-o", paths[1]]);
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |path: PathBuf| fs::read_to_string(path).expect("completion times");
    assert_eq!(read(out.join("fct.txt")), read(input.join("fct.txt")));

    let output = run(&["compare", "--json", paths[1], paths[0]]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["common"], &report["ratio"]["p99"]), (&1.into(), &1.0.into()));
}

#[test]
fn wrong_inputs_are_refused_with_what_is_wrong() {
    let dir = scratch("wrong");
    let refuse = |text: &str, what: &str| refused(&dir, text, what);
    refuse(&INCAST.replace("\"100G\"", "\"fast\""), "5: \"fast\" is not a rate, such as \"100G\"");
    refuse(&INCAST.replace("kind = \"star\"", "kind = \"moon\""), "3: unknown variant `moon`");
    refuse(&INCAST.replace("hosts = 5\n", ""), "2: topology.hosts: missing");
    refuse(&INCAST.replace("hosts = 5", "hosts = 5\nk = 4"), "5: topology.k: not for this kind");
    refuse(&INCAST.replace("hosts = 5", "hosts = 999999"), "4: topology.hosts: at most");
    refuse(&INCAST.replace("congestion", "kongestion"), "12: unknown field `kongestion`");
    refuse(&INCAST.replace("to = 4", "to = 5"), "14: host 5; hosts are 0 to 4");
    refuse(&INCAST.replace("to = 4", "to = \"h5\""), "14: no host has the name h5");
    refuse(&INCAST.replace("kmin = \"50K\"", "kmin = \"1M\""), "9: switch.ecn: kmin <= kmax");
    refuse(&INCAST.replace("to = 4", "to = 4.5"), "16: expected a whole number, or a word in");
    refuse(&INCAST.replace("kmin = \"50K\"", "kmin = 0.5"), "9: expected \"off\", \"by-rate\", or");
    refuse("[topology]\nkind = ", "2: ");
    refuse("[topology]\nkind = \"star\"\nhosts = 2\nrate = \"1G\"\ndelay = \"1us\"\n", " no flow");
    let output = run(&["run", "no-such-scenario.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no-such-scenario.toml: No such file"), "{}", stderr(&output));
    let output = run(&["compare", &scenario(&dir, "1 2 3\n"), "."]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("scenario.toml:1: expected eight columns of a flow"));
}

#[test]
fn nodes_and_links_can_be_given_one_by_one() {
    let dir = scratch("custom");
    let output = run(&["run", "--json", &scenario(&dir, SQUARE)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let seconds = summary["simulated_s"].as_f64().expect("a number");
    assert!(seconds > 0.001, "twice the delay of the middle link: {seconds}");
    let queues = summary["queues"].as_array().expect("a list");
    assert!(queues.iter().any(|queue| queue["port"] == "left:1"), "{summary}");
    // The same from a file of its own, which is found beside the scenario.
    let (wiring, flows) = SQUARE.split_once("[[flow]]").expect("a flow");
    fs::write(dir.join("square.toml"), wiring).expect("a topology");
    let named = format!("[topology]\nkind = \"file\"\nfile = \"square.toml\"\n[[flow]]{flows}");
    let output = run(&["run", "--json", &scenario(&dir, &named)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let same: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&same["slowdown"], &same["events"]), (&summary["slowdown"], &summary["events"]));
}

#[test]
fn topologies_that_cannot_be_are_refused_with_the_line() {
    let dir = scratch("unsound");
    let refuse = |text: &str, what: &str| refused(&dir, text, what);
    refuse(
        &SQUARE.replace("name = \"bob\"", "name = \"alice\""),
        "10: node.name: two nodes have the name alice",
    );
    refuse(
        &SQUARE.replace("ends = [\"left\", ", "ends = [\"middle\", "),
        "28: no node has the name middle",
    );
    refuse(
        &SQUARE.replace("ends = [\"left\", ", "ends = [\"right\", "),
        "28: link: from right to itself",
    );
    refuse(&SQUARE.replace("ends = [\"left\", ", "ends = [\"bob\", "), "10: host bob has 2 links");
    refuse(&SQUARE.replace("name = \"bob\"", "name = \"b:1\""), "10: node.name: \"b:1\" is empty");
    refuse(&SQUARE.replace("rate = \"10G\"\n", ""), "20: link.rate: missing");
    refuse(&SQUARE.replace("delay = \"500us\"", "loss = 1.5"), "30: 1.5 is not between 0 and 1");
    let lost = SQUARE.replace("delay = \"500us\"", "loss = \"101%\"");
    refuse(&lost, "30: \"101%\" is not between \"0%\" and \"100%\"");
    let apart = SQUARE.replace("[[link]]\nends = [\"left\", \"right\"]\ndelay = \"500us\"\n", "");
    refuse(&apart, "2: no path leads from host bob to host alice");
    let route =
        |via: &str| format!("{SQUARE}[[route]]\nat = \"right\"\nto = \"bob\"\nvia = [{via}]\n");
    refuse(&route("\"left\""), "36: packets to host bob would go round: left, right");
    refuse(&route("\"alice\""), "36: route: no link leads from right to alice");
    refuse(&route(""), "36: route: no way from right to bob");
    refuse(&INCAST.replace("kind = \"star\"", "kind = \"file\""), "2: topology.file: missing");
    let file = "[topology]\nkind = \"file\"\nfile = \"cut.txt\"\n";
    fs::write(dir.join("cut.txt"), "3 1 2\n0\n0 1 1Gbps 1us 0\n0 2 1Gbps").expect("a topology");
    refuse(file, "3: ");
    let output = run(&["run", &scenario(&dir, file)]);
    assert!(stderr(&output).contains("cut.txt:4: the file ends before the delay of a link"));
}

const MATRIX: &str = "\
# Two flows, and one that starts when both have arrived.
Nodes 8
Connections 3
Triggers 1
7->0 id 3 trigger 1 size 100000
0->4 id 1 start 0 size 200000 recv_done_trigger 1
1->5 id 2 start 1000000 size 100000 send_done_trigger 1
trigger id 1 barrier count 2
";

const TREE: &str = "\
Nodes 8
Tiers 3
Podsize 4

Tier 0
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 0

Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000

Tier 2
Downlink_speed_Gbps 100
Radix_Down 2
Downlink_Latency_ns 2000
";

#[test]
fn inputs_of_htsim_run_as_they_are() {
    let dir = scratch("htsim");
    let path = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("run.cm"), MATRIX).expect("a matrix");
    fs::write(path("run.topo"), TREE).expect("a topology");
    let output = run(&["run", &path("run.cm"), "-o", &path("out")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let flows = fs::read_to_string(path("out/flows.csv")).expect("flows");
    let column = |line: usize, column: usize| -> u64 {
        let line = flows.lines().nth(line + 1).expect("a flow");
        line.split(',').nth(column).and_then(|word| word.parse().ok()).expect("a number")
    };
    assert!(flows.contains("\n2,h7,h0,100000,"), "behind those that it waits for: {flows}");
    assert_eq!(column(1, 5), 1000, "a start in picoseconds: {flows}");
    // It starts when the flow from 0 has arrived: half a round trip before the sender knows.
    let (start, ended) = (column(2, 5), column(0, 5) + column(0, 6));
    // One way: two links of 1 us at each side, and two of 2 us in the middle.
    assert!((ended - 9000..ended - 7000).contains(&start), "{start} {ended}: {flows}");

    let refuse = |cm: &str, topo: &str, what: &str| {
        fs::write(path("bad.cm"), cm).expect("a matrix");
        fs::write(path("bad.topo"), topo).expect("a topology");
        let output = run(&["run", &path("bad.cm")]);
        assert_eq!(output.status.code(), Some(2), "{what}");
        assert!(stderr(&output).contains(what), "{what}: {}", stderr(&output));
    };
    refuse(&MATRIX.replace("0->4", "0->9"), TREE, "bad.cm:6: 0->9: hosts are 0 to 7");
    refuse(
        &MATRIX.replace("Nodes 8", "Nodes 9"),
        TREE,
        "bad.cm:2: 9 nodes, and the topology has 8",
    );
    refuse(&MATRIX.replace(" size 200000", ""), TREE, "bad.cm:6: a flow without size");
    refuse(&MATRIX.replace("start 0 ", ""), TREE, "bad.cm:6: a flow has a start or a trigger");
    refuse(
        &MATRIX.replace("count 2", "count 1"),
        TREE,
        "bad.cm:8: trigger 1 waits for 1 of 2 flows",
    );
    refuse(
        &MATRIX.replace("trigger 1 size", "trigger 2 size"),
        TREE,
        "bad.cm:5: there is no trigger 2",
    );
    refuse(&MATRIX[..80], TREE, "bad.cm:4: unknown word \"T\"");
    let (head, _) = MATRIX.split_once("1->5").expect("a flow");
    refuse(head, TREE, "bad.cm:6: Connections 3, and the file has 2");
    let circle = MATRIX.replace("start 0", "trigger 1");
    refuse(&circle, TREE, "bad.cm:5: flows wait for each other");
    refuse(MATRIX, &TREE.replace("Tier 2", "Tier 3"), "bad.topo:18: tier 3; tier 2 is next");
    refuse(MATRIX, &TREE[..120], "bad.topo:");
    refuse(
        MATRIX,
        &TREE.replace("Podsize 4", "Podsize 3"),
        "bad.topo:5: nodes and the size of a pod",
    );
    refuse(MATRIX, &TREE.replace("Radix_Up 2", "Radix_Sideways 2"), "bad.topo:8: unknown word");
    fs::remove_file(path("bad.topo")).expect("a topology");
    let output = run(&["run", &path("bad.cm")]);
    assert!(stderr(&output).contains("bad.topo: No such file"), "{}", stderr(&output));
    let output = run(&["run", &path("bad.cm"), "--topo", &path("run.topo")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = run(&["run", &scenario(&dir, INCAST), "--topo", &path("run.topo")]);
    assert_eq!(output.status.code(), Some(2));
}
