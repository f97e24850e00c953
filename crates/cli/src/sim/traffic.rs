//! `feroce sim traffic`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use feroce_fabric::{Rate, Topology};
use feroce_sim::scenario::workload::{self, Cdf, Poisson, Step};
use feroce_sim::scenario::{self, units};

use super::refuse;

const EXAMPLES: &str = "\
Examples:
  feroce sim traffic ls32.toml --load 0.5 --cdf WebSearch.txt --duration 10ms >> ls32.toml
  feroce sim traffic --hosts 32 --rate 100G --load 0.5 --cdf WebSearch.txt    without a scenario
  feroce sim traffic ls32.toml --kind all-reduce-ring --bytes 100M >> ls32.toml
  feroce sim traffic --hosts 8 --kind incast --to 3 --bytes 1M --format hpcc > flow.txt

The distribution has a size in bytes and per cent in each line, linear between:
  0 0
  10000 15
  30000000 100";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A scenario, for its hosts and rates; its flows do not count.
    scenario: Option<PathBuf>,
    /// Hosts, without a scenario.
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// Rate of every host, without a scenario.
    #[arg(long, default_value = "100G", value_name = "RATE")]
    rate: String,
    /// What the traffic is.
    #[arg(long, default_value = "poisson")]
    kind: Kind,
    /// Poisson: the part of each host's rate that it sends on average.
    #[arg(long, value_name = "PART")]
    load: Option<f64>,
    /// Poisson: file with the distribution of sizes.
    #[arg(long, value_name = "FILE")]
    cdf: Option<PathBuf>,
    /// Poisson: how long flows arrive.
    #[arg(long, default_value = "10ms", value_name = "TIME")]
    duration: String,
    /// Others: bytes of each flow, or of the data that is reduced.
    #[arg(long, value_name = "SIZE")]
    bytes: Option<String>,
    /// Incast: the number of the receiver.
    #[arg(long, default_value_t = 0, value_name = "HOST")]
    to: u32,
    /// When the first flow starts.
    #[arg(long, default_value = "0us", value_name = "TIME")]
    start: String,
    /// Priority of all packets.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = priority())]
    priority: u8,
    /// What is random follows from it.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// What to print: tables of a scenario, or flow.txt of HPCC's ns-3.
    #[arg(long, default_value = "toml")]
    format: Format,
}

fn priority() -> impl clap::builder::TypedValueParser<Value = u8> {
    clap::value_parser!(u8).range(0..8)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    /// Flows of random sizes at random times between random hosts.
    Poisson,
    /// All hosts to one.
    Incast,
    /// Every host to another.
    Permutation,
    /// Every host to all others.
    AllToAll,
    /// All-reduce in a ring.
    AllReduceRing,
    /// All-reduce by halves and doubles; the hosts must be a power of two.
    AllReduceButterfly,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Format {
    Toml,
    Hpcc,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let printed = rates(args).and_then(|rates| {
        let steps = steps(args, &rates)?;
        if steps.is_empty() {
            return Err("no flows: fewer than two hosts, or too short a time".into());
        }
        match args.format {
            Format::Toml => Ok(toml(args, &steps)),
            Format::Hpcc => hpcc(args, &steps),
        }
    });
    match printed {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => refuse(&e),
    }
}

/// The rates of all hosts.
fn rates(args: &Args) -> Result<Vec<Rate>, String> {
    let topology: Topology = match (&args.scenario, args.hosts) {
        (Some(file), None) => scenario::read_topology(file).map_err(|e| e.to_string())?,
        (None, Some(hosts)) => {
            let rate = units::parse_rate(&args.rate);
            let rate = rate.ok_or_else(|| format!("--rate: {:?} is not a rate", args.rate))?;
            return Ok(vec![rate; hosts]);
        }
        _ => return Err("a scenario, or --hosts: one of them says how many hosts there are".into()),
    };
    Ok(topology.host_rates())
}

fn steps(args: &Args, rates: &[Rate]) -> Result<Vec<Step>, String> {
    let hosts = rates.len() as u32;
    let start_ps = time("start", &args.start)?;
    let mut steps = if args.kind == Kind::Poisson {
        let load = args.load.filter(|load| *load > 0.0 && *load <= 1.0);
        let load = load.ok_or("--load: more than 0, at most 1")?;
        let file = args.cdf.as_ref().ok_or("--cdf: a file with a distribution of sizes")?;
        let cdf = Cdf::read(file).map_err(|e| e.to_string())?;
        let duration_ps = time("duration", &args.duration)?;
        Poisson { cdf: &cdf, load, duration_ps, seed: args.seed }.draw(rates)
    } else {
        let word = args.bytes.as_deref().ok_or("--bytes: how much a flow carries")?;
        let bytes = units::parse_size(word);
        let bytes = bytes.ok_or_else(|| format!("--bytes: {word:?} is not a size"))?;
        match args.kind {
            Kind::Incast if args.to >= hosts => {
                return Err(format!("--to: host {} of {hosts}", args.to));
            }
            Kind::Incast => workload::incast(hosts, args.to, bytes),
            Kind::Permutation => workload::permutation(hosts, args.seed, bytes),
            Kind::AllToAll => workload::all_to_all(hosts, bytes),
            Kind::AllReduceRing => workload::all_reduce_ring(hosts, bytes),
            Kind::AllReduceButterfly => workload::all_reduce_butterfly(hosts, bytes)
                .ok_or_else(|| format!("{hosts} hosts are not a power of two"))?,
            Kind::Poisson => Vec::new(),
        }
    };
    for step in &mut steps {
        step.start_ps = step.start_ps.saturating_add(start_ps);
    }
    Ok(steps)
}

fn time(option: &str, word: &str) -> Result<u64, String> {
    units::parse_time(word).ok_or_else(|| format!("--{option}: {word:?} is not a time"))
}

fn toml(args: &Args, steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let Step { from, to, bytes, start_ps, after } = step;
        let _ = write!(text, "\n[[flow]]\nfrom = {from}\nto = {to}\nbytes = {bytes}\n");
        if *start_ps > 0 {
            let _ = writeln!(text, "start = \"{start_ps}ps\"");
        }
        if args.priority != 3 {
            let _ = writeln!(text, "priority = {}", args.priority);
        }
        if !after.is_empty() {
            let _ = writeln!(text, "after = {after:?}");
        }
    }
    text
}

/// Number of flows, and source, destination, priority, port, bytes and seconds of each.
fn hpcc(args: &Args, steps: &[Step]) -> Result<String, String> {
    if steps.iter().any(|step| !step.after.is_empty()) {
        return Err("flow.txt of ns-3 has no flows that wait for others".into());
    }
    let mut text = format!("{}\n", steps.len());
    for Step { from, to, bytes, start_ps, .. } in steps {
        let seconds = *start_ps as f64 / 1e12;
        let _ = writeln!(text, "{from} {to} {} 100 {bytes} {seconds:.9}", args.priority);
    }
    Ok(text)
}
