//! `cargo xtask fuzz`: coverage-guided fuzzing with the stable toolchain and plain cargo.

use core::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::args::Args;
use crate::manifest::Manifest;
use crate::shell::{ask, cargo, extended, root, run, run_keeping, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Builds the fuzz targets of fuzz/ with coverage feedback and runs each of them for a while.
New inputs go to a folder in the target folder, findings to fuzz/artifacts/<TARGET>.

Usage: cargo xtask fuzz [--seconds S] [TARGET]

Options:
  --seconds S   How long to run each target (default: 60)
  --list        Say which targets there are
";

/// What cargo-fuzz passes to the compiler, as far as the stable one takes it.
const FLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Clink-dead-code --cfg fuzzing";

/// How libFuzzer reports the number of inputs it tried.
const EXECUTIONS: &str = "stat::number_of_executed_units:";

pub(crate) fn main(mut args: Args) -> Outcome {
    let list = args.flag("--list");
    let seconds = args.value("--seconds")?.unwrap_or(60);
    let target = args.positional()?;
    args.finish()?;
    if seconds == 0 {
        return Err(Failure::Usage("`--seconds` starts at 1".into()));
    }
    let mut targets = targets()?;
    if list {
        targets.iter().for_each(|target| println!("{target}"));
        return Ok(());
    }
    if let Some(target) = target {
        if !targets.contains(&target) {
            return Err(Failure::Usage(format!("no fuzz target `{target}`")));
        }
        targets = vec![target];
    }
    run_all(&targets, seconds).map(drop)
}

/// The fuzz targets that fuzz/Cargo.toml names.
pub(crate) fn targets() -> Outcome<Vec<String>> {
    let text = std::fs::read_to_string(root().join("fuzz/Cargo.toml"))
        .map_err(|_| Failure::Failed("fuzz/ is not in the tree yet".into()))?;
    Ok(Manifest::parse(&text).binaries().into_iter().map(str::to_owned).collect())
}

/// Builds everything, runs the targets, as many at once as there are processors, and gives back the
/// line that sums it up.
pub(crate) fn run_all(targets: &[String], seconds: u64) -> Outcome<String> {
    let folder = build()?;
    let queue = Mutex::new(targets.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut results = Vec::new();
        while let Some(target) = next() {
            results.push(run_one(&folder, target, seconds));
        }
        results
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|worker| worker.join().map_err(|_| panicked()));
        results.collect::<Outcome<Vec<_>>>()
    })?;
    let mut findings = Vec::new();
    let mut total = 0;
    for result in results.into_iter().flatten() {
        let (outcome, executions) = result?;
        total += executions;
        if let Err(Failure::Failed(message)) = outcome {
            findings.push(message);
        }
    }
    let summary = format!("fuzz: {total} executions, {} findings", findings.len());
    println!("{summary}");
    if findings.is_empty() { Ok(summary) } else { Err(Failure::Failed(findings.join("\n"))) }
}

fn panicked() -> Failure {
    Failure::Failed("a thread that runs fuzz targets panicked".into())
}

/// Runs one target that was built into `folder`, and says what came of it.
fn run_one(folder: &Path, target: &str, seconds: u64) -> Outcome<(Outcome, u64)> {
    let binary = folder.join(target);
    // What is new goes to a folder outside the tree.
    let corpus = target_dir().join("fuzz/corpus").join(target);
    let (outcome, executions) = Piece { seconds, seed: 1, corpus }.run(&binary, target)?;
    println!("fuzz {target}: {executions} executions");
    if outcome.is_err() {
        println!("fuzz {target}: FINDING, the input is in fuzz/artifacts/{target}");
        println!("fuzz {target}: to replay it: {} <INPUT>", binary.display());
    }
    Ok((outcome, executions))
}

/// Builds the targets and gives back the folder that they are in.
pub(crate) fn build() -> Outcome<PathBuf> {
    let host = host()?;
    let folder = target_dir().join("fuzz");
    let mut build = cargo(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.args(["--features", "libfuzzer"]);
    // A target of its own keeps the flags away from build scripts.
    build.args(["--target", &host]).arg("--target-dir").arg(&folder);
    run(build.env("RUSTFLAGS", extended("RUSTFLAGS", FLAGS)))?;
    Ok(folder.join(host).join("release"))
}

fn host() -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = ask(Command::new(rustc).arg("-vV")).unwrap_or_default();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::Failed("`rustc -vV` names no host".into()))
}

/// One run of a target.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) seconds: u64,
    /// Of the fuzzer's own choices.
    pub(crate) seed: u64,
    /// Where new inputs go, and where those of earlier runs are. The committed corpus is only read.
    pub(crate) corpus: PathBuf,
}

impl Piece {
    /// Runs a target. The first result is what the fuzzer found, the second how much it tried.
    pub(crate) fn run(&self, binary: &Path, target: &str) -> Outcome<(Outcome, u64)> {
        let artifacts = root().join("fuzz/artifacts").join(target);
        for folder in [&self.corpus, &artifacts] {
            std::fs::create_dir_all(folder)
                .map_err(|e| Failure::Failed(format!("cannot create {}: {e}", folder.display())))?;
        }
        let mut fuzzer = Command::new(binary);
        fuzzer.current_dir(root()).arg(format!("-max_total_time={}", self.seconds));
        fuzzer.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
        fuzzer.arg(format!("-seed={}", self.seed));
        fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(&self.corpus);
        let committed = root().join("fuzz/corpus").join(target);
        let has_inputs =
            std::fs::read_dir(&committed).is_ok_and(|mut inputs| inputs.next().is_some());
        if !has_inputs {
            return Err(Failure::Failed(format!("no inputs in {}", committed.display())));
        }
        fuzzer.arg(committed);
        let (outcome, kept) = run_keeping(&mut fuzzer, |line| line.starts_with(EXECUTIONS));
        let number =
            kept.iter().find_map(|line| line.strip_prefix(EXECUTIONS)?.trim().parse().ok());
        Ok((outcome, number.unwrap_or(0)))
    }
}
