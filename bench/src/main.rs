//! Figures of the engine: two of them on a wire in memory, in one thread.
//!
//! Everything between posting a work request and polling its completion is in the figures except
//! the network: checksums, sockets and threads belong to the link and are measured elsewhere. The
//! exceptions are `threads`, which measures the driver as well, and `fabric`, many engines in
//! virtual time.

mod fabric;
mod instructions;
mod memory;
mod pair;
mod report;
mod threads;
mod timed;

use std::alloc::System;
use std::process::ExitCode;

use report::Figure;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HELP: &str = "\
Measures the engine.

Usage: engine [--smoke] [--json] [WHAT]

WHAT is one of
  all            Everything (the default)
  writes         8-byte WRITEs per second
  bandwidth      1 MiB WRITEs and READs as a part of memcpy
  memory         Heap per queue pair
  scale          Cost of a message with many queue pairs
  threads        Two threads that exchange messages over one device
  fabric         Simulated fabrics: time per packet and per hop
  instructions   Instructions per operation; needs valgrind

Options:
  --smoke   Short: shows that it runs, the figures mean little
  --json    Print JSON instead of a table
";

/// How long to measure.
#[derive(Clone, Copy)]
struct Effort {
    smoke: bool,
}

impl Effort {
    fn is_smoke(self) -> bool {
        self.smoke
    }

    /// How many objects to make where `full` are wanted.
    fn scale(self, full: u32) -> u32 {
        if self.smoke { full / 20 } else { full }
    }

    /// How many samples to take. Each is short, a millisecond or so, so that on a busy machine
    /// most of them are not interrupted and the median means something.
    fn samples(self) -> usize {
        if self.smoke { 25 } else { 501 }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("engine: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Result<(), String> {
    if let ["--callgrind", subject, count] = args {
        let count = count.parse().map_err(|e| format!("`{count}`: {e}"))?;
        return instructions::subject(subject, count);
    }
    if args.contains(&"--help") {
        print!("{HELP}");
        return Ok(());
    }
    let (options, what): (Vec<&str>, Vec<&str>) =
        args.iter().copied().partition(|arg| arg.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| !["--smoke", "--json"].contains(option)) {
        return Err(format!("unknown option `{unknown}`, see --help"));
    }
    let effort = Effort { smoke: options.contains(&"--smoke") };
    let figures = measure(effort, &what)?;
    if options.contains(&"--json") {
        report::json(&figures);
    } else {
        report::table(&figures);
    }
    Ok(())
}

fn measure(effort: Effort, what: &[&str]) -> Result<Vec<Figure>, String> {
    Ok(match what {
        [] | ["all"] => {
            let mut figures = timed::writes(effort);
            figures.extend(timed::bandwidth(effort));
            figures.extend(timed::scale(effort));
            figures.extend(threads::threads(effort)?);
            figures.extend(memory::memory(effort));
            figures.extend(fabric::fabric(effort)?);
            if instructions::is_possible() {
                figures.extend(instructions::instructions(effort)?);
            } else {
                eprintln!("engine: no valgrind, so instructions are not counted");
            }
            figures
        }
        ["writes"] => timed::writes(effort),
        ["bandwidth"] => timed::bandwidth(effort),
        ["memory"] => memory::memory(effort),
        ["scale"] => timed::scale(effort),
        ["threads"] => threads::threads(effort)?,
        ["fabric"] => fabric::fabric(effort)?,
        ["instructions"] => instructions::instructions(effort)?,
        _ => return Err(format!("cannot measure `{}`, see --help", what.join(" "))),
    })
}
