//! Programs with one mistake each, and what they are told with `FEROCE_LINT=1`, line by line.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{directory, gcc, headers, library, scratch};

/// Compiles the program that makes the mistakes, in a folder of this name.
fn program(folder: &str) -> Option<PathBuf> {
    headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/lint.c");
    let program = scratch(folder).join("lint");
    let [source, out, library] = [&*source, &*program, library()].map(|p| p.display().to_string());
    gcc(&["-Wall", "-Werror", "-O1", "-pthread", &source, "-o", &out, &library])?;
    Some(program)
}

/// A line without the numbers that change from run to run: addresses and names, and how often a
/// message was sent again.
fn without_numbers(line: &str) -> String {
    ["0x", "messages: "].iter().fold(line.to_owned(), |line, mark| {
        let mut pieces = line.split(mark);
        let first = pieces.next().unwrap_or_default().to_owned();
        pieces.fold(first, |text, piece| {
            text + mark + piece.trim_start_matches(|c: char| c.is_ascii_hexdigit())
        })
    })
}

/// A line without the function that made the mistake, which is one of the program's. What is said
/// at exit has none.
fn without_caller(line: &str) -> String {
    match line.split_once(" (called by ") {
        None => {
            let is_late = line.starts_with("at exit, ") || line.starts_with("feroce0: ");
            assert!(is_late, "{line}");
            line.to_owned()
        }
        Some((text, caller)) => {
            let symbol = caller.strip_suffix(" of lint)").and_then(|rest| rest.split_once("+0x"));
            let symbol = symbol.map(|(symbol, _)| symbol).unwrap_or_default();
            assert!(PROGRAM.contains(&format!(" {symbol}(")), "{line}");
            text.to_owned()
        }
    }
}

/// The source of the program.
const PROGRAM: &str = include_str!("c/lint.c");

/// What is said about memory that is deregistered under requests.
const PULLED: &str = "the memory region at 0x is deregistered while requests on QP 0x name it \
                      (requests: 2): poll their completions first, or destroy the queue pair";

/// What each mistake is told. Those who read the sentences shall know what to do.
const MISTAKES: &[(&str, &[&str])] = &[
    ("nothing", &[]),
    (
        "depth",
        &["CQ 0x has a depth of 8, but 9 requests are posted that complete there: make it \
             deeper, or completions may be lost (IBV_EVENT_CQ_ERR)"],
    ),
    (
        "starved",
        &[
            "QP 0x: the peer had no receive posted until retries ran out (RNR): post receives \
             there before sending, or set rnr_retry to 7, which is for ever",
            "feroce0: messages arrived when no receive was posted (messages: ): post receives \
             earlier, and more of them",
        ],
    ),
    (
        "unknown_key",
        &["QP 0x: a request names lkey 0x, which no memory region has: register the memory, and \
           deregister it only after its last completion"],
    ),
    (
        "read_only",
        &["QP 0x: an RDMA read writes to the memory region at 0x, which does not allow that: \
           register it with IBV_ACCESS_LOCAL_WRITE"],
    ),
    (
        "refused",
        &[
            "QP 0x: the peer refused access to its memory: check rkey and range, and give \
             IBV_ACCESS_REMOTE_WRITE there, to the memory region and in qp_access_flags of the \
             queue pair",
            "QP 0x: a peer was refused access to memory here; qp_access_flags allow \
             IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ: add what it needs there and to the \
             memory region, and check its rkey and range",
        ],
    ),
    (
        "shared_depth",
        &["CQ 0x has a depth of 8, but 9 requests are posted that complete there: make it \
             deeper, or completions may be lost (IBV_EVENT_CQ_ERR)"],
    ),
    (
        "no_gid",
        &["QP 0x: ibv_modify_qp failed: ah_attr.is_global is 0, and RoCE finds its peers by GID: \
           set it, grh.dgid and grh.sgid_index (option -g of the pingpongs, -x of perftest)"],
    ),
    (
        "skips",
        &["QP 0x: ibv_modify_qp failed: no transition from Reset to Rts: Reset leads to Init and \
           Err"],
    ),
    (
        "too_early",
        &["QP 0x: ibv_post_send failed: nothing can be posted in Reset: move the queue pair on \
           first"],
    ),
    (
        "too_small",
        &[
            "QP 0x: the peer refused a request as invalid: its receive is shorter than the \
             message: post longer receives there",
            "QP 0x: a message is longer than the receive that took it: post receives that are as \
             long as the longest message of the peer (a datagram needs 40 bytes more, for the GRH)",
        ],
    ),
    (
        "nobody",
        &["QP 0x: the peer did not answer until retries ran out: check that it runs, that its \
           queue pair was in RTR before the first send, dest_qp_num, dgid and the PSNs, and that \
           UDP port 4791 is not filtered; timeout and retry_cnt say how long to wait"],
    ),
    (
        "unacknowledged",
        &["ibv_destroy_cq waits because 1 event is not acknowledged: call ibv_ack_cq_events for \
           every event that you get"],
    ),
    ("pulled", &[PULLED]),
    ("shared", &[PULLED]),
    (
        "many",
        &[
            PULLED,
            PULLED,
            PULLED,
            PULLED,
            PULLED,
            PULLED,
            PULLED,
            PULLED,
            "the same again, on other objects: no more is said about those",
        ],
    ),
    (
        "unsignalled",
        &["QP 0x: a send is posted to a queue that is full of unsignalled requests (requests: \
           8): set IBV_SEND_SIGNALED on some and poll for them, or the queue never empties"],
    ),
    (
        "leaks",
        &[
            "at exit, 3 memory regions were not deregistered: call ibv_dereg_mr",
            "at exit, 1 completion channel was not destroyed: call ibv_destroy_comp_channel",
            "at exit, 1 completion queue was not destroyed: call ibv_destroy_cq",
            "at exit, 1 queue pair was not destroyed: call ibv_destroy_qp",
            "at exit, 1 protection domain was not freed: call ibv_dealloc_pd",
            "at exit, 1 device was not closed: call ibv_close_device",
        ],
    ),
];

#[test]
fn mistakes_are_named_once_and_the_rest_is_silence() {
    let Some(program) = program("lint-mistakes") else { return };
    let folder = directory("lint-lib");
    for (mistake, expected) in MISTAKES {
        let run = |lint: &str| {
            let mut command = Command::new("timeout");
            command.arg("60").arg(&program).arg(mistake).env("FEROCE_LINT", lint);
            command.env("FEROCE_ADDRESS", "127.122.7.1").env("LD_LIBRARY_PATH", &folder);
            let output = command.output().expect("timeout is part of coreutils");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{mistake}: {}\n{said}", output.status);
            said
        };
        let line = |line: &str| {
            let said = line.strip_prefix("feroce[").and_then(|rest| rest.split_once("]: lint: "));
            let Some((process, text)) = said else { panic!("{mistake}: {line}") };
            assert!(process.parse::<u32>().is_ok(), "{line}");
            without_numbers(&without_caller(text))
        };
        let said: Vec<String> = run("1").lines().map(line).collect();
        assert_eq!(said, *expected, "{mistake}");
        assert_eq!(run("0"), "", "{mistake}");
    }
}

#[test]
fn a_program_without_symbols_is_named_by_its_file() {
    let Some(program) = program("lint-stripped") else { return };
    let stripped = Command::new("strip").arg(&program).status().expect("strip is part of binutils");
    assert!(stripped.success());
    let mut command = Command::new("timeout");
    command.arg("60").arg(&program).arg("skips").env("FEROCE_LINT", "1");
    command.env("FEROCE_ADDRESS", "127.122.7.3");
    command.env("LD_LIBRARY_PATH", directory("lint-stripped-lib"));
    let output = command.output().expect("timeout is part of coreutils");
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("ibv_modify_qp")).unwrap_or_default();
    let (_, caller) = line.split_once(" (called by lint+0x").unwrap_or_default();
    let place = format!("addr2line -fe {}", program.display());
    assert!(caller.contains(&place), "{said}");
}

#[test]
fn warnings_can_make_the_exit_status_1() {
    let Some(program) = program("lint-error") else { return };
    let folder = directory("lint-error-lib");
    let status = |mistake: &str, lint: &str| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&program).arg(mistake).env("FEROCE_LINT", lint);
        command.env("FEROCE_ADDRESS", "127.122.7.2").env("LD_LIBRARY_PATH", &folder);
        let output = command.output().expect("timeout is part of coreutils");
        (output.status.code(), !output.stderr.is_empty())
    };
    assert_eq!(status("nothing", "error"), (Some(0), false));
    assert_eq!(status("leaks", "error"), (Some(1), true));
    assert_eq!(status("leaks", "1"), (Some(0), true));
    assert_eq!(status("skips", "error"), (Some(1), true));
}
