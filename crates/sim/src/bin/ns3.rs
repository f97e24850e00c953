//! Compares our simulation with results of HPCC's ns-3: the same topologies, flows and settings.
//!
//! `ns3 DIR` runs every scenario; `ns3 DIR --quick` all but the large ones. It prints a table, and
//! fails if a figure is further from ns-3's than it may be.

use std::path::Path;
use std::process::ExitCode;

use feroce_fabric::{FlowKey, Time};
use feroce_sim::scenario::{Outcome, Run, Scenario, hpcc, percentile};

/// Runs over which the length of a queue is averaged.
const QUEUE_SEEDS: u64 = 8;

/// A figure, and what it may be.
struct Row {
    scenario: &'static str,
    what: &'static str,
    ours: f64,
    theirs: f64,
    /// Greatest difference as a part of ns-3's figure.
    accept: f64,
}

impl Row {
    fn is_met(&self) -> bool {
        (self.ours - self.theirs).abs() <= self.accept * self.theirs.abs()
    }
}

struct Table {
    rows: Vec<Row>,
}

/// A flow as ns-3 saw it.
struct Reference {
    key: FlowKey,
    ns: f64,
    ideal_ns: f64,
}

/// The flows of ns-3.
fn reference(dir: &Path) -> Result<Vec<Reference>, String> {
    let file = dir.join("fct.txt");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let parse = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let hex = |i: usize| u32::from_str_radix(words.get(i)?, 16).ok();
        let number = |i: usize| words.get(i)?.parse::<f64>().ok();
        let ports = number(2)? as u32 | (number(3)? as u32) << 16;
        let key = FlowKey { src: hex(0)?, dst: hex(1)?, ports };
        Some(Reference { key, ns: number(6)?, ideal_ns: number(7)? })
    };
    let wrong = |line| format!("{}: {line}", file.display());
    text.lines().map(|line| parse(line).ok_or_else(|| wrong(line))).collect()
}

fn scenario(dir: &Path) -> Result<Scenario, String> {
    hpcc::read_scenario(dir).map_err(|e| e.to_string())
}

fn run(dir: &Path, seed: u64) -> Result<Outcome, String> {
    Ok(Run::new(scenario(dir)?, seed).map_err(|e| e.to_string())?.run())
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, n), v| (sum + v, n + 1));
    sum / f64::from(count.max(1))
}

/// Mean completion time in nanoseconds; endless if a flow is not complete.
fn mean_ns(outcome: &Outcome) -> f64 {
    mean(outcome.flows.iter().map(|flow| match flow.duration_ps() {
        Some(ps) => ps as f64 / 1000.0,
        None => f64::INFINITY,
    }))
}

/// Mean, and value that 95 % are below, of a queue that is looked at every microsecond. Times at
/// which it is empty do not count: with them our means are lower than ns-3's figures, without them
/// they agree, so those figures were taken the same way.
fn queue(dir: &Path, port: (usize, usize), from: Time) -> Result<(f64, f64), String> {
    let mut samples = Vec::new();
    for seed in 0..QUEUE_SEEDS {
        let mut run = Run::new(scenario(dir)?, seed).map_err(|e| e.to_string())?;
        let mut next = from;
        // The last flow alone shows nothing of the queue.
        while run.unfinished() > 1 && run.step() {
            while run.now() >= next {
                samples.extend(run.queued(port.0, port.1).filter(|&bytes| bytes > 0));
                next = next.plus_ps(1_000_000);
            }
        }
    }
    let mut samples: Vec<_> = samples.into_iter().map(|bytes| bytes as f64).collect();
    samples.sort_by(f64::total_cmp);
    let p95 = percentile(&samples, 0.95).unwrap_or(f64::NAN);
    Ok((mean(samples), p95))
}

/// Rate of all flows together in Gb/s, until the last ends.
fn total_gbps(outcome: &Outcome) -> f64 {
    let bytes: u64 = outcome.flows.iter().map(|flow| flow.flow.bytes).sum();
    let longest = outcome.flows.iter().filter_map(|flow| flow.duration_ps()).max().unwrap_or(1);
    bytes as f64 * 8000.0 / longest as f64
}

/// Jain's index of the rates.
fn fairness(outcome: &Outcome) -> f64 {
    let rates = |f: fn(f64) -> f64| -> f64 {
        let all = outcome.flows.iter().filter_map(|flow| flow.duration_ps());
        all.map(|ps| f(1e12 / ps as f64)).sum()
    };
    let (sum, squares) = (rates(|r| r), rates(|r| r * r));
    sum * sum / (outcome.flows.len() as f64 * squares)
}

impl Table {
    fn add(
        &mut self,
        scenario: &'static str,
        what: &'static str,
        ours: f64,
        theirs: f64,
        accept: f64,
    ) {
        self.rows.push(Row { scenario, what, ours, theirs, accept });
    }

    /// Completion times, on average over seeds.
    fn completion(
        &mut self,
        data: &Path,
        name: &'static str,
        seeds: u64,
        accept: f64,
    ) -> Result<(), String> {
        let dir = data.join(name);
        let theirs = mean(reference(&dir)?.iter().map(|flow| flow.ns));
        let mut all = Vec::new();
        for seed in 0..seeds {
            all.push(mean_ns(&run(&dir, seed)?));
        }
        self.add(name, "mean completion, ns", mean(all), theirs, accept);
        Ok(())
    }

    fn deadlock(&mut self, data: &Path, name: &'static str) -> Result<(), String> {
        let outcome = run(&data.join(name), 0)?;
        let ports = outcome.deadlock.map_or(0, |circle| circle.len());
        self.add(name, "ports in a deadlock", ports as f64, 5.0, 0.0);
        self.add(name, "packets dropped", outcome.totals.dropped_all().packets as f64, 0.0, 0.0);
        Ok(())
    }

    fn incast(&mut self, data: &Path) -> Result<(), String> {
        self.each(data, "s2_none", 0.0)?;
        let outcome = run(&data.join("s2_none"), 0)?;
        let longest = outcome.ports.iter().map(|(_, stats)| stats.queue_max).max().unwrap_or(0);
        self.add("s2_none", "longest queue, bytes", longest as f64, 6_719_776.0, 0.01);
        self.add("s2_none", "pauses", outcome.pause_count() as f64, 690.0, 0.01);
        for (name, at) in [("s2_dcqcn", (260_000.0, 630_000.0)), ("s2_dcqcn_paper", (0.0, 0.0))] {
            self.completion(data, name, 5, 0.05)?;
            let pauses = run(&data.join(name), 0)?.pause_count();
            self.add(name, "pauses", pauses as f64, 0.0, 0.0);
            if at.0 > 0.0 {
                let (mean, p95) = queue(&data.join(name), (0, 2), Time::from_ns(2_001_000_000))?;
                self.add(name, "mean queue after 1 ms, bytes", mean, at.0, 0.25);
                self.add(name, "queue p95 after 1 ms, bytes", p95, at.1, 0.25);
            }
        }
        Ok(())
    }

    /// Every completion time of one run, with a tolerance.
    fn each(&mut self, data: &Path, name: &'static str, accept: f64) -> Result<(), String> {
        let dir = data.join(name);
        let (outcome, reference) = (run(&dir, 0)?, reference(&dir)?);
        for Reference { key, ns, .. } in reference {
            let flow = outcome.flows.iter().find(|flow| flow.flow.key == key);
            let ours =
                flow.and_then(|flow| flow.duration_ps()).map_or(f64::NAN, |ps| ps as f64 / 1e3);
            self.add(name, "completion, ns", ours, ns, accept);
        }
        Ok(())
    }

    fn hpcc(&mut self, data: &Path) -> Result<(), String> {
        let name = "s2_hp";
        self.each(data, name, 0.05)?;
        let pauses = run(&data.join(name), 0)?.pause_count();
        self.add(name, "pauses", pauses as f64, 0.0, 0.0);
        // A queue of one packet: 1,000 bytes, headers, and records of five switches.
        let (mean, p95) = queue(&data.join(name), (0, 2), Time::from_ns(2_001_000_000))?;
        self.add(name, "mean queue after 1 ms, bytes", mean, 1090.0, 0.05);
        self.add(name, "queue p95 after 1 ms, bytes", p95, 1090.0, 0.05);
        Ok(())
    }

    fn paper(&mut self, data: &Path) -> Result<(), String> {
        let start = Time::from_ns(2_001_000_000);
        for (name, port, gbps, q) in [
            ("s9_2to1_paperK", (0, 2), 36.4, (39_000.0, 107_000.0)),
            ("s9_8to1_paperK", (0, 8), 37.3, (106_000.0, 202_000.0)),
        ] {
            let dir = data.join(name);
            let outcome = run(&dir, 1)?;
            self.add(name, "rate of all, Gb/s", total_gbps(&outcome), gbps, 0.03);
            self.add(name, "Jain's index", fairness(&outcome), 1.0, 0.01);
            let (mean, p95) = queue(&dir, port, start)?;
            self.add(name, "mean queue, bytes", mean, q.0, 0.25);
            self.add(name, "queue p95, bytes", p95, q.1, 0.25);
        }
        Ok(())
    }

    fn leaf_spine(&mut self, data: &Path) -> Result<(), String> {
        for name in ["s7_ls32_none_ack0", "s7_ls32_dcqcn_ack0"] {
            let dir = data.join(name);
            let reference = reference(&dir)?;
            let mut theirs: Vec<_> =
                reference.iter().map(|flow| (flow.ns / flow.ideal_ns).max(1.0)).collect();
            theirs.sort_by(f64::total_cmp);
            let outcome = run(&dir, 0)?;
            let ours = outcome.slowdowns();
            self.add(name, "flows complete", ours.len() as f64, theirs.len() as f64, 0.0);
            for (what, p, accept) in [("slowdown p50", 0.5, 0.1), ("slowdown p95", 0.95, 0.2)] {
                let of = |values| percentile(values, p).unwrap_or(f64::NAN);
                self.add(name, what, of(&ours), of(&theirs), accept);
            }
            self.add(
                name,
                "packets dropped",
                outcome.totals.dropped_all().packets as f64,
                0.0,
                0.0,
            );
        }
        Ok(())
    }

    fn print(&self) -> bool {
        println!(
            "{:<22} {:<30} {:>12} {:>12} {:>8}",
            "scenario", "figure", "ours", "ns-3", "accept"
        );
        for row in &self.rows {
            let accept = if row.accept == 0.0 {
                "exact".into()
            } else {
                format!("{} %", row.accept * 100.0)
            };
            let note = if row.is_met() { "" } else { "  NOT MET" };
            let digits = if row.theirs.fract() == 0.0 { 0 } else { 2 };
            println!(
                "{:<22} {:<30} {:>12.digits$} {:>12.digits$} {accept:>8}{note}",
                row.scenario, row.what, row.ours, row.theirs
            );
        }
        self.rows.iter().all(Row::is_met)
    }
}

fn compare(data: &Path, is_quick: bool) -> Result<bool, String> {
    let mut table = Table { rows: Vec::new() };
    for name in ["s1_1000", "s1_4096", "s1_65536", "s1_1000000", "s1_10000000"] {
        table.each(data, name, 0.0)?;
    }
    table.incast(data)?;
    table.hpcc(data)?;
    table.completion(data, "s4_park2_none", 1, 0.03)?;
    table.completion(data, "s4_park2_dcqcn", 3, 0.04)?;
    table.deadlock(data, "s5_ring5_1_none")?;
    table.deadlock(data, "s5_ring5_1_dcqcn")?;
    table.completion(data, "s5_ring5_1_dcqcn_b32", 1, 0.05)?;
    table.completion(data, "s5_loss_0.001_none", 20, 0.05)?;
    table.paper(data)?;
    if !is_quick {
        table.leaf_spine(data)?;
    }
    Ok(table.print())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(dir), option) = (args.next(), args.next()) else {
        eprintln!("usage: ns3 DIR [--quick]");
        return ExitCode::from(2);
    };
    match compare(Path::new(&dir), option.as_deref() == Some("--quick")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("ns3: {e}");
            ExitCode::from(2)
        }
    }
}
