//! Compares feroce with other programs: between two network namespaces joined by a cable (veth, MTU
//! 9000), and between two processes of one host.
//!
//! Each row of a table is a server and a client, one process each. Rows take turns, so that a
//! change of the machine's speed affects all of them. The best run of each row counts, unless its
//! figure is implausible. The ratios of rows are the results to look at.

mod cable;
mod clock;
mod load;
mod neighbour;
mod read;
mod report;
mod rows;
mod run;
mod tcp;
mod tools;
mod udp;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use clap::Parser as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use cable::{Cable, Place};
use load::Machine;
use report::{Report, Series};
use rows::{Row, TABLES, TURNS};
use run::Runner;
use tools::Tools;

/// Measures feroce against iperf3, plain UDP, UCX and libfabric in the same run, and what programs
/// of libibverbs get of it.
#[derive(Debug, clap::Parser)]
#[command(after_help = "\
Exits with 0 if every ratio is as wanted, 1 if one is not or something failed, 2 if it cannot run.
As root on Debian it installs iperf3, ucx-utils, libfabric-bin and perftest if they are missing.

Examples:
  compare                      everything, best of 5
  compare --quick              one short round: shows that it runs, the figures mean little
  compare --only feroce,UDP    rows that have one of these words in their names
  compare --only host          what happens inside one host
  compare --realtime           as root, when the machine is busy with other things")]
struct Args {
    /// Rounds; the best run of each row counts [default: 5].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds that one run takes; for latencies over the cable that is five turns, of which the
    /// one in the middle counts [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// One round of one second.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// Run only rows with one of these in their names.
    #[arg(long, value_delimiter = ',', value_name = "WORD")]
    only: Vec<String>,
    /// Run both ends of every row at real-time priority (SCHED_FIFO 50).
    #[arg(long)]
    realtime: bool,
    /// Do not install what is missing, leave out its rows.
    #[arg(long)]
    no_install: bool,
    /// The feroce command to measure [default: built from this tree].
    #[arg(long, value_name = "PATH")]
    feroce: Option<PathBuf>,
    /// Print one JSON object per row, per ratio, and for the machine.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program does when it is one of the ends.
#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Plain UDP.
    #[command(subcommand, hide = true)]
    Udp(udp::Role),
    /// Plain TCP.
    #[command(subcommand, hide = true)]
    Tcp(tcp::Role),
    /// Keeps a processor busy.
    #[command(hide = true)]
    Spin,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.part {
        Some(Part::Udp(role)) => role.play().map(|()| true),
        Some(Part::Tcp(role)) => role.play().map(|()| true),
        Some(Part::Spin) => neighbour::spin(),
        None => compare(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("compare: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs everything and prints the results. True: everything was measured and all claims hold.
fn compare(args: &Args) -> anyhow::Result<bool> {
    if !args.no_install {
        tools::install()?;
    }
    ensure!(!args.realtime || may_be_realtime(), "--realtime: not permitted, run this as root");
    let is_wanted = |row: &Row| is_chosen(row.name, &args.only);
    let mut wanted = TABLES.iter().flat_map(|table| table.rows).filter(|row| is_wanted(row));
    let tools = if wanted.any(|row| row.tool.needs_feroce()) {
        Tools::with_feroce(args.feroce.as_deref())?
    } else {
        Tools::default()
    };
    let cable = Cable::new()?;
    let stop = watch_for_interrupts()?;
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let seconds = args.seconds.unwrap_or(if args.quick { 1 } else { 2 });
    let runner = Runner { cable: &cable, seconds, realtime: args.realtime, stop: &stop };
    let mut machine = Machine::new();
    let mut good = true;
    for table in TABLES {
        let mut report = Report::new(table);
        report.series.retain(|series| is_wanted(series.row));
        if report.series.is_empty() {
            continue;
        }
        for round in 1..=rounds {
            for turn in 0..TURNS {
                for series in report.series.iter_mut().filter(|series| turn < series.row.turns) {
                    if !stop.load(Ordering::Relaxed) {
                        machine.look();
                        progress(&format!("round {round} of {rounds}: {}", series.row.name));
                        one_turn(&runner, &tools, table.place, series);
                    }
                }
            }
            report.series.iter_mut().for_each(Series::end_round);
        }
        progress("");
        if args.json {
            report.print_json();
        } else {
            report.print();
        }
        good &= report.is_good();
    }
    report::machine(&machine, args.realtime, args.json);
    if stop.load(Ordering::Relaxed) {
        eprintln!("compare: interrupted; the figures are of what was measured until then");
        good = false;
    }
    Ok(good)
}

/// Measures a row once more, unless it has only failed so far.
fn one_turn(runner: &Runner<'_>, tools: &Tools, place: Place, series: &mut Series) {
    if series.trouble.is_some() && series.runs.is_empty() && series.turns.is_empty() {
        return;
    }
    let path = tools.path(series.row.tool);
    match path.and_then(|path| runner.measure(place, series.row, &path)) {
        Ok(measured) => series.turns.push(measured),
        Err(_) if runner.stop.load(Ordering::Relaxed) => {}
        Err(why) => series.trouble = Some(format!("{why:#}")),
    }
}

/// Whether the user wants a row.
fn is_chosen(name: &str, only: &[String]) -> bool {
    let name = name.to_lowercase();
    only.is_empty() || only.iter().any(|word| name.contains(&word.to_lowercase()))
}

fn may_be_realtime() -> bool {
    let tried = Command::new("chrt").args(["-f", "50", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// The first interrupt asks to stop, the second kills.
fn watch_for_interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Shows the progress, if standard error is a terminal.
fn progress(what: &str) {
    let mut screen = std::io::stderr();
    if screen.is_terminal() {
        // Nothing depends on it.
        let _ = write!(screen, "\r\x1b[K{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_words() {
        let words = ["UCX".to_owned(), "write 8".to_owned()];
        assert!(is_chosen("UCX tcp put 8 B rate", &words));
        assert!(is_chosen("feroce WRITE 8 B latency", &words));
        assert!(!is_chosen("iperf3 TCP", &words));
        assert!(is_chosen("iperf3 TCP", &[]));
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }
}
