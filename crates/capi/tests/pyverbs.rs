//! The test-suite that rdma-core brings for its Python bindings, on a device of ours.
//!
//! It comes compressed in the documentation of Debian's package. Every test is a client and a
//! server in one process on one device.

mod common;
#[path = "../../link/tests/common/netns.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod netns;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{directory, scratch, skip};
use netns::with_cable;

/// Where Debian puts the tests.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Tests of generic verbs that pass, at least. Others are skipped for want of hardware (raw
/// packets, flows, tag matching, memory of accelerators), of huge pages or of an interface.
const PASSED: usize = 132;

/// How often each outcome was seen, by module.
#[derive(Debug, Default)]
struct Outcomes {
    passed: BTreeMap<String, usize>,
    skipped: usize,
    wrong: Vec<String>,
}

impl Outcomes {
    /// Reads what `unittest -v` prints: a line with the name, perhaps lines of a description, and
    /// the outcome at the end of the last. Programs that the tests run may print in between.
    fn read(text: &str) -> Self {
        let mut outcomes = Self::default();
        let mut module = String::new();
        for line in text.lines() {
            let name = line.split_once(" (tests.").map(|(_, rest)| rest);
            if let Some((name, _)) = name.and_then(|name| name.split_once('.')) {
                name.clone_into(&mut module);
            }
            if line.ends_with("ok") {
                *outcomes.passed.entry(module.clone()).or_default() += 1;
            } else if line.contains("skipped '") || line.contains("skipped \"") {
                outcomes.skipped += 1;
            } else if line.starts_with("ERROR:") || line.starts_with("FAIL:") {
                outcomes.wrong.push(line.to_owned());
            }
        }
        outcomes
    }

    /// Tests that passed and are not about the hardware of one vendor.
    fn generic(&self) -> usize {
        let is_generic = |module: &str| !module.contains("_mlx5") && !module.contains("_efa");
        self.passed.iter().filter(|(module, _)| is_generic(module)).map(|(_, n)| n).sum()
    }
}

/// Unpacks the tests into a folder.
fn unpack(name: &str) -> Option<PathBuf> {
    if !Path::new(TESTS).is_dir() {
        return skip(TESTS, "rdma-core");
    }
    let folder = scratch(name).join("tests");
    let copied = Command::new("cp").args(["-r", TESTS]).arg(&folder).status().expect("cp");
    assert!(copied.success());
    for entry in fs::read_dir(&folder).expect("the tests") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "gz") {
            let unpacked = Command::new("gunzip").arg("-f").arg(&path).status().expect("gunzip");
            assert!(unpacked.success(), "{}", path.display());
        }
    }
    Some(folder)
}

fn run(tests: &Path) -> Output {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["run_tests.py", "-v", "--dev", "feroce0"]).current_dir(tests);
    python.env("LD_LIBRARY_PATH", directory("pyverbs")).env("FEROCE_ADDRESS", "127.121.0.1");
    python.output().expect("python")
}

/// The tests in a folder of their own, if everything is there that they need.
fn ready(name: &str) -> Option<PathBuf> {
    let bindings = Command::new("/usr/bin/python3").args(["-c", "import pyverbs"]).output();
    if !bindings.is_ok_and(|done| done.status.success()) {
        return skip("pyverbs", "python3-pyverbs");
    }
    unpack(name)
}

#[test]
fn the_generic_tests_of_rdma_core_pass() {
    let Some(tests) = ready("pyverbs-tests") else { return };
    let output = run(&tests);
    let text = String::from_utf8_lossy(&output.stderr);
    let outcomes = Outcomes::read(&text);
    assert!(outcomes.wrong.is_empty(), "{:#?}\n{text}", outcomes.wrong);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(outcomes.generic() >= PASSED, "{outcomes:#?}\n{text}");
}

/// They look for the interface of the device, which there is on a cable only, and in files.
#[test]
fn the_tests_of_connections_pass() {
    with_cable(1500, |cable| {
        let Some(tests) = ready("pyverbs-connection-tests") else { return };
        let folder = directory("pyverbs-connections");
        let mut python = Command::new("/usr/bin/python3");
        python.args(["run_tests.py", "-v", "--dev", "feroce0", "test_rdmacm"]).current_dir(&tests);
        python.env("LD_PRELOAD", folder.join("libibverbs.so.1")).env("LD_LIBRARY_PATH", folder);
        let output = cable.in_a(|| python.output().expect("python"));
        let text = String::from_utf8_lossy(&output.stderr);
        let outcomes = Outcomes::read(&text);
        assert!(outcomes.wrong.is_empty() && output.status.success(), "{outcomes:#?}\n{text}");
        assert_eq!((outcomes.generic(), outcomes.skipped), (10, 0), "{text}");
    });
}

#[test]
fn outcomes_are_counted_by_module() {
    let outcomes = Outcomes::read(
        "test_a (tests.test_cq.CQTest.test_a) ... ok\n\
         test_b (tests.test_cq.CQTest.test_b)\n\
         With a description. ... noise\n\
         ok\n\
         test_c (tests.test_mlx5_dr.Test.test_c) ... ok\n\
         test_d (tests.test_qp.Test.test_d) ... skipped 'for a reason'\n\
         test_e (tests.test_qp.Test.test_e) ... FAIL\n\
         FAIL: test_e (tests.test_qp.Test.test_e)\n",
    );
    assert_eq!((outcomes.generic(), outcomes.skipped), (2, 1));
    assert_eq!(outcomes.wrong, ["FAIL: test_e (tests.test_qp.Test.test_e)"]);
}
