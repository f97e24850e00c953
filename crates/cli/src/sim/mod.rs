//! `feroce sim`: flows over a network of switches, in virtual time.

mod compare;
mod diagnosis;
mod files;
mod grid;
mod merge;
mod new;
mod pcap;
mod plot;
mod run;
mod summary;
mod svg;
mod sweep;
mod table;
mod traffic;

use std::process::ExitCode;

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run a scenario.
    Run(run::Args),
    /// Print a scenario to begin with.
    New(new::Args),
    /// Print flows for a scenario.
    Traffic(traffic::Args),
    /// Run a scenario with many seeds and settings, on all cores.
    Sweep(sweep::Args),
    /// Show the parts of a sweep as one.
    Merge(merge::Args),
    /// Show the completion times of two runs side by side.
    Compare(compare::Args),
}

pub(crate) fn run(command: &Command, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args, json),
        Command::New(args) => Ok(new::run(args)),
        Command::Traffic(args) => Ok(traffic::run(args)),
        Command::Sweep(args) => sweep::run(args, json),
        Command::Merge(args) => merge::run(args, json),
        Command::Compare(args) => compare::run(args, json),
    }
}

/// Says what is wrong with an input. The exit status tells it from a run that failed.
fn refuse(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("feroce: {error}");
    ExitCode::from(2)
}
