//! Small programs in C for what no client of libibverbs does on purpose: misuse, forks, threads
//! that are cancelled. Each ends with 0 or says which line it did not get past.

use std::path::Path;
use std::process::Command;

use crate::common::{command, directory, gcc, headers, library, scratch};

/// Compiles a program of `tests/c` and runs it on devices at these addresses.
fn run(name: &str, addresses: &str) {
    if headers().is_none() {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = scratch(name).join(name);
    let (source, program) = (source.display().to_string(), program.display().to_string());
    let library = library().display().to_string();
    let args = ["-Wall", "-Werror", "-O1", "-pthread", &source, "-o", &program, &library];
    if gcc(&args).is_none() {
        return;
    }
    let mut command = Command::new("timeout");
    // Some take half a minute on a busy machine.
    command.args(["180", &program]).env("FEROCE_ADDRESS", addresses);
    command.env("LD_LIBRARY_PATH", directory(&format!("{name}-lib")));
    let output = command.output().expect("timeout is part of coreutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
}

/// A listener whose port another user has taken gets an event, and standard error says why.
#[test]
fn a_listener_that_has_lost_its_port_is_told() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start processes of other users");
        return;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (folder, source) = (scratch("lost-port"), tests.join("c/lost_port.c"));
    let (source, library) = (source.display().to_string(), library().display().to_string());
    let program = folder.join("lost_port");
    let shown = program.display().to_string();
    if headers().is_none() || gcc(&["-Wall", "-Werror", &source, "-o", &shown, &library]).is_none()
    {
        return;
    }
    let mut script = Command::new("timeout");
    script.args(["60", "unshare", "--net", "--mount", "sh"]).current_dir(&folder);
    script.arg(tests.join("programs/lost_port.sh")).arg(command()).arg(&program);
    script.env("LD_LIBRARY_PATH", directory("lost-port-lib"));
    let output = script.output().expect("timeout is part of coreutils");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}{errors}", output.status);
    assert!(said.contains("RDMA_CM_EVENT_ADDR_ERROR -98"), "{said}");
    assert!(said.contains("another process has taken port 7001 of 127.0.0.1"), "{said}");
}

#[test]
fn misuse_is_refused_as_the_manual_says() {
    run("misuse", "127.122.0.1");
}

#[test]
fn descriptors_are_like_the_kernels() {
    run("descriptors", "127.0.0.1");
}

#[test]
fn a_child_lets_go_of_what_it_inherits_and_the_parent_goes_on() {
    run("fork", "127.122.0.2;127.122.0.3");
}

#[test]
fn threads_share_queues() {
    run("threads", "127.122.0.5");
}

#[test]
fn signals_are_for_the_program_and_the_library_stays() {
    run("guest", "127.122.0.6");
}

#[test]
fn signals_end_waits_as_their_handlers_say() {
    run("interrupted", "127.122.0.8");
}

#[test]
fn a_process_connects_with_itself() {
    run("connections", "127.122.0.7");
}

#[test]
fn calls_of_newer_releases_work() {
    run("newer", "127.122.0.11");
}

#[test]
fn connections_are_refused_as_on_linux() {
    run("like_linux", "127.122.0.10");
}

#[test]
fn without_memory_calls_fail_and_what_exists_goes_on() {
    run("nomem", "127.122.0.12");
}

#[test]
fn waiting_threads_can_be_cancelled_and_destruction_waits_for_acknowledgement() {
    run("cancel", "127.122.0.4");
}

#[test]
fn rsockets_are_like_sockets() {
    run("sockets", "127.122.0.8");
}

#[test]
fn a_lost_peer_is_noticed() {
    run("lostpeer", "127.122.0.9");
}
