//! The recipes of the documents, used as they say.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{command, gcc, headers, library, output, scratch};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes")
}

/// A command that finds `feroce` on its path, with devices at this address.
fn with_feroce(program: &str, address: &str) -> Command {
    let place = command().parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([place].into_iter().chain(std::env::split_paths(&path)));
    let mut made = Command::new(program);
    made.env("PATH", path.expect("plain paths")).env("FEROCE_LIB", library());
    made.env("FEROCE_ADDRESS", address);
    made
}

/// Runs a command, which must succeed, and returns what it prints.
fn succeed(command: &mut Command, package: &str) -> Option<String> {
    let output = output(command, package)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}\n{errors}");
    Some(text)
}

#[test]
fn ctest_runs_programs_with_and_without_loss() {
    let run = || {
        headers()?;
        let build = scratch("recipe-cmake");
        let cmake = || with_feroce("cmake", "127.122.2.1");
        succeed(cmake().arg("-S").arg(recipes()).arg("-B").arg(&build), "cmake")?;
        succeed(cmake().arg("--build").arg(&build), "cmake")?;
        let mut ctest = with_feroce("ctest", "127.122.2.1");
        succeed(ctest.arg("--test-dir").arg(&build).arg("--output-on-failure"), "cmake")
    };
    if let Some(report) = run() {
        assert!(report.contains("100% tests passed, 0 tests failed out of 4"), "{report}");
    }
}

#[test]
fn pytest_runs_a_program_with_and_without_loss() {
    let run = || {
        headers()?;
        let program = scratch("recipe-pytest").join("rc_write");
        let source = recipes().join("../../examples/c/rc_write.c");
        let (source, shown) = (source.display().to_string(), program.display().to_string());
        gcc(&["-O2", &source, "-o", &shown, "-libverbs", "-lrdmacm"])?;
        let mut pytest = with_feroce("pytest-3", "127.122.2.2");
        pytest.args(["-q", "-p", "no:cacheprovider"]).arg(recipes());
        pytest.env("PYTHONDONTWRITEBYTECODE", "1").env("RDMA_PROGRAM", &program);
        succeed(&mut pytest, "python3-pytest")
    };
    if let Some(report) = run() {
        assert!(report.contains("3 passed"), "{report}");
    }
}
