//! Simulated fabrics: processor time per packet and per hop, in one thread.

use std::path::Path;

use feroce_fabric::{FlowKey, Rate, Time, Topology};
use feroce_sim::scenario::{Flow, Outcome, Run, Scenario, hpcc};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

use crate::Effort;
use crate::report::{Figure, Wanted};

/// Processor seconds of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs a scenario; how long it took, and what came of it.
fn run(scenario: Scenario) -> Result<(f64, Outcome), String> {
    let start = cpu_seconds();
    let outcome = Run::new(scenario, 1).map_err(|e| e.to_string())?.run();
    let seconds = cpu_seconds() - start;
    check(&outcome).map(|()| (seconds, outcome))
}

fn check(outcome: &Outcome) -> Result<(), String> {
    match outcome.flows.iter().all(|flow| flow.is_complete()) {
        true => Ok(()),
        false => Err("flows that did not end".into()),
    }
}

/// Every host of a fat tree sends to the host half the tree away.
fn permutation(k: usize, bytes: u64) -> Scenario {
    let topology = Topology::fat_tree(k, Rate::from_gbps(100), 1_000_000);
    let hosts = topology.hosts().count() as u32;
    let flow = |src| {
        let dst = (src + hosts / 2) % hosts;
        let key = FlowKey { src, dst, ports: 0x12b7_c000 };
        Flow { src, dst, priority: 3, bytes, start: Time::ZERO, key }
    };
    Scenario::new(topology, (0..hosts).map(flow).collect())
}

/// Sends `count` data packets across a fat tree of 16 hosts.
pub(crate) fn packets(count: u32) -> Result<(), String> {
    let mut scenario = permutation(4, 0);
    let each = u64::from(count) / scenario.flows.len() as u64 * scenario.mtu.bytes() as u64;
    scenario.flows.iter_mut().for_each(|flow| flow.bytes = each);
    let outcome = Run::new(scenario, 1).map_err(|e| e.to_string())?.run();
    check(&outcome)
}

/// Time per data packet and per hop, and how both grow.
pub(crate) fn fabric(effort: Effort) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    if !effort.is_smoke() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/sim/tests/ns3");
        let scenario =
            hpcc::read_scenario(&data.join("s7_ls32_dcqcn_ack0")).map_err(|e| e.to_string())?;
        let packets: u64 = scenario.flows.iter().map(|flow| flow.bytes.div_ceil(1000)).sum();
        let (mut each, mut hops) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (seconds, outcome) = run(scenario.clone())?;
            each.push(seconds * 1e6 / packets as f64);
            hops.push(seconds * 1e9 / outcome.totals.hops as f64);
        }
        // A fifth of what ns-3 needs.
        let wanted = Wanted::AtMost(2.7);
        figures
            .push(Figure::new("32 hosts, WebSearch: per data packet", "us", each).wanted(wanted));
        figures.push(Figure::new("32 hosts, WebSearch: per hop", "ns", hops));
    }
    for (k, hosts) in [(4, 16), (8, 128), (16, 1024)] {
        if effort.is_smoke() && k > 4 {
            break;
        }
        let (seconds, outcome) = run(permutation(k, 2_000_000))?;
        let name = |what| format!("fat tree of {hosts} hosts, 2 MB each: {what}");
        let per_hop = seconds * 1e9 / outcome.totals.hops as f64;
        figures.push(Figure::new(name("per hop"), "ns", vec![per_hop]));
        let whole = Figure::new(name("processor time"), "s", vec![seconds]);
        figures.push(whole.wanted(Wanted::AtMost(60.0)));
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|e| e.to_string())?;
    let gib = usage.max_rss() as f64 / f64::from(1 << 20);
    figures
        .push(Figure::new("most memory at a time", "GiB", vec![gib]).wanted(Wanted::AtMost(1.8)));
    Ok(figures)
}
