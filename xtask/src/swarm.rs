//! `cargo xtask swarm`: seeded simulations of the whole stack.

use std::process::Command;

use crate::args::Args;
use crate::manifest::Manifest;
use crate::shell::{cargo, root, run};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Runs seeded simulations of the whole stack. One seed decides everything that happens in a
run, so a failure is replayed by giving its seed.

Usage: cargo xtask swarm [--seed N] [--count K] [--jobs J] [--shards N]

Options:
  --seed N    First seed (default: FEROCE_SEED, or else 1)
  --count K   How many seeds to run, N, N+1, ... (default: 1)
  --jobs J    How many to run at the same time (default: one per core)
  --shards N  Every node has N shards, 1 to 4 (default: what the seed says)
";

/// Which seeds to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) jobs: usize,
}

impl Seeds {
    /// `count` seeds from FEROCE_SEED on, or else from 1 on: never from a random one, so that
    /// two runs of the same commit do the same.
    pub(crate) fn from_environment(count: u64) -> Outcome<Self> {
        let first = match std::env::var("FEROCE_SEED") {
            Ok(text) => text
                .parse()
                .map_err(|_| Failure::Usage(format!("FEROCE_SEED={text}: not a number")))?,
            Err(_) => 1,
        };
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { first, count, jobs })
    }
}

pub(crate) fn main(mut args: Args) -> Outcome {
    let mut seeds = Seeds::from_environment(1)?;
    seeds.first = args.value("--seed")?.unwrap_or(seeds.first);
    seeds.count = args.value("--count")?.unwrap_or(seeds.count);
    seeds.jobs = args.value("--jobs")?.unwrap_or(seeds.jobs);
    let shards = args.value::<u8>("--shards")?;
    args.finish()?;
    if seeds.count == 0 || seeds.jobs == 0 {
        return Err(Failure::Usage("`--count` and `--jobs` start at 1".into()));
    }
    if !exists() {
        return Err(Failure::Failed("the swarm binary is not in the tree yet".into()));
    }
    let mut command = command(seeds);
    if let Some(count) = shards {
        command.args(["--shards", &count.to_string()]);
    }
    run(&mut command)
}

/// Whether the simulator has a binary called `swarm`.
pub(crate) fn exists() -> bool {
    let sim = root().join("crates/sim");
    let named = std::fs::read_to_string(sim.join("Cargo.toml"))
        .is_ok_and(|text| Manifest::parse(&text).binaries().contains(&"swarm"));
    named || sim.join("src/bin/swarm.rs").exists() || sim.join("src/bin/swarm/main.rs").exists()
}

/// The command that runs these seeds.
pub(crate) fn command(seeds: Seeds) -> Command {
    let mut command = binary();
    command.args(["--seed", &seeds.first.to_string()]);
    command.args(["--count", &seeds.count.to_string()]);
    command.args(["--jobs", &seeds.jobs.to_string()]);
    command
}

/// The command that writes down the program of a seed, for adapters that are not simulated.
pub(crate) fn program(seed: &str) -> Command {
    let mut command = binary();
    command.args(["--program", "--seed", seed]);
    command
}

fn binary() -> Command {
    cargo(["run", "--quiet", "--profile", "swarm", "-p", "feroce-sim", "--bin", "swarm", "--"])
}
