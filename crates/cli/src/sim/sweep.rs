//! `feroce sim sweep`: a scenario with many seeds and settings, on all cores.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_sim::scenario::{self, Reading, Run};

use super::grid::{Grid, Header, Point, Shard};
use super::refuse;
use super::table::{self, Figures, Row};
use crate::stop;

const EXAMPLES: &str = "\
Examples:
  feroce sim sweep incast.toml --seeds 20
  feroce sim sweep incast.toml --seeds 5 --set host.congestion=none,dcqcn,connectx
  feroce sim sweep incast.toml --set 'switch.ecn={kmin=\"5K\",kmax=\"200K\",pmax=0.01},\"off\"'
  feroce sim sweep ls32.toml --set pattern.0.load=0.3,0.5,0.7 --shard 3/64 -o part-3.jsonl
  feroce sim merge part-*.jsonl

A setting is KEY=VALUE,VALUE,... in the words of the scenario; entries of lists have numbers from
0. Every combination of values runs with every seed. The table has the mean over the seeds and,
behind +-, half of the 95 % confidence interval of the mean. The same input gives the same output,
however many threads or shards run it.

Exit status: 0 all points ran, 1 interrupted or some did not, 2 the input is wrong.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Scenario, as for `feroce sim run`.
    scenario: PathBuf,
    /// Seeds: how many from 1, or from the first to the last, such as 11-20.
    #[arg(long, default_value = "10", value_name = "N|A-B")]
    seeds: String,
    /// Values of a setting of the scenario, each of which is tried.
    #[arg(long = "set", value_name = "KEY=VALUES")]
    sets: Vec<String>,
    /// Threads [default: one for each core]
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// Run only part I of N parts, counted from 0.
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// Write the figures of every run to this file, for `feroce sim merge`.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Events between two looks at the wish to stop.
const STRIDE: u32 = 1 << 16;

pub(super) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let (grid, shard) = match (Grid::parse(&args.seeds, &args.sets), Shard::parse(&args.shard)) {
        (Ok(grid), Ok(shard)) => (grid, shard),
        (Err(e), _) | (_, Err(e)) => return Ok(refuse(&e)),
    };
    let points: Vec<Point> =
        (0..grid.len()).filter(|i| shard.has(*i)).map(|i| grid.point(i)).collect();
    // A combination that cannot be is found before hours are spent on others.
    for point in points.iter().filter(|point| point.seed == grid.seeds.0) {
        if let Err(e) = prepare(&args.scenario, point) {
            return Ok(refuse(&e));
        }
    }
    stop::watch()?;
    let rows = run_all(&args.scenario, &points, args.jobs);
    let header = Header::new(&args.scenario, &grid);
    if let Some(file) = &args.output {
        table::write(file, &header, &rows)?;
    }
    if shard.is_all() || args.output.is_none() {
        table::print(&header, &rows, json)?;
    }
    let missing = points.len() - rows.len();
    if missing > 0 {
        eprintln!("feroce: {missing} of {} points did not run", points.len());
    }
    Ok(ExitCode::from(u8::from(missing > 0)))
}

fn prepare(file: &Path, point: &Point) -> Result<Run, String> {
    let how = Reading { seed: point.seed, settings: &point.settings, topology: None };
    let scenario = scenario::read(file, how).map_err(|e| e.to_string())?;
    Run::new(scenario, point.seed).map_err(|e| format!("{}: {e}", file.display()))
}

/// Runs the points on so many threads, and returns the rows in the order of the points.
fn run_all(file: &Path, points: &[Point], jobs: Option<usize>) -> Vec<Row> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or(cores).clamp(1, points.len().max(1));
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(figures) = run_one(file, point) else { break };
                    let row = Row { point: point.clone(), figures };
                    let mut rows = rows.lock().unwrap_or_else(|e| e.into_inner());
                    rows.push(row);
                    progress(rows.len(), points.len());
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(|e| e.into_inner());
    rows.sort_by_key(|row: &Row| row.point.index);
    rows
}

/// `None` if the user interrupts the sweep.
fn run_one(file: &Path, point: &Point) -> Option<Figures> {
    let mut run = match prepare(file, point) {
        Ok(run) => run,
        Err(e) => {
            eprintln!("feroce: {e}");
            return None;
        }
    };
    while (0..STRIDE).all(|_| run.step()) {
        if stop::requested() {
            return None;
        }
    }
    (!stop::requested()).then(|| Figures::of(&run.finish()))
}

fn progress(done: usize, of: usize) {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        let end = if done == of { "\r\x1b[K" } else { "" };
        eprint!("\r{done} of {of} points\x1b[K{end}");
        let _ = std::io::stderr().flush();
    }
}
