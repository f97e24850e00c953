//! The test-suite that rdma-core brings for its Python bindings, on a device of ours.
//!
//! It comes compressed in the documentation of Debian's package. Every test is a client and a
//! server in one process on one device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{directory, scratch, skip};
use crate::netns::with_cable;

/// Where Debian puts the tests.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Tests of generic verbs that pass, at least: all that are not skipped. Where there is more to
/// test with, more pass; where more pass here, this number goes up.
const PASSED: usize = 132;

/// What tests are skipped for, as they say it, and no test for anything else.
const REASONS: &[&str] = &[
    // Adapters of one vendor.
    "Can not run the test over non MLX5 device",
    "Could not open mlx5 context (This is not an MLX5 device)",
    "Can not run the test over non EFA device",
    "PCI device must be passed by the user",
    // Whole frames of Ethernet, and the rules by which hardware sorts them (type 8 is that, too).
    "Create Raw Packet QP with",
    "Create QP type 8 is not supported",
    // Tags that hardware matches: the tests ask for a completion queue that knows of them.
    "Extended CQ is not supported",
    // A clock of the hardware that is not the system's.
    "Converting timestamp to nanoseconds is not supported",
    // What the machine does not have.
    "Allocating dmabuf is not supported by /dev/dri/",
    "There are no huge pages of size 2M allocated",
    "cuda-python 12.0+ must be installed to run CUDA tests",
    // What there is on a cable only, where these tests run once more.
    "Device feroce0 doesn't have net interface",
];

/// How often each outcome was seen, by module.
#[derive(Debug, Default)]
struct Outcomes {
    passed: BTreeMap<String, usize>,
    /// Why each was.
    skipped: Vec<String>,
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
            } else if let Some((_, reason)) = line.split_once("skipped ") {
                outcomes.skipped.push(reason.trim_matches(['\'', '"']).to_owned());
            } else if line.starts_with("ERROR:") || line.starts_with("FAIL:") {
                outcomes.wrong.push(line.to_owned());
            }
        }
        outcomes
    }

    /// Reasons that the list does not have.
    fn surprises(&self) -> Vec<&String> {
        let is_known = |reason: &str| REASONS.iter().any(|known| reason.starts_with(known));
        self.skipped.iter().filter(|reason| !is_known(reason)).collect()
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
    assert!(outcomes.surprises().is_empty(), "skipped for: {:#?}", outcomes.surprises());
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
        assert_eq!((outcomes.generic(), outcomes.skipped.len()), (10, 0), "{text}");
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
    assert_eq!((outcomes.generic(), &*outcomes.skipped), (2, &["for a reason".to_owned()][..]));
    assert_eq!(outcomes.surprises(), ["for a reason"]);
    assert_eq!(outcomes.wrong, ["FAIL: test_e (tests.test_qp.Test.test_e)"]);
}
