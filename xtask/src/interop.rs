//! `cargo xtask interop`: a second opinion. A driver of the Linux kernel, Soft-RoCE or Soft-iWARP,
//! with the programs of the distribution at one end of a cable, and feroce at the other.
//!
//! - [`image`] has the kernel that a guest boots, [`lab`] the guest and the cable, and [`agent`]
//!   what runs commands in the guest: this program again, which sees the files of the host;
//!   [`driver`] builds the driver that Debian's kernel comes without.
//! - [`rows`], [`siw_rows`] and [`cells`] are the matrix, as data; [`cell`] runs one cell;
//!   [`ready`] says when a server can be called, [`counters`] which of the driver's counters must
//!   not move, [`forged`] that they can, [`observed`] what cells must agree on; [`table`] writes
//!   `docs/INTEROP.md` and `docs/INTEROP-SIW.md`.
//! - [`alone`] are cells that need no cable: feroce on the kernel's driver, in the guest.
//! - [`disks`] is a task of its own: the kernel's NVMe host and target, whose ends are
//!   [`disk_ends`]; [`mirror`] makes one disk of several.

mod agent;
mod alone;
mod apt;
mod cell;
mod cells;
mod counters;
mod cpio;
mod disk_ends;
pub(crate) mod disks;
mod driver;
mod forged;
mod image;
mod lab;
mod mirror;
mod observed;
mod ready;
mod rows;
mod siw_rows;
mod stolen;
mod table;

use core::fmt;
use core::iter;
use core::time::Duration;
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::args::Args;
use crate::packages::{self, Package};
use crate::shell::{build_packed, limited, root, run, run_keeping};
use crate::{Failure, Outcome, swarm};
use alone::Alone;
use cells::Cell;
use driver::Driver;
use image::Image;
use lab::Lab;
use observed::Observed;
use stolen::Ticks;

pub(crate) const HELP: &str = "\
Boots a small machine with a driver of the Linux kernel, Soft-RoCE, and lets the programs of the
distribution there talk to feroce here, as client and as server. Writes docs/INTEROP.md when
everything ran. Needs QEMU, but neither KVM nor hardware; root only to install packages.

Usage: cargo xtask interop [--driver NAME] [--only PATTERN] [--sample] [--suite NAME]
                           [--rounds N] [--list] [--check] [--keep] [--guest COMMAND]

Options:
  --driver NAME    Which driver: rxe (default), or siw for iWARP, which is built from the source of
                   Debian's kernel; installs the headers of that kernel, as root
  --only PATTERN   Run the cells whose name contains this, or one of several: 'rping|mckey'
  --sample         Run a quarter of the cells, as `cargo xtask ci` does: each program at least once
  --list           Say which cells there are
  --check          Write nothing: docs/INTEROP.md must have these cells already
  --suite NAME     Take the kernel from another suite of Debian, such as bookworm-backports
  --rounds N       Run the cells so many times, in one guest (default: 1)
  --keep           Leave the guest running at the end, until interrupted; says how to get in
  --guest COMMAND  Run no cells but this line of shell, in the guest, which has the files of this
                   machine: programs that were built here run there, from /run/host
";

/// Between two looks at something that has not happened yet.
const PAUSE: Duration = Duration::from_millis(10);

/// The whole matrix is to stay below this on two cores.
const BUDGET: Duration = Duration::from_mins(9);

/// How often a cell is run before it has failed, if the hypervisor took the processors away.
const TRIES: usize = 3;

/// So far apart are the indices, and thus the ports, of the tries of a cell.
const NEXT_TRY: usize = 10_000;

/// And this is too long anywhere.
const LIMIT: Duration = Duration::from_mins(25);

#[rustfmt::skip] // a table
const PACKAGES: &[Package] = &[
    packages::program("qemu-system-x86", "qemu-system-x86_64", "the guest"),
    packages::library("busybox-static", "the first program of the guest"),
    packages::program("kmod", "modprobe", "says which modules the guest needs"),
    packages::program("iproute2", "rdma", "the network, and Soft-RoCE in the guest"),
    packages::library("ibverbs-providers", "the driver of libibverbs in the guest"),
    packages::program("ibverbs-utils", "ibv_rc_pingpong", "programs to talk to"),
    packages::program("rdmacm-utils", "rping", "programs to talk to"),
    packages::program("perftest", "ib_write_bw", "programs to talk to"),
    packages::program("gcc", "gcc", "compiles programs of our own that check more"),
    packages::library("libibverbs-dev", "what those programs are made of"),
    packages::library("librdmacm-dev", "what those programs are made of"),
];

pub(crate) fn main(mut args: Args) -> Outcome {
    if args.flag("--agent") {
        args.finish()?;
        return agent::serve();
    }
    let (list, is_inside) = (args.flag("--list"), args.flag("--inside"));
    let (check, keep) = (args.flag("--check"), args.flag("--keep"));
    let sample = args.flag("--sample");
    let (only, guest): (Option<String>, Option<String>) =
        (args.value("--only")?, args.value("--guest")?);
    let (suite, rounds): (Option<String>, Option<usize>) =
        (args.value("--suite")?, args.value("--rounds")?);
    let (suite, rounds) = (suite.as_deref(), rounds.unwrap_or(1));
    let driver = Driver::of_option(args.value("--driver")?)?;
    args.finish()?;
    let pattern = only.as_deref().unwrap_or_default();
    let is_chosen = |trial: &Trial| pattern.split('|').any(|part| trial.name().contains(part));
    let chosen: Vec<Trial> = trials(driver, sample).filter(is_chosen).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no cell `{pattern}`; try --list")));
    }
    if list {
        chosen.iter().for_each(|trial| println!("{}", trial.name()));
        return Ok(());
    }
    if is_inside {
        return match guest {
            Some(command) => run_in_guest(suite, driver, &command),
            None => {
                let versions = run_trials((suite, driver), rounds, &chosen, keep)?;
                // The page is about the kernel of Debian's stable suite.
                let is_whole = only.is_none() && suite.is_none() && !sample;
                if is_whole && !check { table::write(driver, &versions) } else { Ok(()) }
            }
        };
    }
    if check {
        table::check()?;
    }
    packages::require(PACKAGES)?;
    if guest.is_none() {
        build_packed()?;
        build_own_programs(driver)?;
        if driver == Driver::Rxe {
            alone::build_tests()?;
        }
    }
    Image::prepare(suite, driver)?;
    let mut again = lab::inside(packages::is_root(), "interop")?;
    again.arg("--inside").args(keep.then_some("--keep")).args(check.then_some("--check"));
    again.args(sample.then_some("--sample")).args(only.map(|only| format!("--only={only}")));
    again.args(suite.map(|suite| format!("--suite={suite}"))).arg(format!("--rounds={rounds}"));
    again.arg(format!("--driver={}", driver.name()));
    again.args(guest.map(|command| format!("--guest={command}")));
    run(&mut again)
}

/// One run, of which the matrix and what is beside it are made.
enum Trial {
    /// Two ends, and the cable between them.
    Across(Cell),
    /// Both ends in the guest.
    Alone(Alone),
}

impl Trial {
    fn name(&self) -> String {
        match self {
            Self::Across(cell) => cell.name(),
            Self::Alone(alone) => format!("{alone}, in the guest"),
        }
    }

    /// Runs it; gives back what the ends observed.
    fn run(&self, lab: &Lab, index: usize) -> Outcome<String> {
        match self {
            Self::Across(cell) => cell::run(lab, cell, index),
            Self::Alone(alone) => alone.run(lab).map(|()| String::new()),
        }
    }

    /// Runs it, once more if it failed while the machine stood still, and says so.
    fn run_undisturbed(&self, lab: &Lab, index: usize) -> Outcome<String> {
        let mut tried = 0;
        loop {
            let begun = Ticks::now();
            let result = self.run(lab, index + tried * NEXT_TRY);
            tried += 1;
            match (&result, Ticks::now().since(begun)) {
                (Err(Failure::Failed(why)), Some(stolen)) if tried < TRIES => {
                    println!("{}: {stolen}: is run again after this:\n{why}", self.name());
                }
                _ => return result,
            }
        }
    }

    /// Compares that with what others observed.
    fn compare(&self, observed: &mut Observed, text: String) -> Outcome {
        match self {
            Self::Across(cell) => observed.compare(cell, text),
            Self::Alone(_) => Ok(()),
        }
    }
}

/// What there is to run: everything, or a sample of the matrix and everything beside it.
fn trials(driver: Driver, sample: bool) -> impl Iterator<Item = Trial> {
    let cells = if sample { cells::sample(driver) } else { cells::all(driver) };
    let alone = alone::all().filter(move |_| driver == Driver::Rxe);
    cells.into_iter().map(Trial::Across).chain(alone.map(Trial::Alone))
}

/// Runs one command in the guest: in the one that `--keep` has left here, or in one of its own.
fn run_in_guest(suite: Option<&str>, driver: Driver, command: &str) -> Outcome {
    let _lab = match Lab::is_up() {
        true => None,
        false => Some(Lab::boot(&Image::prepare(suite, driver)?)?),
    };
    let end = lab::run_in_guest(&["sh", "-c", command].map(str::to_owned))?;
    print!("{}", end.output);
    match end.is_success() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("in the guest: {}", end.status))),
    }
}

/// Compiles our own programs, which run at both ends, and has the swarm write some of its own.
fn build_own_programs(driver: Driver) -> Outcome {
    for (program, libraries) in cells::OWN {
        let path = cells::own_path(program);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-Wall", "-Wextra", "-Werror", "-O1", &format!("interop/{program}.c"), "-o"]);
        run(gcc.arg(path).args(libraries).current_dir(root()))?;
    }
    for seed in cells::seeds().filter(|_| driver == Driver::Rxe) {
        let path = cells::own_path(&format!("swarm-{seed}.txt"));
        let file = fs::File::create(&path).map_err(|e| failed(&path, e))?;
        run(swarm::program(seed).stdout(file))?;
    }
    Ok(())
}

/// Runs the cells, in namespaces that were made for that. Gives back what they ran with.
fn run_trials(
    (suite, driver): (Option<&str>, Driver),
    rounds: usize,
    chosen: &[Trial],
    keep: bool,
) -> Outcome<String> {
    let started = now();
    let image = Image::prepare(suite, driver)?;
    println!("interop: booting Linux {}", image.version);
    let lab = Lab::boot(&image)?;
    println!("interop: the guest is ready after {:.0} s", started.elapsed().as_secs_f64());
    if driver == Driver::Rxe {
        forged::is_noticed(&lab)?;
    }
    let (mut failures, mut observed) = (Vec::new(), Observed::default());
    let total = rounds * chosen.len();
    for (index, trial) in iter::repeat_n(chosen, rounds).flatten().enumerate() {
        let begun = now();
        let result = trial.run_undisturbed(&lab, index);
        let result = result.and_then(|text| trial.compare(&mut observed, text));
        let took = begun.elapsed().as_secs_f64();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("[{}/{}] {}: {verdict} ({took:.1} s)", index + 1, total, trial.name());
        // A pipe that is closed is no reason to stop.
        let _ = io::stdout().flush();
        if let Err(Failure::Failed(why) | Failure::Usage(why)) = result {
            println!("{why}");
            failures.push(trial.name());
        }
    }
    let took = started.elapsed();
    let sum = summary(total, failures.len());
    println!("{sum}, {:.0} s", took.as_secs_f64());
    if keep {
        println!("{}", lab.how_to_get_in());
        loop {
            std::thread::park();
        }
    }
    if !failures.is_empty() {
        return Err(Failure::Failed(format!("failed: {}", failures.join(", "))));
    }
    if took > BUDGET && rounds == 1 {
        println!("WARNING: this should take {} minutes at most", BUDGET.as_secs() / 60);
    }
    lab.versions(&image)
}

/// How it ended, in one line.
fn summary(ran: usize, failed: usize) -> String {
    format!("interop: {ran} cells ran, {failed} failed")
}

/// Runs a sample of the matrix for `cargo xtask ci`; gives back the lines in which it sums up.
pub(crate) fn run_sample() -> Outcome<Vec<String>> {
    let own = env::current_exe().map_err(|e| failed("this program", e))?;
    let mut sample = Command::new(own);
    sample.args(["interop", "--check", "--sample"]).current_dir(root());
    let (outcome, lines) = run_keeping(&mut limited(sample, LIMIT), |line| {
        let said = [" cells ran, ", ": FAILED (", " is run again "];
        line.starts_with("WARNING:") || said.iter().any(|part| line.contains(part))
    });
    outcome?;
    let wanted = summary(trials(Driver::Rxe, true).count(), 0);
    match lines.iter().any(|line| line.starts_with(&wanted)) {
        true => Ok(lines),
        false => Err(Failure::Failed(format!("neither end printed `{wanted}`"))),
    }
}

fn failed(what: impl AsRef<Path>, error: impl fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", what.as_ref().display()))
}

#[expect(clippy::disallowed_methods, reason = "cells take time, and some hang")]
fn now() -> Instant {
    Instant::now()
}

/// When something has taken too long that begins now.
fn deadline(limit: Duration) -> Instant {
    now() + limit
}

fn is_past(deadline: Instant) -> bool {
    now() >= deadline
}
