//! Cells without a cable: the feroce commands and the tests of the Rust interface run in the guest,
//! with both of their ends on the kernel's device, as they would run on a network adapter.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use super::counters::{self, Counters};
use super::lab::{Lab, in_guest};
use crate::shell::{cargo, packed, run_keeping, target_dir};
use crate::{Failure, Outcome};

/// Longer than any of them takes, even where a busy machine emulates another.
const LIMIT: Duration = Duration::from_secs(85);

/// What runs in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alone {
    /// A command with its options, and what it says at its end.
    Command(&'static str, &'static str),
    /// A program of tests.
    Tests(&'static Tests),
}

/// A program of tests of the crate `feroce`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Tests {
    pub(super) program: &'static str,
    /// Tests that ask for more than this driver has, and what that is.
    pub(super) left_out: &'static [(&'static str, &'static str)],
}

#[rustfmt::skip] // a table
const TESTS: &[Tests] = &[
    Tests { program: "asynchronous", left_out: &[] },
    Tests { program: "verbs", left_out: &[
        ("multicast",
         "datagrams of a group come only to a host that has joined it by IP, which the connection \
          manager does and `ibv_attach_mcast` does not; see `mckey`"),
    ] },
    Tests { program: "cm", left_out: &[
        ("a_process_that_ends_takes_leave_of_its_peers",
         "the kernel outlives the process, and takes leave for it"),
        ("a_process_that_ends_waits_until_its_peer_has_confirmed",
         "the kernel outlives the process, and waits for it"),
        ("a_request_may_come_a_moment_before_its_listener",
         "the kernel refuses a request at once if there is no listener"),
        ("a_service_of_the_port_space_ib_is_for_connections_or_for_datagrams",
         "`rdma_create_id` makes ids of this port space for connections only"),
    ] },
    Tests { program: "objects", left_out: &[
        ("one_target_delivers_to_many_shared_queues",
         "Soft-RoCE has no extended reliable connections"),
        ("a_shared_queue_grows_shrinks_and_tells_when_it_runs_low",
         "Linux 6.1 does not come back from a call that makes a shared queue smaller than what is \
          in it"),
        ("events_go_to_the_opening_that_made_the_object",
         "Soft-RoCE does not tell when the last receive of a shared queue is taken"),
        ("a_queue_pair_that_is_reset_leaves_no_completions", "Soft-RoCE leaves them"),
        ("a_registration_changes_its_memory_its_rights_and_its_domain",
         "`ibv_rereg_mr` cannot be told the address that other memory is to have"),
        ("parts_of_memory_and_no_memory_at_all",
         "Soft-RoCE has no registration of nothing"),
    ] },
];

#[rustfmt::skip] // a table
const COMMANDS: &[(&str, &str)] = &[
    ("devinfo -v", "PORT_ACTIVE"),
    ("rc-pingpong --both -n 50 -c", "50 iters in"),
    ("rc-pingpong --both -n 50 -e", "50 iters in"),
    ("uc-pingpong --both -n 50 -c", "50 iters in"),
    ("ud-pingpong --both -n 50 -c", "50 iters in"),
    ("srq-pingpong --both -n 50 -c", "50 iters in"),
    ("srq-pingpong --both -n 50 -e", "50 iters in"),
    ("--json perf write bw --both -n 50", "\"iterations\":50"),
    ("--json perf write lat --both -n 50", "\"iterations\":50"),
    ("--json perf read bw --both -n 50", "\"iterations\":50"),
    ("--json perf read lat --both -n 50", "\"iterations\":50"),
    ("--json perf send bw --both -n 50", "\"iterations\":50"),
    ("--json perf send lat --both -n 50", "\"iterations\":50"),
    ("--json perf atomic bw --both -n 50", "\"iterations\":50"),
    ("--json perf atomic lat --both -n 50", "\"iterations\":50"),
    ("rping --both -C 5", "5 pings in"),
    ("rping --both -C 5 -q", "5 pings in"),
    ("client --both", "end 0"),
    ("ucmatose --both -c 3", "return status 0"),
    ("udaddy --both -c 2", "return status 0"),
    ("cmtime --both -c 5", "5 connections"),
    ("mckey --both -m 239.91.0.7 -C 5", "return status 0"),
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = Alone> {
    let commands = COMMANDS.iter().map(|&(words, says)| Alone::Command(words, says));
    commands.chain(TESTS.iter().map(Alone::Tests))
}

/// Every test that is left out, with the program that it belongs to and the reason.
pub(super) fn left_out() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let pairs = TESTS.iter().flat_map(|tests| tests.left_out.iter().map(move |one| (tests, one)));
    pairs.map(|(tests, (name, reason))| (tests.program, *name, *reason))
}

/// Builds the programs of tests, under names that say nothing of how they were built.
pub(super) fn build_tests() -> Outcome {
    let mut build = cargo(["test", "--no-run", "-p", "feroce"]);
    build.args(TESTS.iter().flat_map(|tests| ["--test", tests.program]));
    let (outcome, lines) = run_keeping(&mut build, |line| line.contains("Executable "));
    outcome?;
    for tests in TESTS {
        let start = format!("Executable tests/{}.rs (", tests.program);
        let built = lines.iter().find_map(|line| line.strip_prefix(&start)?.strip_suffix(')'));
        let built = built.ok_or_else(|| {
            Failure::Failed(format!("cargo does not say where the tests `{}` are", tests.program))
        })?;
        let path = tests.path();
        std::fs::copy(built, &path).map_err(|e| super::failed(&path, e))?;
    }
    Ok(())
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(words, _) => write!(f, "feroce {words}"),
            Self::Tests(tests) => write!(f, "tests `{}`", tests.program),
        }
    }
}

impl Alone {
    /// Runs it; fails unless it succeeds. Some tests make errors on purpose, so the driver may
    /// count any errors except wrong ICRCs.
    pub(super) fn run(self, lab: &Lab) -> Outcome {
        let before = lab.counters()?;
        self.run_once(lab)?;
        let complaints = counters::complaints(Counters::Free, &before, &lab.counters()?);
        expect(complaints.is_empty(), || complaints.join("\n"))
    }

    fn run_once(self, lab: &Lab) -> Outcome {
        match self {
            Self::Command(words, says) => {
                let feroce = in_guest(&packed("feroce"));
                let said = run_here(lab, &format!("{feroce} {words}"))?;
                expect(said.contains(says), || format!("it does not say `{says}`:\n{said}"))
            }
            Self::Tests(tests) => tests.run(lab),
        }
    }
}

impl Tests {
    fn path(&self) -> PathBuf {
        target_dir().join("interop").join(format!("tests-{}", self.program))
    }

    /// Runs every test except those that are left out; fails if one of these does not exist.
    fn run(&self, lab: &Lab) -> Outcome {
        let program = in_guest(&self.path());
        let listed = run_here(lab, &format!("{program} --list --format terse"))?;
        let names: Vec<&str> = listed.lines().filter_map(|l| l.strip_suffix(": test")).collect();
        for (name, _) in self.left_out {
            expect(names.contains(name), || format!("there is no test `{name}`"))?;
        }
        let wanted = names.len() - self.left_out.len();
        let skips: String =
            self.left_out.iter().map(|(name, _)| format!(" --skip {name}")).collect();
        let said = run_here(lab, &format!("{program} --test-threads=1 --exact{skips}"))?;
        let passed = format!("ok. {wanted} passed; 0 failed;");
        expect(said.contains(&passed), || format!("it does not say `{passed}`:\n{said}"))
    }
}

/// Runs a line of shell in the guest, on the kernel's device.
fn run_here(lab: &Lab, line: &str) -> Outcome<String> {
    let limit = LIMIT.as_secs();
    let on = "FEROCE_BACKEND=rdma-core FEROCE_TEST_DEVICE=rxe0";
    lab.ask_guest(&["sh", "-c", &format!("{on} timeout --kill-after=5 {limit} {line} 2>&1")])
}

fn expect(is_so: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if is_so { Ok(()) } else { Err(Failure::Failed(otherwise())) }
}
