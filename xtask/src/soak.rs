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
the others. With one of the options, only that.

Usage: cargo xtask soak [--operations S] [--kills S]
       cargo xtask soak --resume [--seconds S]

Options:
  --operations S   Seconds of random operations (default: 60)
  --kills S        Seconds of processes that are killed (default: 120)
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
    args.finish()?;
    if seconds == (None, None) {
        seconds = (Some(60), Some(120));
    }
    if let Some(seconds) = seconds.0 {
        run(&mut operations(seconds, ""))?;
    }
    if let Some(seconds) = seconds.1 {
        run(&mut kills(seconds))?;
    }
    Ok(())
}

/// Random operations on a network that does what `faults` says.
pub(crate) fn operations(seconds: u64, faults: &str) -> Command {
    let mut soak = cargo(["test", "--package=feroce", "--test=soak", "--profile=swarm"]);
    soak.args(["--", "--nocapture"]);
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
