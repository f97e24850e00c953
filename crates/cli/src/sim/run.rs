//! `feroce sim run`.
#![expect(clippy::disallowed_methods, reason = "says how long it took")]

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use feroce_sim::scenario::{self, Reading, Run, units};

use super::pcap::{self, Pcaps};
use super::summary::Summary;
use super::{files, plot, refuse};
use crate::stop;

const EXAMPLES: &str = "\
Examples:
  feroce sim run incast.toml             flows over a fabric, and how long they took
  feroce sim run -o results incast.toml  keep the times of all flows, pauses, queues and a summary
  feroce sim run --plot run.svg incast.toml  draw slowdowns, queues and rates
  feroce sim run --pcap leaf0:3=a.pcap incast.toml  capture a port, for Wireshark or feroce decode
  feroce sim run hpcc/simulation/mix     a directory with config.txt of HPCC's ns-3
  feroce sim run perm.cm --topo fat_tree_1024.topo  a connection matrix of htsim

A scenario in TOML:
  [topology]
  kind = \"leaf-spine\"     # or star, ring, parking-lot, torus, fat-tree, custom, file
  leaves = 4
  spines = 4
  hosts = 8               # of each leaf
  rate = \"100G\"
  delay = \"1us\"

  [switch]
  buffer = \"32MiB\"
  ecn = \"by-rate\"         # or off, or { kmin = \"5K\", kmax = \"200K\", pmax = 0.01 }

  [host]
  congestion = \"connectx\" # or none, dcqcn, timely, swift, hpcc

  [[pattern]]
  kind = \"incast\"         # or permutation, random-permutation, all-to-all, all-reduce-ring,
                          # all-reduce-butterfly, poisson; [[flow]] has from, to, bytes, start
  to = 0
  bytes = \"1M\"

Exit status: 0 all flows ended, 1 some did not (a deadlock is named), 2 the input is wrong.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Scenario: TOML, a connection matrix of htsim (.cm), or a configuration of HPCC's ns-3 or its
    /// directory.
    scenario: PathBuf,
    /// Topology for a connection matrix, if it has not the same name.
    #[arg(long, value_name = "FILE.topo")]
    topo: Option<PathBuf>,
    /// Random seed: the same seed gives the same run.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Write fct.txt, pfc.txt, qlen.txt, flows.csv, series.csv and summary.json to this directory.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Draw slowdowns by size, and queues and rates over time.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Capture the packets of a port, such as leaf0:3=out.pcap; payload is cut off.
    #[arg(long, value_name = "PORT=FILE")]
    pcap: Vec<String>,
    /// How often to look at queues and rates for files and the plot.
    #[arg(long, default_value = "1us", value_name = "TIME")]
    sample: String,
}

/// Events between two looks at the clock and at the wish to stop.
const STRIDE: u32 = 1 << 14;

pub(super) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let how = Reading { seed: args.seed, settings: &[], topology: args.topo.as_deref() };
    let scenario = match scenario::read(&args.scenario, how) {
        Ok(scenario) => scenario,
        Err(e) => return Ok(refuse(&e)),
    };
    let ports = args.pcap.iter().map(|word| pcap::parse(word, &scenario));
    let ports = match ports.collect::<Result<Vec<_>, _>>() {
        Ok(ports) => ports,
        Err(e) => return Ok(refuse(&e)),
    };
    let mut run = match Run::new(scenario, args.seed) {
        Ok(run) => run,
        Err(e) => return Ok(refuse(&format!("{}: {e}", args.scenario.display()))),
    };
    let Some(every_ps) = units::parse_time(&args.sample).filter(|ps| *ps > 0) else {
        return Ok(refuse(&format!("--sample: {:?} is not a time", args.sample)));
    };
    if args.output.is_some() || args.plot.is_some() {
        run.record(every_ps);
    }
    stop::watch()?;
    // The directory is made first: a long run should not fail at its end.
    if let Some(dir) = &args.output {
        files::create(dir)?;
    }
    let mut pcaps = Pcaps::default();
    for (port, file) in &ports {
        run.capture(*port);
        pcaps.add(*port, file)?;
    }
    let start = Instant::now();
    let mut progress = Progress::new(run.unfinished());
    while !stop::requested() && (0..STRIDE).all(|_| run.step()) {
        progress.show(&run);
        pcaps.write(&mut run, false)?;
    }
    progress.clear();
    pcaps.write(&mut run, true)?;
    let outcome = run.finish();
    let summary = Summary::new(&outcome, args.seed, start.elapsed());
    if let Some(dir) = &args.output {
        files::write(dir, &outcome, &summary)?;
    }
    if let Some(file) = &args.plot {
        plot::write(file, &outcome)?;
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{summary}");
    }
    Ok(ExitCode::from(u8::from(!summary.is_complete())))
}

/// A line on the terminal that says how far the run is.
struct Progress {
    flows: usize,
    start: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(200);
    /// Characters of the bar.
    const BAR: f64 = 20.0;

    fn new(flows: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { flows, start: Instant::now(), shown: None, is_terminal }
    }

    fn show(&mut self, run: &Run) {
        if !self.is_terminal || self.shown.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let ended = self.flows - run.unfinished();
        let (us, part) = (run.now().as_ns() as f64 / 1000.0, run.progress());
        let left = self.start.elapsed().as_secs_f64() * (1.0 - part) / part.max(1e-9);
        let bar = "#".repeat((part * Self::BAR) as usize);
        eprint!(
            "\r[{bar:<width$}] {us:.1} us simulated, {ended} of {} flows ended, {left:.0} s left\
             \x1b[K",
            self.flows,
            width = Self::BAR as usize
        );
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
