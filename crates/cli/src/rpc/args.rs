//! The command line of `feroce rpc`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use feroce_rpc::patterns::Pattern;

use super::measure::Amount;
use crate::size;

/// What to do with calls.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Measure calls over verbs, built in seven ways.
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The same calls over each pattern: an echo, GET and PUT of a key-value store, and a fetch of 1 MiB.
One call is under way at a time, and both ends poll. The patterns:
  send        SEND into a posted receive
  inline      SEND whose bytes are in the work request
  write-poll  WRITE into memory that the receiver polls
  write-imm   WRITE with immediate data: bytes in place, and a completion
  write-send  WRITE, and a short SEND behind it
  read-fetch  WRITE the request, READ the reply
  hybrid      inline, SEND, or WRITE and SEND, by length

Examples:
  feroce rpc bench --both                      all patterns, two processes on this machine
  feroce rpc bench                             server
  feroce rpc bench --pattern write-poll HOST   client
  feroce rpc bench --both --plot calls.svg     echoes of many lengths, drawn")]
pub(crate) struct BenchArgs {
    /// The server to measure with; without it, be the server.
    #[arg(conflicts_with = "both")]
    pub(super) host: Option<String>,
    /// Run both ends on this machine, in two processes.
    #[arg(long)]
    pub(super) both: bool,
    /// Pattern to measure; may be given more than once [default: all].
    #[arg(long, value_name = "PATTERN", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(Pattern::ALL.map(Pattern::name))
              .try_map(|name| name.parse::<Pattern>()))]
    pattern: Vec<Pattern>,
    /// Bytes in an echo [default: 64; with --plot, many lengths].
    #[arg(short, long, value_parser = |text: &str| size::parse(text, &(0..=1_usize << 20)))]
    size: Option<usize>,
    /// Calls to measure, of each kind [default: as many as go in half a second].
    #[arg(short = 'n', long, visible_alias = "iters", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Seconds to measure each kind of call.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Our address; with --both, those of server and client.
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    pub(super) address: Vec<IpAddr>,
    /// Port of the server.
    #[arg(short, long, default_value_t = 18516)]
    pub(super) port: u16,
    /// Draw the latency of echoes over their length.
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Be a server that ends with its standard input.
    #[arg(long, hide = true)]
    pub(super) child: bool,
}

impl BenchArgs {
    pub(super) fn patterns(&self) -> Vec<Pattern> {
        if self.pattern.is_empty() { Pattern::ALL.to_vec() } else { self.pattern.clone() }
    }

    /// Lengths of echoes.
    pub(super) fn sizes(&self) -> Vec<usize> {
        match self.size {
            Some(size) => vec![size],
            None if self.plot.is_some() => (4..=20).step_by(2).map(|bits| 1 << bits).collect(),
            None => vec![64],
        }
    }

    pub(super) fn amount(&self) -> Amount {
        match self.iterations {
            Some(n) => Amount::Calls(n),
            None => {
                let seconds = self.duration.unwrap_or(0.5);
                Amount::Time(Duration::try_from_secs_f64(seconds).unwrap_or_default())
            }
        }
    }
}
