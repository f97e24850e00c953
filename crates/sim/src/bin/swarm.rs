//! Runs seeds of the swarm.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use feroce_sim::mesh::Stats;
use feroce_sim::{Failure, Options, Summary, check, program};

const HELP: &str = "\
Runs seeded simulations. A failure prints its seed, the oracle that was violated and the last
events before.

Usage: swarm [--seed N] [--count K] [--jobs J] [--trace] [--counts] [--keep-going] [--program]
             [--shards N]

Options:
  --seed N       First seed (default: 1)
  --count K      How many seeds, N, N+1, ... (default: 1)
  --jobs J       How many at the same time (default: one per core)
  --shards N     Every node has N shards, 1 to 4 (default: what the seed says)
  --trace        Print every event
  --counts       Print what the engines counted, and completions by outcome
  --keep-going   Do not stop at the first failures
  --program      Run one seed with what any two adapters can do, and write it down for them
";

struct Args {
    seed: u64,
    count: u64,
    jobs: usize,
    keep_going: bool,
    counts: bool,
    program: bool,
    options: Options,
}

fn parse() -> Result<Option<Args>, String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut args = Args {
        seed: 1,
        count: 1,
        jobs,
        keep_going: false,
        counts: false,
        program: false,
        options: Options::default(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            value.parse::<u64>().map_err(|_| format!("{word} {value}: not a number"))
        };
        match word.as_str() {
            "--seed" => args.seed = number()?,
            "--count" => args.count = number()?,
            "--jobs" => args.jobs = usize::try_from(number()?).unwrap_or(1).max(1),
            "--shards" => args.options.shards = Some(usize::try_from(number()?).unwrap_or(0)),
            "--trace" => args.options.trace = true,
            "--keep-going" => args.keep_going = true,
            "--counts" => args.counts = true,
            "--program" => args.program = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if args.options.shards.is_some_and(|count| !(1..=4).contains(&count)) {
        return Err("--shards is 1 to 4".into());
    }
    Ok(Some(args))
}

/// What all runs together were like.
#[derive(Default)]
struct Total {
    wire: Stats,
    posted: u64,
    events: u64,
    counts: BTreeMap<String, u64>,
    /// Sum of the digests of all runs, so that the order in which threads finish is irrelevant.
    digest: u64,
    failures: Vec<Failure>,
}

impl Total {
    fn add(&mut self, summary: &Summary) {
        self.wire.add(&summary.wire);
        self.posted += summary.posted;
        self.events += summary.events;
        self.digest = self.digest.wrapping_add(summary.digest());
        for (name, n) in &summary.counts {
            *self.counts.entry(name.clone()).or_insert(0) += n;
        }
    }
}

/// How many failures are enough to stop.
const ENOUGH: usize = 5;

fn run_all(args: &Args) -> Total {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Total::default());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= args.count {
                break;
            }
            let outcome = check(args.seed + i, &args.options);
            let Ok(mut total) = total.lock() else { break };
            match outcome {
                Ok(summary) => total.add(&summary),
                Err(failure) => {
                    println!("{failure}");
                    total.failures.push(*failure);
                    stop.store(
                        !args.keep_going && total.failures.len() >= ENOUGH,
                        Ordering::Relaxed,
                    );
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(work);
        }
    });
    total.into_inner().unwrap_or_default()
}

/// Writes down the program of a seed, if it does here what it should.
fn write_program(seed: u64) -> ExitCode {
    match program(seed) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(Some(args)) => args,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("swarm: {problem}");
            return ExitCode::from(2);
        }
    };
    // A panic is reported with its seed; the usual message on standard error would come first.
    std::panic::set_hook(Box::new(|info| {
        if let Some(place) = info.location() {
            eprintln!("panic at {place}");
        }
    }));
    if args.program {
        return write_program(args.seed);
    }
    let Total { wire, posted, events, counts, digest, mut failures } = run_all(&args);
    if args.counts {
        counts.iter().for_each(|(name, n)| println!("{n:>12} {name}"));
    }
    failures.sort_by_key(|failure| failure.seed);
    for Failure { seed, violation, .. } in &failures {
        println!("FEROCE_SEED={seed}: {violation}");
    }
    println!(
        "swarm: {} seeds from {}, {} failures, {} packets, {} lost, {} corrupted, {} duplicated, \
         {} reordered, {} forged, {posted} requests, {events} events, digest {digest:016x}",
        args.count,
        args.seed,
        failures.len(),
        wire.packets,
        wire.lost,
        wire.corrupted,
        wire.duplicated,
        wire.reordered,
        wire.forged,
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
