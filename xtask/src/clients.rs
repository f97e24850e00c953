//! `cargo xtask clients`: clients of RDMA that come from package registries, run as their users
//! would. What they are built with and from is the registries' own; nothing is changed.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::Args;
use crate::packages::{self, Package, library, program};
use crate::shell::{ask, cargo, limited, root, run, run_keeping, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Runs clients of RDMA from package registries on feroce, as their users would: the tests of
sideway (crates.io), and a program of two ends with DLSlime (PyPI). Needs the network.

Usage: cargo xtask clients
";

const SIDEWAY: &str = "0.4.3";

/// Tests that sideway has for RDMA, all of which pass.
const SIDEWAY_TESTS: usize = 68;

const SLIME: &str = "dlslime==0.1.23";

/// The longest that one of them may take, if everything is built first.
const LIMIT: Duration = Duration::from_mins(10);

const NEEDED: &[Package] = &[
    program("cmake", "cmake", "builds what sideway is linked with"),
    library("libclang-dev", "reads the headers of that for it"),
    program("python3", "python3", "runs DLSlime"),
    program("python3-pip", "pip3", "fetches DLSlime"),
    library("libnuma1", "DLSlime is linked with it"),
];

pub(crate) fn main(args: Args) -> Outcome {
    args.finish()?;
    run_all()?.iter().for_each(|line| println!("clients: {line}"));
    Ok(())
}

/// Runs all of them; gives back a line on each.
pub(crate) fn run_all() -> Outcome<Vec<String>> {
    packages::require(NEEDED)?;
    run(&mut cargo(["build", "--package=feroce-cli", "--package=feroce-capi"]))?;
    let feroce = target_dir().join("debug/feroce");
    let folder = target_dir().join("clients");
    Ok(vec![sideway(&feroce, &folder.join("sideway"))?, slime(&feroce, &folder.join("slime"))?])
}

/// The tests of sideway.
fn sideway(feroce: &Path, folder: &Path) -> Outcome<String> {
    let source = source_of("sideway", SIDEWAY, folder)?;
    let copy = folder.join("source");
    let _ = fs::remove_dir_all(&copy);
    run(Command::new("cp").arg("-r").arg(source).arg(&copy))?;
    // Another of its tests looks at messages of the compiler.
    let test = cargo(["test", "--locked", "--lib", "--test", "test_*"]);
    let mut tests = Command::new(feroce);
    tests.args(["run", "--"]).arg(test.get_program()).args(test.get_args());
    tests.current_dir(&copy).env("CARGO_TARGET_DIR", folder.join("target"));
    let (outcome, lines) =
        run_keeping(&mut limited(tests, LIMIT), |line| line.starts_with("test result: ok."));
    outcome?;
    let passed: usize = lines.iter().filter_map(|line| passed(line)).sum();
    if passed < SIDEWAY_TESTS {
        let why = format!("sideway: {passed} tests passed, and there are {SIDEWAY_TESTS}");
        return Err(Failure::Failed(why));
    }
    Ok(format!("sideway {SIDEWAY}: {passed} tests pass"))
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

/// Two ends of DLSlime, at two addresses.
fn slime(feroce: &Path, folder: &Path) -> Outcome<String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
    run(pip.arg(folder).arg(SLIME))?;
    let end = |own: &str, peer: &[&str]| {
        let mut end = Command::new("timeout");
        end.arg("60").arg(feroce).args(["run", "--address", own, "--", "python3"]);
        end.arg(root().join("xtask/src/clients/slime.py")).args(peer);
        end.env("PYTHONPATH", folder);
        end
    };
    let mut server = end("127.123.0.1", &[])
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| Failure::Failed(format!("cannot run a server of DLSlime: {e}")))?;
    let client = run(&mut end("127.123.0.2", &["127.123.0.1"]));
    if client.is_err() {
        // Without its client the server would wait for ever.
        let _ = server.kill();
    }
    let served = server.wait().is_ok_and(|status| status.success());
    client?;
    if !served {
        return Err(Failure::Failed("the server of DLSlime failed".into()));
    }
    Ok(format!("{SLIME}: one end read and wrote the memory of the other"))
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
