//! Programs with one mistake each, and what they are told with `FEROCE_LINT=1`, line by line.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{directory, gcc, headers, library, scratch};

/// Compiles the program that makes the mistakes.
fn program() -> Option<PathBuf> {
    headers()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/lint.c");
    let program = scratch("lint").join("lint");
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
    let Some(program) = program() else { return };
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
        let said: Vec<String> = run("1").lines().map(without_numbers).collect();
        let expected: Vec<String> =
            expected.iter().map(|line| format!("feroce: lint: {line}")).collect();
        assert_eq!(said, expected, "{mistake}");
        assert_eq!(run("0"), "", "{mistake}");
    }
}
