//! `cargo xtask fabric`: what programs measure on a fabric in real time, compared with its model.

use crate::Outcome;
use crate::args::Args;
use crate::shell::{cargo, run};

pub(crate) const HELP: &str = "\
Runs perftest over switches in real time, and compares latency and bandwidth with what the model
says. Needs five processors that are idle, and perftest.

Usage: cargo xtask fabric
";

pub(crate) fn main(args: Args) -> Outcome {
    args.finish()?;
    let test = [
        "test",
        "--release",
        "-p",
        "feroce-capi",
        "--test",
        "tests",
        "--",
        "fabric::",
        "--nocapture",
    ];
    let mut command = cargo(test);
    command.arg("programs_measure").env("FEROCE_TEST_MEASURE", "1");
    run(&mut command)
}
