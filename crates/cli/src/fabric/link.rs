//! `feroce fabric link`.

use std::process::ExitCode;

use feroce_sim::scenario::{parse_chance, parse_rate};

use super::control::{Change, Command, Reply};
use super::place::Place;
use super::refuse;

const EXAMPLES: &str = "\
Examples:
  feroce fabric link leaf1:3 down       what it carries is lost; paths are found anew
  feroce fabric link leaf1:3 up
  feroce fabric link s0:2 loss 1%       of the packets in each direction
  feroce fabric link h3:0 rate 10G

A port is a node and the number of the port there; `feroce fabric status` names them. The change is
to the link behind it, in both directions. Links of InfiniBand lose nothing, so they take no loss.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A port at one end of the link, such as leaf1:3.
    port: String,
    #[command(subcommand)]
    change: Word,
}

#[derive(Debug, clap::Subcommand)]
enum Word {
    /// Repair it.
    Up,
    /// Let it fail.
    Down,
    /// Let it lose packets.
    Loss {
        /// How many: `1%` or `0.01`
        #[arg(value_parser = parse_loss)]
        loss: f64,
    },
    /// Change its rate.
    Rate {
        /// Bits per second: `10G`
        #[arg(value_parser = parse_bps)]
        rate: u64,
    },
}

pub(super) fn run(args: &Args, place: &Place) -> anyhow::Result<ExitCode> {
    let change = match args.change {
        Word::Up => Change::Up,
        Word::Down => Change::Down,
        Word::Loss { loss } => Change::Loss(loss),
        Word::Rate { rate } => Change::Rate(rate),
    };
    let command = Command::Link { port: args.port.clone(), change };
    match place.command(&command)?.0 {
        Reply::Refused(why) => Ok(refuse(&why)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn parse_loss(word: &str) -> Result<f64, String> {
    parse_chance(word).ok_or_else(|| "0% to 100%".to_owned())
}

fn parse_bps(word: &str) -> Result<u64, String> {
    parse_rate(word).map(|rate| rate.bps()).ok_or_else(|| "a rate, such as 10G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_rates_are_read_as_people_write_them() {
        assert_eq!(parse_loss("1%"), Ok(0.01));
        assert_eq!(parse_loss("0.5"), Ok(0.5));
        for wrong in ["101%", "-1%", "nan", "often", "1.5", ""] {
            assert!(parse_loss(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_bps("10G"), Ok(10_000_000_000));
        assert!(parse_bps("0").is_err());
    }
}
