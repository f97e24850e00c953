//! The steps, in the order that finds the cheapest mistakes first.

use core::num::NonZero;
use core::time::Duration;
use std::path::Path;
use std::process::Command;

use super::Done;
use crate::shell::{ask, cargo, extended, is_on_path, limited, root, run, run_keeping, target_dir};
use crate::{Outcome, api, clients, dist, fuzz, interop, packages, sim, soak, swarm, tidy};

/// Said of a step whose subject has not been written.
pub(crate) const ABSENT: &str = "not in the tree yet";

/// Seeds of the swarm in one run.
const SWARM_SEEDS: u64 = 5_000;

/// The longest that one command with tests may take: a test that hangs shall say so.
const TEST_LIMIT: Duration = Duration::from_mins(20);

/// Seconds of the soak on a clean network.
const SOAK_SECONDS: u64 = 20;

/// The same on a bad one.
const BAD_SOAK_SECONDS: u64 = 15;

/// Seconds in which processes are killed.
const KILL_SECONDS: u64 = 15;

/// What the bad network does.
const SOAK_FAULTS: &str = "loss=0.5%,dup=0.2%,reorder=0.5%:3,corrupt=1%";

/// Seconds for each fuzz target in one run.
const FUZZ_SECONDS: u64 = 2;

/// Seeds of the store whose nodes are killed: the first notices a leader that answers without a
/// lease.
const STORE_SEEDS: &str = "1-1";

/// A target without std, to prove that nothing sneaks it in.
const BARE_TARGET: &str = "x86_64-unknown-none";

/// One step of the whole.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Whether what the step tests is in the tree.
    pub(crate) is_there: fn() -> bool,
    pub(crate) run: fn() -> Outcome<Done>,
}

const fn step(
    name: &'static str,
    about: &'static str,
    is_there: fn() -> bool,
    run: fn() -> Outcome<Done>,
) -> Step {
    Step { name, about, is_there, run }
}

#[rustfmt::skip] // a table: one step, one line
pub(crate) const STEPS: &[Step] = &[
    step("packages", "what the tests need from the system", always, install),
    step("fmt", "the formatting of the code", always, fmt),
    step("tidy", "the rules of the house", always, || tidy::check().map(|()| quietly())),
    step("clippy", "lints, as errors", always, clippy),
    step("no-std", "the lower crates without std", always, no_std),
    step("test", "unit, integration and documentation tests", always, test),
    step("loom", "every interleaving of the lock-free parts", || !loom_crates().is_empty(), loom),
    step("swarm", "seeded simulations of the whole stack", swarm::exists, run_swarm),
    step("sim", "simulated fabrics, compared with ns-3", always, run_sim),
    step("soak", "random operations for a minute, processes that are killed", always, run_soak),
    step("fuzz", "a short run of every fuzz target", || has("fuzz/Cargo.toml"), run_fuzz),
    step("dist", "what is given to others, tried out", || has("crates/capi/Cargo.toml"), run_dist),
    step("clients", "clients of RDMA from package registries", always, run_clients),
    step("docs", "the documentation; crates as they are published", always, docs),
    step("api", "the public interface, compared with its record", always, run_api),
    step("bench", "a short run of the benchmarks", || has("bench/Cargo.toml"), bench),
    step("examples", "programs on packages of others", || has("examples/Cargo.toml"), examples),
    step("interop", "the Linux kernel's own driver at the other end", always, run_interop),
];

fn always() -> bool {
    true
}

fn has(path: &str) -> bool {
    root().join(path).exists()
}

fn install() -> Outcome<Done> {
    packages::install().map(Done::Ran)
}

fn quietly() -> Done {
    Done::Ran(Vec::new())
}

fn fmt() -> Outcome<Done> {
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    // These stand outside the workspace.
    for manifest in ["fuzz/Cargo.toml", "bench/Cargo.toml"].into_iter().filter(|path| has(path)) {
        run(&mut cargo(["fmt", "--manifest-path", manifest, "--check"]))?;
    }
    // A workspace of several packages, whose dependencies `--all` checks once more.
    if has("examples/Cargo.toml") {
        run(&mut cargo(["fmt", "--all", "--manifest-path", "examples/Cargo.toml", "--check"]))?;
    }
    Ok(quietly())
}

fn clippy() -> Outcome<Done> {
    let mut clippy = cargo(["clippy", "--workspace", "--all-targets", "--all-features"]);
    run(clippy.args(["--", "-D", "warnings"]))?;
    Ok(quietly())
}

fn no_std() -> Outcome<Done> {
    let mut check = cargo(["check", "--lib", "--no-default-features"]);
    let crates = tidy::NO_STD.iter().filter(|name| has(&format!("crates/{name}/Cargo.toml")));
    check.args(crates.map(|name| format!("--package=feroce-{name}")));
    let mut lines = Vec::new();
    if is_target_installed(BARE_TARGET) {
        check.args(["--target", BARE_TARGET]);
    } else {
        let note = format!("no-std: {BARE_TARGET} is not installed, checked for this machine only");
        println!("{note}");
        lines.push(note);
    }
    run(&mut check)?;
    Ok(Done::Ran(lines))
}

fn is_target_installed(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = ask(Command::new(rustc).args(["--print", "target-libdir", "--target", target]));
    folder.is_some_and(|folder| Path::new(folder.trim()).exists())
}

fn test() -> Outcome<Done> {
    let nextest = is_on_path("cargo-nextest");
    let mut tests = cargo(if nextest { &["nextest", "run"] } else { &["test"][..] });
    // Examples without tests of their own are checked by clippy, and not built once more.
    tests.args(["--tests", "--workspace", "--all-features"]);
    // Tests of whole programs wait more than they compute.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = format!("--test-threads={}", cores + cores.div_ceil(2));
    tests.args(if nextest { vec![&*threads] } else { vec!["--", &*threads] });
    let mut doc_tests = cargo(["test", "--doc", "--workspace", "--all-features"]);
    // Examples of what must not compile name the error; only with this is it compared.
    doc_tests.env("RUSTC_BOOTSTRAP", "feroce");
    // Tests of the library run what is built without further features, and would build it
    // themselves, while other tests have timers running.
    for what in [["--package=feroce-capi", "--lib"], ["--package=feroce-cli", "--bin=feroce"]] {
        run(cargo(["build"]).args(what))?;
    }
    let mut lines = run_tests(tests)?;
    lines.extend(run_tests(doc_tests)?);
    Ok(Done::Ran(lines))
}

/// Runs tests and gives back the lines in which they sum up.
fn run_tests(command: Command) -> Outcome<Vec<String>> {
    let (outcome, lines) = run_keeping(&mut limited(command, TEST_LIMIT), |line| {
        line.starts_with("test result:") || line.trim_start().starts_with("Summary [")
    });
    outcome.map(|()| lines)
}

fn loom() -> Outcome<Done> {
    let mut lines = Vec::new();
    for name in loom_crates() {
        let mut loom = cargo(["test", "--package", &*format!("feroce-{name}")]);
        loom.args(["--release", "--test", "loom"]);
        loom.env("RUSTFLAGS", extended("RUSTFLAGS", "--cfg loom"));
        // Other flags: in a folder of their own they do not throw the other builds away.
        loom.arg("--target-dir").arg(target_dir().join("loom"));
        lines.extend(run_tests(loom)?);
    }
    Ok(Done::Ran(lines))
}

/// The crates that have a test called `loom`.
fn loom_crates() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("crates")).into_iter().flatten().flatten();
    let with_loom = folders.filter(|folder| folder.path().join("tests/loom.rs").exists());
    let mut names: Vec<String> =
        with_loom.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn run_swarm() -> Outcome<Done> {
    let seeds = swarm::Seeds::from_environment(SWARM_SEEDS)?;
    let (outcome, lines) = run_keeping(&mut limited(swarm::command(seeds), TEST_LIMIT), |line| {
        line.starts_with("swarm:")
    });
    outcome.map(|()| Done::Ran(lines))
}

fn run_sim() -> Outcome<Done> {
    run(&mut limited(sim::command(), TEST_LIMIT))?;
    Ok(Done::Ran(Vec::new()))
}

/// A step of its own, so that nothing runs beside it.
fn run_soak() -> Outcome<Done> {
    let mut lines = run_tests(soak::operations(SOAK_SECONDS, ""))?;
    lines.extend(run_tests(soak::operations(BAD_SOAK_SECONDS, SOAK_FAULTS))?);
    lines.extend(run_tests(soak::kills(KILL_SECONDS))?);
    Ok(Done::Ran(lines))
}

/// The fuzzer begins with every input of the corpus, so only without it do tests replay the corpus.
fn run_fuzz() -> Outcome<Done> {
    if !is_on_path("c++") && !is_on_path("g++") {
        let replay = cargo(["test", "--manifest-path", "fuzz/Cargo.toml", "--tests"]);
        let mut lines = vec!["no C++ compiler, see `packages`: only the corpus".to_owned()];
        lines.extend(run_tests(replay)?);
        return Ok(Done::Ran(lines));
    }
    fuzz::run_all(&fuzz::targets()?, FUZZ_SECONDS).map(|summary| Done::Ran(vec![summary]))
}

fn run_dist() -> Outcome<Done> {
    let out = target_dir().join("dist");
    let built = dist::build(&out)?;
    dist::try_out(&built, &out).map(Done::Ran)
}

fn run_clients() -> Outcome<Done> {
    clients::run_all().map(Done::Ran)
}

fn docs() -> Outcome<Done> {
    let mut docs = cargo(["doc", "--workspace", "--no-deps"]);
    run(docs.env("RUSTDOCFLAGS", extended("RUSTDOCFLAGS", "-D warnings")))?;
    // What crates.io would be given: that each has what it needs, without building it again.
    let mut package = cargo(["package", "--workspace", "--exclude", "xtask"]);
    run(package.args(["--no-verify", "--offline", "--quiet"]))?;
    Ok(quietly())
}

fn run_api() -> Outcome<Done> {
    api::check().map(|()| quietly())
}

fn bench() -> Outcome<Done> {
    // In the same folder as the workspace, where `dist` has built most of it.
    let bench = |what: &str| {
        let mut command = cargo([what, "--release", "--manifest-path", "bench/Cargo.toml"]);
        command.arg("--target-dir").arg(target_dir());
        command
    };
    run(bench("run").args(["--", "--smoke"]))?;
    run(&mut bench("test"))?;
    // Without those who must be installed: shows that the cable and the ends work.
    let quick = ["--bin", "compare", "--", "--quick", "--no-install", "--only", "UDP"];
    run(bench("run").args(quick))?;
    Ok(quietly())
}

fn examples() -> Outcome<Done> {
    let examples = |what: &[&str]| {
        let mut command = cargo([what[0], "--manifest-path", "examples/Cargo.toml"]);
        command.arg("--target-dir").arg(target_dir()).args(&what[1..]);
        command
    };
    run(&mut examples(&["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    run(examples(&["test"]).env("KV_SEEDS", STORE_SEEDS))?;
    Ok(quietly())
}

/// Needs packages that the tests do not, and network interfaces of its own.
fn run_interop() -> Outcome<Done> {
    if !packages::is_root() {
        return Ok(Done::Skipped("not root; `cargo xtask interop` may work all the same".into()));
    }
    interop::run_sample().map(Done::Ran)
}
