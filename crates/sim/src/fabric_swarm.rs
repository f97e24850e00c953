//! Random networks and flows, with engines as hosts, and what must hold for all of them.
//!
//! A seed draws a topology, Ethernet or InfiniBand, buffers, congestion control, recovery, losses,
//! links that fail, and flows. The run is stopped again and again to look at the fabric
//! ([`feroce_fabric::Fabric::check`]); at the end, everything that had to arrive must have.

use feroce_engine::{
    CongestionConfig, ConnectXConfig, DcqcnConfig, HpccConfig, SwiftConfig, TimelyConfig, WcStatus,
    WindowConfig,
};
use feroce_fabric::{
    BufferConfig, Config, DropReason, Ecn, FlowKey, InfinibandConfig, PfcConfig, Rate, Spread,
    Time, Topology,
};
use feroce_wire::Pmtu;

use crate::dice::Dice;
use crate::scenario::{
    Flow, FlowOutcome, Happening, Happens, Outcome, Recovery, Run, Scenario, WireLength,
};

/// Steps between two looks at the fabric.
const LOOK_EVERY: u64 = 997;

/// A drawn scenario, and what must become of it.
#[derive(Debug)]
struct Drawn {
    scenario: Scenario,
    /// No packet may be dropped for want of room.
    is_lossless: bool,
    /// Ports may wait for each other.
    may_deadlock: bool,
}

/// Runs a seed. The error says what did not hold.
pub fn check_fabric(seed: u64) -> Result<Outcome, String> {
    let Drawn { scenario, is_lossless, may_deadlock } = draw(seed);
    let recovery = scenario.recovery;
    let failed = |what: String| format!("FEROCE_SEED={seed}: {what}");
    let mut run = Run::new(scenario, seed).map_err(|e| failed(e.to_string()))?;
    let mut steps = 0;
    while run.step() {
        steps += 1;
        if steps % LOOK_EVERY == 0 {
            run.check().map_err(failed)?;
        }
    }
    run.check().map_err(failed)?;
    let outcome = run.finish();
    let for_room = outcome.totals.dropped(DropReason::Buffer).packets;
    if is_lossless && for_room > 0 {
        return Err(failed(format!("{for_room} packets had no room in a lossless network")));
    }
    if let Some(circle) = &outcome.deadlock {
        return match may_deadlock {
            true => Ok(outcome),
            false => Err(failed(format!("a deadlock without a circle of links: {circle:?}"))),
        };
    }
    // Where packets are dropped, a sender that goes back again and again may give up.
    let may_give_up = !is_lossless && recovery == Recovery::GoBackN;
    let fails = |flow: &FlowOutcome| match flow.status {
        Some(WcStatus::RetryExceeded) => !may_give_up,
        status => status != Some(WcStatus::Success),
    };
    match outcome.flows.iter().position(fails) {
        Some(flow) => {
            let status = outcome.flows[flow].status;
            Err(failed(format!("flow {flow} is not complete at {:?}: {status:?}", outcome.at)))
        }
        None => Ok(outcome),
    }
}

fn draw(seed: u64) -> Drawn {
    let mut dice = Dice::new(seed, 0);
    let rate = Rate::from_gbps(dice.pick(&[10, 25, 100]));
    let delay_ps = dice.pick(&[100_000, 1_000_000, 3_000_000]);
    let (mut topology, has_circles) = match dice.range(0..=5) {
        0 => (Topology::star(dice.pick(&[2, 3, 8]), rate, delay_ps), false),
        1 => (Topology::parking_lot(dice.pick(&[2, 4]), 2, rate, delay_ps), false),
        2 => (Topology::leaf_spine(2, 2, dice.pick(&[1, 3]), rate, delay_ps), false),
        3 => (Topology::fat_tree(4, rate, delay_ps), false),
        4 => (Topology::ring(dice.pick(&[3, 5]), rate, delay_ps), true),
        _ => (Topology::torus(&[3, 3], 1, rate, delay_ps), true),
    };
    let loses = dice.chance(0.3);
    if loses {
        let loss = dice.pick(&[0.0001, 0.001, 0.005]);
        topology.links_mut().iter_mut().for_each(|link| link.loss = loss);
    }
    let fails = dice.chance(0.2);
    let is_infiniband = dice.chance(0.4);
    let mut fabric = fabric(&mut dice, is_infiniband);
    let is_lossless = is_infiniband || fabric.pfc.is_some();
    // Pauses that are lost with a link are repeated; credits are counted anew.
    if fails && let Some(pfc) = &mut fabric.pfc {
        pfc.quanta = Some(1000);
    }
    let hosts = topology.hosts().count() as u32;
    let flows = flows(&mut dice, hosts, is_infiniband);
    let mtu = dice.pick(&[Pmtu::B1024, Pmtu::B4096]);
    let wire = if is_infiniband { WireLength::Infiniband } else { WireLength::RoceV2 };
    let links = topology.links().len() as u64;
    let mut happenings = Vec::new();
    if fails {
        let link = dice.range(0..=links - 1) as usize;
        let (down, up) = (dice.range(0..=200_000), dice.range(300_000..=2_300_000));
        for (ns, is_up) in [(down, false), (up, true)] {
            let happens = Happens::Link(link, is_up);
            happenings.push(Happening { at: Time::from_ns(ns), happens });
        }
    }
    let base = Scenario::new(topology, flows);
    let large = WindowConfig { initial: 4 << 20, ..WindowConfig::default() };
    let engine = feroce_engine::Config {
        window: dice.pick(&[WindowConfig::default(), large]),
        congestion: congestion(&mut dice, rate, delay_ps),
        packet_overhead: 70,
        ..feroce_engine::Config::default()
    };
    let recovery = dice.pick(&[Recovery::GoBackN, Recovery::GoBackN, Recovery::Selective]);
    let stop = Time::from_ns(60_000_000_000);
    let scenario = Scenario { fabric, engine, mtu, wire, recovery, happenings, stop, ..base };
    // A link that is down changes paths, and they may close a circle for a while.
    Drawn { scenario, is_lossless, may_deadlock: is_lossless && (has_circles || fails) }
}

fn fabric(dice: &mut Dice, is_infiniband: bool) -> Config {
    let ecn = if dice.chance(0.6) { Ecn::ByRate } else { Ecn::Off };
    if is_infiniband {
        let lane_buffer = dice.pick(&[8 << 10, 64 << 10, 200 << 10]);
        let lanes = dice.pick(&[1, 2, 8]);
        let infiniband = InfinibandConfig { lane_buffer, ..InfinibandConfig::with_lanes(lanes) };
        return Config { infiniband: Some(infiniband), pfc: None, ecn, ..Config::default() };
    }
    let has_pfc = dice.chance(0.6);
    let quanta = dice.pick(&[None, Some(500), Some(u16::MAX)]);
    let bytes = if has_pfc { dice.pick(&[1 << 20, 4 << 20, 32 << 20]) } else { 256 << 10 };
    Config {
        buffer: BufferConfig { bytes, ..BufferConfig::default() },
        pfc: has_pfc.then_some(PfcConfig { quanta, ..PfcConfig::default() }),
        ecn,
        spread: dice.pick(&[Spread::Flows, Spread::Flows, Spread::Packets]),
        ..Config::default()
    }
}

/// Flows between random hosts, from all to one, or from each to the one so many further on.
fn flows(dice: &mut Dice, hosts: u32, is_infiniband: bool) -> Vec<Flow> {
    let any = |dice: &mut Dice| dice.range(0..=u64::from(hosts) - 1) as u32;
    let (to, shift) = (any(dice), dice.range(1..=u64::from(hosts) - 1) as u32);
    let pairs: Vec<(u32, u32)> = match dice.range(0..=2) {
        0 => (0..dice.pick(&[1, 4, 16])).map(|_| (any(dice), any(dice))).collect(),
        1 => (0..hosts).map(|from| (from, to)).collect(),
        _ => (0..hosts).map(|from| (from, (from + shift) % hosts)).collect(),
    };
    // The headroom of a port is for one priority: with PFC, flows share one.
    let priority = dice.small(0..=7);
    let bytes = dice.pick(&[5000, 100_000, 1_000_000, 4_000_000]);
    let pairs = pairs.into_iter().enumerate().filter(|(_, (src, dst))| src != dst);
    let flow = |(number, (src, dst)): (usize, _)| Flow {
        src,
        dst,
        priority: if is_infiniband { dice.small(0..=7) } else { priority },
        bytes: bytes - dice.range(0..=4999),
        start: Time::from_ns(dice.range(0..=20_000)),
        key: FlowKey { src, dst, ports: number as u32 },
    };
    pairs.map(flow).collect()
}

fn congestion(dice: &mut Dice, rate: Rate, delay_ps: u64) -> CongestionConfig {
    let line_rate_bps = rate.bps();
    // Six links at most in each direction.
    let rtt_ns = 12 * delay_ps / 1000 + 6 * 4200 * 8_000_000_000 / line_rate_bps;
    let dcqcn = DcqcnConfig { line_rate_bps, ..DcqcnConfig::default() };
    let connectx = ConnectXConfig { line_rate_bps, ..ConnectXConfig::default() };
    dice.pick(&[
        CongestionConfig::None,
        CongestionConfig::Dcqcn(dcqcn),
        CongestionConfig::ConnectX(connectx),
        CongestionConfig::Timely(TimelyConfig::for_path(line_rate_bps, rtt_ns)),
        CongestionConfig::Swift(SwiftConfig::for_path(line_rate_bps, rtt_ns, 4178)),
        CongestionConfig::Hpcc(HpccConfig::for_path(line_rate_bps, rtt_ns)),
    ])
}
