//! Recovery from loss: go-back-N as on the wire, and selective repeat.

use std::path::Path;

use feroce_fabric::{Config as FabricConfig, FlowKey, Rate, Time, Topology};
use feroce_sim::scenario::{Flow, Outcome, Recovery, Run, Scenario, hpcc};

/// Seeds over which completion times are averaged.
const SEEDS: u64 = 2;

fn run(scenario: Scenario, seed: u64) -> Outcome {
    Run::new(scenario, seed).expect("a sound scenario").run()
}

/// A flow of 10 MB over two links at 100 Gb/s that lose a part of the packets, as ns-3 has it.
fn lossy(loss: f64, recovery: Recovery) -> Scenario {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ns3/s5_loss_0.001_none");
    let scenario = hpcc::read_scenario(&dir).expect("an input of ns-3");
    let mut topology = Topology::default();
    for node in scenario.topology.nodes() {
        topology.add(*node);
    }
    for link in scenario.topology.links() {
        topology.link(feroce_fabric::Link { loss, ..*link });
    }
    Scenario { topology, recovery, ..scenario }
}

/// Mean completion time in microseconds.
fn mean_us(loss: f64, recovery: Recovery) -> f64 {
    let one = |seed| {
        let outcome = run(lossy(loss, recovery), seed);
        outcome.flows[0].duration_ps().expect("the flow completes") as f64 / 1e6
    };
    (0..SEEDS).map(one).sum::<f64>() / SEEDS as f64
}

#[test]
fn selective_repeat_is_nearly_as_fast_as_without_loss() {
    let alone = mean_us(0.0, Recovery::GoBackN);
    assert!((alone - mean_us(0.0, Recovery::Selective)).abs() < 0.01 * alone);
    for (loss, selective_at_most, go_back_n_at_least) in [(0.001, 1.03, 1.08), (0.01, 1.5, 2.0)] {
        let selective = mean_us(loss, Recovery::Selective) / alone;
        let go_back_n = mean_us(loss, Recovery::GoBackN) / alone;
        assert!(selective < selective_at_most, "{loss}: {selective}");
        assert!(go_back_n > go_back_n_at_least, "{loss}: {go_back_n}");
    }
}

/// Eight hosts send to one through a switch that drops what does not fit.
fn incast(recovery: Recovery) -> Outcome {
    let mut fabric = FabricConfig { pfc: None, ..FabricConfig::default() };
    fabric.buffer.bytes = 256 << 10;
    let flow = |src| Flow {
        src,
        dst: 8,
        priority: 3,
        bytes: 2_000_000,
        start: Time::from_ns(1000),
        key: FlowKey { src, dst: 8, ports: 0 },
    };
    let topology = Topology::star(9, Rate::from_gbps(100), 1_000_000);
    let scenario = Scenario::new(topology, (0..8).map(flow).collect());
    run(Scenario { fabric, recovery, ..scenario }, 1)
}

#[test]
fn without_flow_control_less_is_sent_twice() {
    let (go_back_n, selective) = (incast(Recovery::GoBackN), incast(Recovery::Selective));
    for outcome in [&go_back_n, &selective] {
        assert!(outcome.flows.iter().all(|flow| flow.is_complete()), "{:?}", outcome.flows);
        assert!(outcome.totals.dropped_all().packets > 0);
    }
    let injected = |outcome: &Outcome| outcome.totals.injected.bytes;
    assert!(injected(&selective) < injected(&go_back_n));
    assert!(selective.at < go_back_n.at, "{:?} {:?}", selective.at, go_back_n.at);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let times = |seed| run(lossy(0.01, Recovery::Selective), seed).at;
    assert_eq!(times(3), times(3));
    assert_ne!(times(3), times(4));
}
