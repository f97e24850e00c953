//! `cargo xtask soak`: what only shows after a while.

use core::time::Duration;
use std::process::Command;

use crate::Outcome;
use crate::args::Args;
use crate::campaign;
use crate::shell::{cargo, run};

pub(crate) const HELP: &str = "\
Runs random operations over sockets with every byte checked, then pairs of processes of one host
that are killed at any time, while those that are left check every byte and that nothing is left of
the others. With some of the options, only those.

Usage: cargo xtask soak [--operations S] [--kills S] [--connections S] [--streams N]
       cargo xtask soak --resume [--seconds S]

Options:
  --operations S   Seconds of random operations (default: 60)
  --kills S        Seconds of processes that are killed (default: 120)
  --connections S  Seconds of iWARP connections that are slowed, cut and reset
  --streams N      Malformed iWARP streams to engines, and one in a hundred over sockets
  --resume         Go on with a campaign of swarm seeds and fuzzing. What it has done is in
                   $XDG_CACHE_HOME/feroce/soak (else ~/.cache/feroce/soak)
  --seconds S      For how long, about (default: 600)
";

pub(crate) fn main(mut args: Args) -> Outcome {
    if args.flag("--resume") {
        let seconds = args.value("--seconds")?.unwrap_or(600);
        args.finish()?;
        return campaign::resume(Duration::from_secs(seconds));
    }
    let mut seconds = (args.value("--operations")?, args.value("--kills")?);
    let (for_connections, for_streams) = (args.value("--connections")?, args.value("--streams")?);
    args.finish()?;
    if seconds == (None, None) && for_connections.is_none() && for_streams.is_none() {
        seconds = (Some(60), Some(120));
    }
    if let Some(seconds) = seconds.0 {
        run(&mut operations(seconds, ""))?;
    }
    if let Some(seconds) = seconds.1 {
        run(&mut kills(seconds))?;
    }
    if let Some(seconds) = for_connections {
        run(&mut connections(seconds))?;
    }
    if let Some(count) = for_streams {
        streams(count).iter_mut().try_for_each(run)?;
    }
    Ok(())
}

/// Random operations on a network that does what `faults` says.
pub(crate) fn operations(seconds: u64, faults: &str) -> Command {
    let mut soak = cargo(["test", "--package=feroce", "--test=soak", "--profile=swarm"]);
    soak.args(["--", "--nocapture", "random_operations"]);
    soak.env("FEROCE_TEST_SOAK_SECONDS", seconds.to_string()).env("FEROCE_FAULT", faults);
    soak
}

/// Processes that are killed.
pub(crate) fn kills(seconds: u64) -> Command {
    let mut soak = cargo(["test", "--package=feroce", "--test=processes", "--profile=swarm"]);
    soak.args(["--", "--nocapture", "--exact", "processes_may_die_at_any_time"]);
    soak.env("FEROCE_TEST_KILL_SECONDS", seconds.to_string());
    soak
}

/// Connections over iWARP that are slowed, cut and reset.
fn connections(seconds: u64) -> Command {
    let mut soak = cargo(["test", "--package=feroce", "--test=soak", "--profile=swarm"]);
    soak.args(["--", "--nocapture", "streams::"]);
    soak.env("FEROCE_TEST_SOAK_SECONDS", seconds.to_string());
    soak
}

/// Streams that are almost right, to engines and to a device.
fn streams(count: u64) -> [Command; 2] {
    let tests = |package: &str| {
        let mut tests = cargo(["test", "--package", package, "--test=tests", "--profile=swarm"]);
        // One at a time: they look at the memory of the process.
        tests.args(["--", "--nocapture", "--test-threads=1", "iwarp_malformed"]);
        tests
    };
    let (mut engine, mut device) = (tests("feroce-engine"), tests("feroce"));
    engine.env("FEROCE_TEST_STREAMS", count.to_string());
    device.env("FEROCE_TEST_PEERS", (count / 100).to_string());
    [engine, device]
}
