//! `cargo xtask interop`: a second opinion. The Linux kernel's own driver, Soft-RoCE, with the
//! programs of the distribution at one end of a cable, and feroce at the other.
//!
//! - [`image`] has the kernel that a guest boots, [`lab`] the guest and the cable, and [`agent`]
//!   what runs commands in the guest: this program again, which sees the files of the host.
//! - [`cells`] is the matrix, as data; [`cell`] runs one; [`counters`] says which of the driver's
//!   counters must not move; [`table`] writes `docs/INTEROP.md`.

mod agent;
mod cell;
mod cells;
mod counters;
mod cpio;
mod image;
mod lab;
mod listening;
mod table;

use core::fmt;
use core::time::Duration;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::args::Args;
use crate::packages::{self, Package};
use crate::shell::{cargo, root, run};
use crate::{Failure, Outcome};
use cells::Cell;
use image::Image;
use lab::Lab;

pub(crate) const HELP: &str = "\
Boots a small machine with the Linux kernel's own driver, Soft-RoCE, and lets the programs of the
distribution there talk to feroce here, as client and as server. Writes docs/INTEROP.md when
everything ran. Needs QEMU, but neither KVM nor hardware; root only to install packages.

Usage: cargo xtask interop [--only PATTERN] [--list] [--keep]

Options:
  --only PATTERN   Run the cells whose name contains this
  --list           Say which cells there are
  --keep           Leave the guest running at the end, until interrupted
";

/// Between two looks at something that has not happened yet.
const PAUSE: Duration = Duration::from_millis(10);

/// The whole matrix is to stay below this on two cores.
const BUDGET: Duration = Duration::from_mins(12);

#[rustfmt::skip] // a table
const PACKAGES: &[Package] = &[
    packages::program("qemu-system-x86", "qemu-system-x86_64", "the guest"),
    packages::library("busybox-static", "the first program of the guest"),
    packages::program("kmod", "modprobe", "says which modules the guest needs"),
    packages::program("iproute2", "rdma", "the network, and Soft-RoCE in the guest"),
    packages::library("ibverbs-providers", "the driver of libibverbs in the guest"),
    packages::program("ibverbs-utils", "ibv_rc_pingpong", "programs to talk to"),
    packages::program("perftest", "ib_write_bw", "programs to talk to"),
    packages::program("gcc", "gcc", "compiles a program of our own that checks more"),
    packages::library("libibverbs-dev", "what that program is made of"),
];

pub(crate) fn main(mut args: Args) -> Outcome {
    if args.flag("--agent") {
        args.finish()?;
        return agent::serve();
    }
    let (list, keep, is_inside) = (args.flag("--list"), args.flag("--keep"), args.flag("--inside"));
    let only: Option<String> = args.value("--only")?;
    args.finish()?;
    let pattern = only.as_deref().unwrap_or_default();
    let chosen: Vec<Cell> =
        cells::all().into_iter().filter(|cell| cell.name().contains(pattern)).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no cell `{pattern}`; try --list")));
    }
    if list {
        chosen.iter().for_each(|cell| println!("{}", cell.name()));
        return Ok(());
    }
    if is_inside {
        return run_cells(&chosen, only.is_none(), keep);
    }
    packages::require(PACKAGES)?;
    run(&mut cargo(["build", "--release", "-p", "feroce-cli", "-p", "feroce-capi"]))?;
    build_probe()?;
    Image::prepare()?;
    let mut again = lab::inside(packages::is_root())?;
    again.arg("--inside").args(keep.then_some("--keep"));
    again.args(only.map(|only| format!("--only={only}")));
    run(&mut again)
}

/// Compiles our own program, which runs at both ends.
fn build_probe() -> Outcome {
    let path = cells::probe_path();
    let folder = path.parent().unwrap_or(&path);
    fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-O1", "interop/probe.c", "-libverbs", "-o"]);
    run(gcc.arg(path).current_dir(root()))
}

/// Runs the cells, in namespaces that were made for that.
fn run_cells(chosen: &[Cell], is_all: bool, keep: bool) -> Outcome {
    let started = now();
    let image = Image::prepare()?;
    println!("interop: booting Linux {}", image.version);
    let lab = Lab::boot(&image)?;
    println!("interop: the guest is ready after {:.0} s", started.elapsed().as_secs_f64());
    let mut failures = Vec::new();
    for (index, cell) in chosen.iter().enumerate() {
        let begun = now();
        let result = cell::run(&lab, cell, index);
        let took = begun.elapsed().as_secs_f64();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("[{}/{}] {}: {verdict} ({took:.1} s)", index + 1, chosen.len(), cell.name());
        // A pipe that is closed is no reason to stop.
        let _ = io::stdout().flush();
        if let Err(Failure::Failed(why) | Failure::Usage(why)) = result {
            println!("{why}");
            failures.push(cell.name());
        }
    }
    let took = started.elapsed();
    let (ran, failed) = (chosen.len(), failures.len());
    println!("interop: {ran} cells ran, {failed} failed, {:.0} s", took.as_secs_f64());
    if keep {
        println!("interop: the guest stays; nsenter --net --pid --target {}", std::process::id());
        loop {
            std::thread::park();
        }
    }
    if !failures.is_empty() {
        return Err(Failure::Failed(format!("failed: {}", failures.join(", "))));
    }
    if took > BUDGET {
        println!("WARNING: this should take {} minutes at most", BUDGET.as_secs() / 60);
    }
    if is_all { table::write(&lab.versions(&image)?) } else { Ok(()) }
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
