//! `feroce fabric`: a network of switches in real time, under programs as they are.
//!
//! One process runs the model of `feroce-fabric` ([`serve`], with [`pump`] between sockets and
//! model, and [`pace`] for its clock). Programs connect to it with a carrier of their own
//! (`feroce_link::port`), commands by [`control`].

mod admission;
mod control;
mod groups;
mod link;
mod pace;
mod packet;
mod pcap;
mod place;
mod pump;
mod report;
mod run;
mod serve;
pub(crate) mod status;
mod subnet;
mod up;

use std::process::ExitCode;

use place::Place;

const EXAMPLES: &str = "\
Examples:
  feroce fabric up lot.toml                  start the switches of a topology
  feroce fabric run -n h0 -- ib_write_bw     a program on host h0
  feroce fabric run -n h3 -- ib_write_bw 127.77.0.1
  feroce fabric link s0:2 loss 1%            change a link while programs run
  feroce fabric status                       what passed, what was dropped
  feroce fabric down

`feroce fabric up --help` shows a topology.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the fabric, if several run.
    #[arg(long, global = true, default_value = place::DEFAULT_NAME, value_name = "NAME")]
    #[arg(value_parser = place::parse_name)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start a fabric.
    Up(up::UpArgs),
    /// Run a program on a host of the fabric.
    Run(Box<run::Args>),
    /// Change a link.
    Link(link::Args),
    /// Show hosts, links and what passed.
    Status(status::Args),
    /// Capture what passes a port.
    Pcap(pcap::Args),
    /// End a fabric.
    Down(up::DownArgs),
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let place = Place::new(&args.name)?;
    match &args.command {
        Command::Up(args) => up::up(args, &place, json),
        Command::Run(args) => run::run(args, &place),
        Command::Link(args) => link::run(args, &place),
        Command::Status(_) => status::run(&place, json),
        Command::Pcap(args) => pcap::run(args, &place),
        Command::Down(_) => up::down(&place),
    }
}

/// Says what is wrong with an input. The exit status tells it from what failed.
fn refuse(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("feroce: {error}");
    ExitCode::from(2)
}
