//! Congestion control of engines in a fabric: flows that meet at one port share it, and its queue
//! stays short.

use feroce_engine::{
    Config, CongestionConfig, ConnectXConfig, DcqcnConfig, HpccConfig, SwiftConfig, TimelyConfig,
};
use feroce_fabric::{Config as FabricConfig, Ecn, FlowKey, Node, Rate, Time, Topology};
use feroce_sim::scenario::{Flow, Outcome, Run, Scenario};
use feroce_wire::{Bth, Pmtu};

#[path = "../examples/own_congestion_control.rs"]
mod own_congestion_control;

const LINE_BPS: u64 = 25_000_000_000;
const DELAY_PS: u64 = 2_000_000;
/// Ethernet with preamble and gap, IPv4, UDP, ICRC.
const AROUND: u32 = 70;
const MTU: Pmtu = Pmtu::B1024;
const PACKET: u64 = MTU.bytes() as u64 + Bth::LEN as u64 + AROUND as u64;
/// Two links there and back, a packet over each on the way there.
const RTT_NS: u64 = 4 * DELAY_PS / 1000 + 2 * PACKET * 8_000_000_000 / LINE_BPS;

fn incast(senders: u32, bytes: u64, congestion: CongestionConfig) -> Scenario {
    let flow = |src| Flow {
        src,
        dst: senders,
        priority: 3,
        bytes,
        // Not all at once: the first ones have the link and must give it up.
        start: Time::from_ns(u64::from(src) * 100_000),
        key: FlowKey { src, dst: senders, ports: 0 },
    };
    let rate = Rate::from_bps(LINE_BPS).expect("not zero");
    let topology = Topology::star(senders as usize + 1, rate, DELAY_PS);
    Scenario {
        fabric: FabricConfig { ecn: Ecn::ByRate, ..FabricConfig::default() },
        engine: Config { congestion, packet_overhead: AROUND, ..Config::default() },
        mtu: MTU,
        ..Scenario::new(topology, (0..senders).map(flow).collect())
    }
}

/// Every algorithm, and the most bytes that may wait: marks begin at 100 KB and are certain at
/// 400 KB, the thresholds of TIMELY and the target of Swift are times, and HPCC aims at no queue at
/// all. The path holds 27 KB.
fn algorithms() -> [(&'static str, CongestionConfig, u64); 5] {
    let line_rate_bps = LINE_BPS;
    let dcqcn = DcqcnConfig { line_rate_bps, ..DcqcnConfig::default() };
    let connectx = ConnectXConfig { line_rate_bps, ..ConnectXConfig::default() };
    [
        ("dcqcn", CongestionConfig::Dcqcn(dcqcn), 450_000),
        ("connectx", CongestionConfig::ConnectX(connectx), 450_000),
        ("timely", CongestionConfig::Timely(TimelyConfig::for_path(LINE_BPS, RTT_NS)), 100_000),
        ("swift", CongestionConfig::Swift(SwiftConfig::for_path(LINE_BPS, RTT_NS, PACKET)), 60_000),
        ("hpcc", CongestionConfig::Hpcc(HpccConfig::for_path(LINE_BPS, RTT_NS)), 27_000),
    ]
}

/// Jain's index of the rates, and the most bytes that waited at the port of the receiver after the
/// first millisecond.
fn fairness(scenario: Scenario) -> (f64, u64, Outcome) {
    let senders = scenario.flows.len();
    let is_switch = |node: &Node| *node == Node::Switch;
    let switch = scenario.topology.nodes().iter().position(is_switch).expect("one switch");
    let mut run = Run::new(scenario, 1).expect("a sound scenario");
    let mut longest = 0;
    while run.step() {
        if run.now() > Time::from_ns(1_000_000) {
            longest = longest.max(run.queued(switch, senders).unwrap_or(0));
        }
    }
    let outcome = run.finish();
    let rates = outcome.flows.iter().map(|flow| match flow.duration_ps() {
        Some(ps) => flow.flow.bytes as f64 / ps as f64,
        None => 0.0,
    });
    let (sum, squares) = rates.fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
    (sum * sum / (senders as f64 * squares), longest, outcome)
}

#[test]
fn two_flows_share_a_link_with_every_algorithm() {
    for (name, congestion, most) in algorithms() {
        let (jain, longest, outcome) = fairness(incast(2, 20_000_000, congestion));
        let ms = outcome.at.as_ns() as f64 / 1e6;
        assert!(outcome.flows.iter().all(|flow| flow.is_complete()), "{name}");
        assert!(jain > 0.95, "{name}: {jain}");
        assert!(longest <= most, "{name}: {longest}");
        // Alone on the link, one after the other, they would take 13.8 ms.
        assert!(ms < 22.0, "{name}: {ms}");
        assert_eq!(outcome.totals.dropped_all().packets, 0, "{name}");
        assert_eq!(outcome.pause_count(), 0, "{name}");
    }
}

#[test]
fn an_algorithm_of_ones_own_keeps_the_queue_short() {
    use own_congestion_control::{incast, own};
    let (alone, queue_alone) = incast(CongestionConfig::None).expect("a sound scenario");
    let (ms, queue) = incast(own()).expect("a sound scenario");
    assert_eq!((alone.len(), ms.len()), (4, 4), "all flows complete");
    assert!(queue < queue_alone / 10, "{queue} {queue_alone}");
    assert!(ms.iter().all(|ms| *ms < 1.05 * alone[3]), "{ms:?} {alone:?}");
}
