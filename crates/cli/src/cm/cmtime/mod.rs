//! `feroce cmtime`: measures how long each step of connection setup and teardown takes.

mod client;
mod server;
mod steps;

use std::process::ExitCode;

use feroce::cm::{CmId, Manager};
use serde_json::json;

use super::place::{EndArgs, Target};
use super::{Program, Report, Say};
use steps::Steps;

const EXAMPLES: &str = "\
Examples:
  feroce cmtime --both -c 2000             2,000 connections between two adapters here
  feroce cmtime                            a server, until interrupted ...
  feroce cmtime -s 192.0.2.1 -c 500        ... and a client that measures
  cmtime -s 192.0.2.1                      the client may be that of rdma-core, too

A step is done for all connections before the next begins.";

/// Options of `cmtime`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct Args {
    #[command(flatten)]
    end: EndArgs,
    /// Connections
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Port of the server
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// Retries of a connection without an answer
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(..=7))]
    retries: u8,
    /// Milliseconds to resolve an address
    #[arg(short, long, default_value_t = 2000)]
    timeout: u32,
    /// Connections to set up, or to end, at the same time
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    super::run(args, args.end.place(args.port)?, json)
}

impl Program for Args {
    fn serve(&self, _: &Manager, listener: &CmId, _: Say) -> Report {
        // With `--both`, the server has only the client in this process, and ends after as many
        // connections as that client opens.
        let most = self.end.is_both().then_some(self.connections);
        let (served, result) = server::serve(listener, most);
        Report { record: json!({ "test": "cmtime", "role": "server", "served": served }), result }
    }

    fn call(&self, manager: &Manager, target: Target, say: Say) -> Report {
        let mut steps = Steps::new(target.from.is_some());
        let result = client::call(self, manager, target, &mut steps);
        steps.print(say);
        Report { record: steps.record(self.connections), result }
    }
}
