//! `feroce sim new`.

use std::fmt::Write as _;
use std::process::ExitCode;

use feroce_sim::scenario::text;

use super::refuse;

const EXAMPLES: &str = "\
Examples:
  feroce sim new leaf-spine --leaves 4 --spines 4 --hosts 8 --rate 100G > ls32.toml
  feroce sim new torus --dims 4x4x4 --congestion connectx --ecn by-rate > torus.toml
  feroce sim new star --hosts 16 --empty > star.toml       without flows, which are added by
  feroce sim traffic star.toml --kind incast --bytes 1M >> star.toml";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What is connected to what.
    kind: Kind,
    /// Hosts of a star, of each leaf, or of each switch of a parking lot or a torus.
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// Switches of a ring or a parking lot.
    #[arg(long, value_name = "N")]
    switches: Option<usize>,
    /// Leaves.
    #[arg(long, value_name = "N")]
    leaves: Option<usize>,
    /// Spines.
    #[arg(long, value_name = "N")]
    spines: Option<usize>,
    /// Ports of each switch of a fat tree.
    #[arg(short, long, value_name = "N")]
    k: Option<usize>,
    /// Switches in each direction of a torus, such as 4x4 or 4x4x4.
    #[arg(long, value_name = "AxB")]
    dims: Option<String>,
    /// Rate of every link.
    #[arg(long, default_value = "100G", value_name = "RATE")]
    rate: String,
    /// Propagation delay of every link.
    #[arg(long, default_value = "1us", value_name = "TIME")]
    delay: String,
    /// Buffer of every switch.
    #[arg(long, default_value = "32MiB", value_name = "SIZE")]
    buffer: String,
    /// When switches mark packets: off or by-rate.
    #[arg(long, default_value = "by-rate", value_name = "WORD")]
    ecn: String,
    /// Congestion control of hosts, such as none, dcqcn or connectx.
    #[arg(long, default_value = "connectx", value_name = "WORD")]
    congestion: String,
    /// Leave out the flows.
    #[arg(long)]
    empty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    Star,
    Ring,
    ParkingLot,
    Torus,
    LeafSpine,
    FatTree,
}

impl Kind {
    /// The word in a scenario, and the numbers that it takes if none are given.
    fn defaults(self) -> (&'static str, &'static [(&'static str, usize)]) {
        match self {
            Self::Star => ("star", &[("hosts", 8)]),
            Self::Ring => ("ring", &[("switches", 5)]),
            Self::ParkingLot => ("parking-lot", &[("switches", 3), ("hosts", 1)]),
            Self::Torus => ("torus", &[("hosts", 1)]),
            Self::LeafSpine => ("leaf-spine", &[("leaves", 4), ("spines", 4), ("hosts", 8)]),
            Self::FatTree => ("fat-tree", &[("k", 4)]),
        }
    }
}

/// The flows of a scenario that is not to be empty.
const FLOWS: &str = "
# Every host sends a megabyte to the next one.
[[pattern]]
kind = \"permutation\"
bytes = \"1M\"
";

pub(super) fn run(args: &Args) -> ExitCode {
    let text = match scenario(args) {
        Ok(text) => text,
        Err(e) => return refuse(&e),
    };
    if let Err(e) = text::check_network(&text) {
        return refuse(&e);
    }
    print!("{text}{}", if args.empty { "" } else { FLOWS });
    ExitCode::SUCCESS
}

fn scenario(args: &Args) -> Result<String, String> {
    let (kind, defaults) = args.kind.defaults();
    let mut text = format!("[topology]\nkind = \"{kind}\"\n");
    let given = [
        ("hosts", args.hosts),
        ("switches", args.switches),
        ("leaves", args.leaves),
        ("spines", args.spines),
        ("k", args.k),
    ];
    for (name, value) in given {
        let default = defaults.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        match (value, default) {
            (Some(_), None) => return Err(format!("--{name} does not fit a {kind}")),
            (None, None) => {}
            (value, Some(default)) => {
                let _ = writeln!(text, "{name} = {}", value.unwrap_or(default));
            }
        }
    }
    match (&args.dims, args.kind == Kind::Torus) {
        (Some(_), false) => return Err(format!("--dims does not fit a {kind}")),
        (None, false) => {}
        (dims, true) => {
            let word = dims.as_deref().unwrap_or("4x4");
            let dims: Option<Vec<usize>> = word.split('x').map(|n| n.parse().ok()).collect();
            let dims = dims.ok_or_else(|| format!("--dims: {word:?} is not like 4x4 or 4x4x4"))?;
            let _ = writeln!(text, "dims = {dims:?}");
        }
    }
    let Args { rate, delay, buffer, ecn, congestion, .. } = args;
    for (name, word) in [("rate", rate), ("delay", delay)] {
        let _ = writeln!(text, "{name} = {word:?}");
    }
    let _ = write!(
        text,
        "\n[switch]\nbuffer = {buffer:?}\necn = {ecn:?}\n\n[host]\ncongestion = {congestion:?}\n"
    );
    Ok(text)
}
