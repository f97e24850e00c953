//! Programs that use verbs for something of their own, between hosts on different switches of an
//! InfiniBand fabric, and the test-suite of rdma-core on a host of one.

use std::path::Path;
use std::process::Command;

use super::FT4;
use super::fabric::{Fabric, installed, wait_until};
use super::verbs::{is_listened_on, pair, program, said, sent};
use crate::common;
use crate::pyverbs::{self, ready};

/// A fabric with LIDs, if a program of a package is there.
fn up(name: &str, program: &str, package: &str) -> Option<Fabric> {
    if !Path::new("/usr/bin").join(program).exists() {
        return common::skip(program, package);
    }
    installed("opensm").map(|()| Fabric::up_with(name, FT4, &["--sm"]))
}

#[test]
fn qperf_measures_over_lids() {
    let Some(fabric) = up("ib-qperf", "qperf", "qperf") else { return };
    let _server = fabric.start("Host4", "qperf -lp 18695");
    wait_until(|| is_listened_on(18695));
    // For a second each. By number of messages (`-n`) the server ends before its client.
    let tests = "rc_rdma_write_lat uc_lat ud_lat";
    let words = format!("qperf 127.0.0.1 -lp 18695 -t 1 {tests}");
    let client = said(program(&fabric, "Host1", &words).output().expect("it ran"));
    for test in tests.split_whitespace() {
        assert!(client.contains(&format!("{test}:\n")), "{test}: {client}");
    }
    assert!(sent(&fabric, "Leaf1:8") > 100, "{}", fabric.line("Leaf1:8"));
}

#[test]
fn ucx_finds_ports_by_lid() {
    let Some(fabric) = up("ib-ucx", "ucx_info", "ucx-utils") else { return };
    for (transport, port) in [("rc_v", 18696), ("ud_v", 18697)] {
        // Nothing but verbs.
        let words = format!("env UCX_TLS={transport},self ucx_perftest -t tag_bw -n 50 -s 65536");
        let client = pair(&fabric, &words, port);
        assert!(client.contains("Final:"), "{client}");
    }
    // Twice 50 messages of 32 packets.
    assert!(sent(&fabric, "Leaf1:8") > 3200, "{}", fabric.line("Leaf1:8"));
}

#[test]
fn ranks_of_open_mpi_are_on_two_hosts() {
    let Some(fabric) = up("ib-mpi", "NPopenmpi", "netpipe-openmpi") else { return };
    let rank = |host: &str| {
        let command = fabric.command(&["run", "-n", host, "--", "NPopenmpi", "-n", "3"]);
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let words: Vec<_> = words.map(std::ffi::OsStr::to_owned).collect();
        [words, ["-u", "4096", "-p", "0"].map(Into::into).to_vec()].concat()
    };
    let like = fabric.command(&[]);
    let mut ranks = Command::new("timeout");
    ranks.args(["100", "mpirun", "--allow-run-as-root", "--oversubscribe"]);
    ranks.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "-n", "1"]).args(rank("Host1"));
    ranks.args([":", "-n", "1"]).args(rank("Host4")).current_dir(&fabric.folder);
    ranks.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = ranks.env("UCX_TLS", "rc_v,ud_v,self").output().expect("it ran");
    // NetPIPE writes its results to where errors go.
    let results = String::from_utf8_lossy(&output.stderr).into_owned();
    said(output);
    assert!(results.contains("4096 bytes      3 times -->"), "{results}");
    assert!(sent(&fabric, "Leaf1:8") > 200, "{}", fabric.line("Leaf1:8"));
}

/// Every test is a client and a server in one process, on the port of one host.
#[test]
fn the_generic_tests_of_rdma_core_pass_on_a_port_with_a_lid() {
    let Some(tests) = ready("ib-pyverbs-tests") else { return };
    let Some(fabric) = up("ib-pyverbs", "ibv_devinfo", "ibverbs-utils") else { return };
    let words = "/usr/bin/python3 run_tests.py -v --dev feroce0";
    let output = program(&fabric, "Host4", words).current_dir(&tests).output().expect("python");
    pyverbs::check_infiniband(&output);
}
