//! `cargo xtask sim`: the simulator of fabrics, compared with another one.

use std::process::Command;

use crate::Outcome;
use crate::args::Args;
use crate::shell::{cargo, run};

pub(crate) const HELP: &str = "\
Runs the scenarios of crates/sim/tests/ns3, which ns-3 has run as well, and compares the
figures. Prints a table; fails if a figure differs by more than it may. Then runs random
networks with random flows, and looks whether what must always hold does.

Usage: cargo xtask sim
";

pub(crate) fn main(args: Args) -> Outcome {
    args.finish()?;
    run(&mut command())?;
    run(&mut random_networks())
}

/// Seeds of random networks.
const SEEDS: &str = "1000";

/// The command that runs random networks.
fn random_networks() -> Command {
    let bin = ["run", "--quiet", "--profile", "swarm", "-p", "feroce-sim", "--bin", "fabrics"];
    let mut command = cargo(bin);
    command.args(["--", "0", SEEDS]);
    command
}

/// The command that compares.
pub(crate) fn command() -> Command {
    let bin = ["run", "--quiet", "--profile", "swarm", "-p", "feroce-sim", "--bin", "ns3"];
    let mut command = cargo(bin);
    command.args(["--", "crates/sim/tests/ns3"]);
    command
}
