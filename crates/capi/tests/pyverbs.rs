//! The test-suite that rdma-core brings for its Python bindings, on a device of ours.
//!
//! It comes compressed in the documentation of Debian's package. Every test is a client and a
//! server in one process on one device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{directory, scratch, skip};
use crate::netns::{Cable, with_cable};

/// Where Debian puts the tests.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Tests of generic verbs that pass, at least: all that are not skipped. Where there is more to
/// test with, more pass; where more pass here, this number goes up.
const PASSED: usize = 132;

/// The same on a port of InfiniBand.
const PASSED_INFINIBAND: usize = 131;

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

/// What tests are skipped for on a device that speaks iWARP, beside those reasons.
const REASONS_IWARP: &[&str] = &[
    "Atomic operations are not supported",
    "Create AH is not supported",
    "Create QP type 4 is not supported",
    "Create UC QP with",
    "Create UD QP with",
    "Create player with",
    "Extended QP is not supported on this device",
];

/// What tests fail of on such a device, and of nothing else: they bring queue pairs up by hand,
/// which no iWARP device allows, or create some for XRC without asking whether there is any.
const FAILURES_IWARP: &[&str] = &[
    "pyverbs.pyverbs_error.PyverbsRDMAError: Failed to modify QP state to RTR. Errno: 22,",
    "pyverbs.pyverbs_error.PyverbsRDMAError: Failed to create QP. Errno: 95,",
];

/// Tests that pass on such a device, at least.
const PASSED_IWARP: usize = 46;

/// What else they are skipped for on a port of InfiniBand: it has no frames of Ethernet.
const REASONS_INFINIBAND: &[&str] = &[
    "Must be run by root on Ethernet link layer",
    "To Create RAW QP must be done by root on Ethernet link layer",
    "Link layer of port=1 is InfiniBand",
    // A UDP source port.
    "No supported port is up, can't run traffic",
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

    /// Reasons that the lists do not have.
    fn surprises(&self, lists: &[&[&str]]) -> Vec<&String> {
        let is_known =
            |reason: &str| lists.iter().flat_map(|l| *l).any(|known| reason.starts_with(known));
        self.skipped.iter().filter(|reason| !is_known(reason)).collect()
    }

    /// Tests that passed and are not about the hardware of one vendor.
    fn generic(&self) -> usize {
        let is_generic = |module: &str| !module.contains("_mlx5") && !module.contains("_efa");
        self.passed.iter().filter(|(module, _)| is_generic(module)).map(|(_, n)| n).sum()
    }
}

/// The exceptions that failed tests have ended with, behind a traceback each.
fn exceptions(text: &str) -> Vec<&str> {
    let failed = text.split("\n======").skip(1);
    failed
        .map(|section| {
            let is_exception = |line: &&str| !line.starts_with(' ') && line.contains("Error: ");
            section.lines().skip(2).find(is_exception).unwrap_or("no exception")
        })
        .collect()
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

fn run(tests: &Path, folder: &str, address: &str, transport: &str) -> Output {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["run_tests.py", "-v", "--dev", "feroce0"]).current_dir(tests);
    python.env("LD_LIBRARY_PATH", directory(folder)).env("FEROCE_ADDRESS", address);
    python.env("FEROCE_TRANSPORT", transport).output().expect("python")
}

/// The tests in a folder of their own, if everything is there that they need.
pub(crate) fn ready(name: &str) -> Option<PathBuf> {
    let bindings = Command::new("/usr/bin/python3").args(["-c", "import pyverbs"]).output();
    if !bindings.is_ok_and(|done| done.status.success()) {
        return skip("pyverbs", "python3-pyverbs");
    }
    unpack(name)
}

#[test]
fn the_generic_tests_of_rdma_core_pass() {
    let Some(tests) = ready("pyverbs-tests") else { return };
    let output = run(&tests, "pyverbs", "127.121.0.1", "roce");
    check(&output, PASSED, &[REASONS]);
}

/// All generic tests ran on a port of InfiniBand, and none failed.
pub(crate) fn check_infiniband(output: &Output) {
    check(output, PASSED_INFINIBAND, &[REASONS, REASONS_INFINIBAND]);
}

/// So many generic tests passed, none failed, and others were skipped for one of the reasons.
fn check(output: &Output, passed: usize, reasons: &[&[&str]]) {
    let text = String::from_utf8_lossy(&output.stderr);
    let outcomes = Outcomes::read(&text);
    assert!(outcomes.wrong.is_empty(), "{:#?}\n{text}", outcomes.wrong);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(outcomes.generic() >= passed, "{outcomes:#?}\n{text}");
    let surprises = outcomes.surprises(reasons);
    assert!(surprises.is_empty(), "skipped for: {surprises:#?}");
}

/// On an iWARP device, all but those pass that no such device passes.
#[test]
fn the_generic_tests_of_rdma_core_fail_over_iwarp_only_of_what_it_has_not() {
    let Some(tests) = ready("pyverbs-iwarp-tests") else { return };
    let output = run(&tests, "pyverbs-iwarp", "127.122.0.1", "iwarp");
    let text = String::from_utf8_lossy(&output.stderr);
    let (outcomes, exceptions) = (Outcomes::read(&text), exceptions(&text));
    assert_eq!(outcomes.wrong.len(), exceptions.len(), "{text}");
    let is_known =
        |exception: &str| FAILURES_IWARP.iter().any(|known| exception.starts_with(known));
    assert!(exceptions.iter().all(|exception| is_known(exception)), "{exceptions:#?}\n{text}");
    assert!(outcomes.generic() >= PASSED_IWARP, "{outcomes:#?}\n{text}");
    let surprises = outcomes.surprises(&[REASONS, REASONS_IWARP]);
    assert!(surprises.is_empty(), "skipped for: {surprises:#?}");
}

/// Runs tests that look for the interface of the device, which there is on a cable only, and in
/// files.
fn connect(cable: &Cable, name: &str, transport: &str, wanted: &[&str], count: usize) {
    let Some(tests) = ready(&format!("{name}-tests")) else { return };
    let folder = directory(name);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["run_tests.py", "-v", "--dev", "feroce0"]).args(wanted).current_dir(&tests);
    python.env("LD_PRELOAD", folder.join("libibverbs.so.1")).env("LD_LIBRARY_PATH", folder);
    python.env("FEROCE_TRANSPORT", transport);
    let output = cable.in_a(|| python.output().expect("python"));
    let text = String::from_utf8_lossy(&output.stderr);
    let outcomes = Outcomes::read(&text);
    assert!(outcomes.wrong.is_empty() && output.status.success(), "{outcomes:#?}\n{text}");
    assert_eq!((outcomes.generic(), outcomes.skipped.len()), (count, 0), "{text}");
}

#[test]
fn the_tests_of_connections_pass() {
    with_cable(1500, |cable| {
        connect(cable, "pyverbs-connections", "roce", &["test_rdmacm"], 10);
    });
}

/// The others need datagrams, an acknowledgement timeout, or an event that iWARP does not have; and
/// `test_rdmacm_async_write` reads the memory of the peer when the WRITE is complete, which over
/// iWARP says only that TCP has the bytes.
const CONNECTIONS_IWARP: &[&str] = &[
    "test_rdmacm.CMTestCase.test_rdmacm_sync_traffic",
    "test_rdmacm.CMTestCase.test_rdmacm_async_read",
    "test_rdmacm.CMTestCase.test_rdmacm_async_reject_traffic",
];

#[test]
fn the_tests_of_connections_pass_over_iwarp() {
    with_cable(1500, |cable| {
        connect(cable, "pyverbs-connections-iwarp", "iwarp", CONNECTIONS_IWARP, 3);
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
    assert_eq!(outcomes.surprises(&[REASONS]), ["for a reason"]);
    let text = "\n======\nFAIL: test_d\n------\nTraceback\n  raise AssertionError: no\n\
                AssertionError: 1 != 0\n\n------\nRan 4 tests\n";
    assert_eq!(exceptions(text), ["AssertionError: 1 != 0"]);
    assert_eq!(outcomes.wrong, ["FAIL: test_e (tests.test_qp.Test.test_e)"]);
}
