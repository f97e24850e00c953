//! Scenarios: what is read, what comes out, and that the same seed gives the same.

use std::fs;
use std::path::{Path, PathBuf};

use feroce_fabric::{Config as FabricConfig, Ecn, FlowKey, PfcConfig, Rate, Time, Topology};
use feroce_sim::scenario::{Flow, Outcome, Run, Scenario, hpcc};

const RATE: Rate = Rate::from_gbps(100);

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ns3").join(name)
}

/// Hosts that send to the last one, over one switch, with everything as on the wire.
fn incast(hosts: u32, bytes: u64, fabric: FabricConfig) -> Scenario {
    let flow = |src| Flow {
        src,
        dst: hosts,
        priority: 3,
        bytes,
        start: Time::from_ns(1000),
        key: FlowKey { src, dst: hosts, ports: 0 },
    };
    let topology = Topology::star(hosts as usize + 1, RATE, 1_000_000);
    Scenario { fabric, ..Scenario::new(topology, (0..hosts).map(flow).collect()) }
}

fn run(scenario: Scenario, seed: u64) -> Outcome {
    Run::new(scenario, seed).expect("a sound scenario").run()
}

#[test]
fn engines_as_they_are_on_the_wire_share_a_link() {
    let outcome = run(incast(4, 1_000_000, FabricConfig::default()), 1);
    assert!(outcome.flows.iter().all(|flow| flow.is_complete()));
    assert_eq!(outcome.totals.dropped_all().packets, 0);
    // Four flows over one link: none can be faster than a quarter of the ideal time allows, and the
    // link is not idle for long.
    let slowest = outcome.slowdowns().pop().expect("four flows");
    assert!((3.5..6.0).contains(&slowest), "{slowest}");
}

#[test]
fn without_flow_control_packets_are_dropped_and_sent_again() {
    let mut fabric = FabricConfig { pfc: None, ..FabricConfig::default() };
    fabric.buffer.bytes = 64 << 10;
    let outcome = run(incast(4, 300_000, fabric), 1);
    assert!(outcome.totals.dropped_all().packets > 0);
    assert!(outcome.flows.iter().all(|flow| flow.is_complete()), "{:?}", outcome.flows);
}

#[test]
fn the_same_seed_gives_the_same_outcome_and_another_seed_another() {
    let fabric = FabricConfig { ecn: Ecn::ByRate, ..FabricConfig::default() };
    let mut scenario = incast(4, 2_000_000, fabric);
    scenario.engine.congestion =
        feroce_engine::CongestionConfig::ConnectX(feroce_engine::ConnectXConfig::default());
    let times = |seed| -> Vec<_> {
        run(scenario.clone(), seed).flows.iter().map(|flow| flow.duration_ps()).collect()
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
fn a_circle_of_paused_ports_ends_the_run() {
    let outcome = run(hpcc::read_scenario(&data("s5_ring5_1_none")).unwrap(), 1);
    let circle = outcome.deadlock.expect("the ring is closed");
    assert_eq!(circle.len(), 5, "{circle:?}");
    assert!(outcome.at < Time::from_ns(2_010_000_000), "it does not run on: {:?}", outcome.at);
}

#[test]
fn a_storm_of_pauses_leaves_flows_unfinished() {
    let pfc = PfcConfig { quanta: None, ..PfcConfig::default() };
    let mut scenario =
        incast(1, 100_000, FabricConfig { pfc: Some(pfc), ..FabricConfig::default() });
    scenario.stop = Time::from_ns(10_000_000);
    let mut run = Run::new(scenario, 1).unwrap();
    run.pause_from_host(1, 3);
    while run.step() {}
    assert_eq!(run.unfinished(), 1);
    assert!(run.finish().flows[0].duration_ps().is_none());
}

/// A directory with the files of a small scenario, some of them replaced.
fn broken(test: &str, file: &str, text: &str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&dir).expect("a directory for tests");
    for name in ["config.txt", "topo.txt", "flow.txt"] {
        fs::copy(data("s1_1000").join(name), dir.join(name)).expect("a file to copy");
    }
    fs::write(dir.join(file), text).expect("a file to write");
    let error = hpcc::read_scenario(&dir).expect_err("a broken input").to_string();
    error.strip_prefix(&format!("{}/", dir.display())).expect("the error names its file").to_owned()
}

#[test]
fn bad_inputs_are_refused_with_file_and_line() {
    let topo = |text| broken("topo", "topo.txt", text);
    assert_eq!(
        topo("3 1 "),
        "topo.txt:1: the number of switches is 1, and the file is shorter than that"
    );
    assert_eq!(
        topo("3 1 2\n9\n"),
        "topo.txt:1: the number of links is 2, and the file is shorter than that"
    );
    assert_eq!(topo("3 1 2\n9 0 1 2"), "topo.txt:2: switch 9 of 3 nodes");
    assert_eq!(topo("3 1 2\n0\n0 1 fast 1us 0\n"), "topo.txt:3: \"fast\" is not a rate");
    assert_eq!(
        topo("3 1 2\n0\n0 1 1Gbps 1us 0\n0 7 1Gbps 1us 0\n"),
        "topo.txt:4: a link names node 7, which does not exist"
    );
    assert_eq!(
        topo("3 1 2\n0\n0 1 1Gbps 1us 0\n0 1 1Gbps 1us 0\n"),
        "topo.txt:4: host 1 has 2 links; a host has one"
    );
    assert!(topo("99999999999 1 2\n0\n").starts_with("topo.txt:1: "));
    let flow = |text| broken("flow", "flow.txt", text);
    assert_eq!(flow("1\n1 0 3 100 5 2"), "flow.txt:2: 1 or 0 is not a host");
    assert_eq!(flow("1\n1 1 3 100 5 2"), "flow.txt:2: a flow from host 1 to itself");
    assert_eq!(flow("1\n1 2 9 100 5 2"), "flow.txt:2: priority 9 of 0 to 7");
    assert_eq!(
        flow("1\n1 2 3 100 many 2"),
        "flow.txt:2: a number of bytes: \"many\" is not a number of its kind"
    );
    let config = |text| broken("config", "config.txt", text);
    assert_eq!(
        config("CC_MODE 9\nTOPOLOGY_FILE topo.txt"),
        "config.txt:1: CC_MODE: 9 is not supported; 0, 1 (DCQCN), 3 (HPCC) and 7 (TIMELY) are"
    );
    assert_eq!(
        config("\nKMIN_MAP 1 25 x\n"),
        "config.txt:2: KMIN_MAP: expected a rate and a number"
    );
}
