//! Programs under tools that watch memory: the library neither keeps them from starting nor makes
//! them report errors.

use crate::common;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/c/registers.c` with these options besides, and links it with the names that
/// `feroce run` gives to the library.
fn program(name: &str, options: &[&str]) -> Option<PathBuf> {
    common::headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/registers.c");
    let program = common::scratch(name).join(name);
    let (source, target) = (source.display().to_string(), program.display().to_string());
    let library = common::library().display().to_string();
    let args = ["-Wall", "-Werror", "-g", "-O1", &source, "-o", &target, &library];
    common::gcc(&[&args, options].concat())?;
    Some(program)
}

/// A command under `feroce run`, with one device on an address of this test.
fn feroce_run(address: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(common::command()).args(["run", "--address", address, "--"]);
    command.env("FEROCE_LIB", common::library());
    command.env_remove("ASAN_OPTIONS");
    command
}

#[test]
fn address_sanitizer_starts_and_finds_nothing() {
    let Some(program) = program("asan", &["-fsanitize=address"]) else { return };
    let output = feroce_run("127.122.1.1").arg(program).output().expect("timeout of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}\n{errors}", output.status);
}

#[test]
fn valgrind_has_nothing_to_report() {
    let Some(program) = program("valgrind", &[]) else { return };
    let mut command = feroce_run("127.122.1.2");
    command.args(["valgrind", "--quiet", "--error-exitcode=9"]).arg(program);
    if common::output(Command::new("valgrind").arg("--version"), "valgrind").is_none() {
        return;
    }
    let output = command.output().expect("timeout of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}\n{errors}", output.status);
}

#[test]
fn thread_sanitizer_starts_and_finds_nothing() {
    let Some(program) = program("tsan", &["-fsanitize=thread"]) else { return };
    let output = feroce_run("127.122.1.3").arg(program).output().expect("timeout of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}\n{errors}", output.status);
}
