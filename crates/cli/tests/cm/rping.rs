//! `feroce rping`.

use nix::sys::signal::Signal;

use super::netns::{Cable, with_cable};
use super::{CABLES, Running, across, both, refused, run, text};

#[test]
fn pings_come_back() {
    for (net, options) in (1..).zip(["-C 50 -V", "-C 50 -V -q", "-C 20 -V -S 65535", "-C 3 -S 27"])
    {
        let report = both(net, &format!("rping {options}"));
        for end in ["server", "client"] {
            let pings = report[end]["pings"].as_u64().expect("a number");
            assert!(options.contains(&format!("-C {pings}")), "{options}: {report}");
            assert_eq!(report[end]["interrupted"], false);
        }
        assert_eq!(report["server"]["bytes"], report["client"]["bytes"]);
    }
}

#[test]
fn over_iwarp_only_the_connection_manager_brings_queue_pairs_up() {
    let output = run("--transport iwarp rping --both -q -C 3");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("leave -q out"), "{said}");
}

#[test]
fn pings_cross_a_cable() {
    with_cable(1500, |cable| {
        for (a, b) in CABLES {
            let (served, called) = across(
                cable,
                &format!("rping -s -v -a {a}"),
                &format!("rping -c -v -V -C 5 -S 5000 -a {a} -I {b}"),
            );
            for n in 0..5 {
                let said = format!("ping data: rdma-ping-{n}: ");
                assert!(called.contains(&said), "{called}");
                assert!(served.contains(&format!("server {said}")), "{served}");
            }
        }
        // The server listens at all addresses, and the routing table chooses the client's address.
        across(cable, "rping -s", "rping -c -C 2 -V -a 10.9.0.1");
        across(cable, "rping -s -a ::", "rping -c -C 2 -V -a fd09::1");
    });
}

#[test]
fn a_persistent_server_serves_many() {
    let server = Running::server("rping -s -P -a 127.19.10.1");
    let clients: Vec<Running> = (2..6)
        .map(|n| Running::start(&format!("rping -c -V -C 30 -a 127.19.10.1 -I 127.19.10.{n}")))
        .collect();
    for client in clients {
        let (status, output, errors) = client.finish();
        assert_eq!(status, Some(0), "{output} {errors}");
        assert!(output.contains("30 pings in"), "{output}");
    }
    server.signal(Signal::SIGINT);
    let (status, output, _) = server.finish();
    assert_eq!(status, Some(130));
    assert!(output.contains("4 clients, 120 pings in"), "{output}");
}

#[test]
fn an_interrupt_ends_both_ends_well() {
    let server = Running::server("rping -s -v -a 127.19.11.1");
    let mut client = Running::start("rping -c -v -a 127.19.11.1 -I 127.19.11.2");
    // A client that has counted no ping says nothing about pings.
    client.wait_for_output("ping data");
    client.signal(Signal::SIGINT);
    let (status, output, _) = client.finish();
    assert_eq!(status, Some(130));
    assert!(output.contains("pings in"), "{output}");
    let (status, _, errors) = server.finish();
    assert_eq!(status, Some(0), "{errors}");
    assert!(errors.contains("DISCONNECT EVENT"), "{errors}");
}

#[test]
fn whoever_survives_notices() {
    let start = |net: u8| {
        let server = Running::server(&format!("rping -s -v -a 127.19.{net}.1"));
        let to = format!("rping -c -v -a 127.19.{net}.1 -I 127.19.{net}.2");
        (server, Running::start(&to))
    };
    let ((mut widow, killed), (killed_too, mut widower)) = (start(12), start(13));
    widow.wait_for_output("rdma-ping");
    widower.wait_for_output("rdma-ping");
    killed.signal(Signal::SIGKILL);
    killed_too.signal(Signal::SIGKILL);
    // A server takes the end of a connection for the end of the test.
    for (survivor, expected) in [(widow, 0), (widower, 1)] {
        let (status, _, errors) = survivor.finish();
        assert_eq!(status, Some(expected), "{errors}");
        assert!(errors.contains("DISCONNECT EVENT"), "{errors}");
    }
}

#[test]
fn refusals_are_explained() {
    let _server = Running::server("rping -s -a 127.19.14.1 -p 7200");
    let output = run("rping -c -a 127.19.14.1 -p 7201 -I 127.19.14.2");
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("127.19.14.1:7201 refused") && errors.contains("no program listens"));
    with_cable(1500, |cable: &Cable| {
        let output = cable.in_a(|| run("rping -c -a 203.0.113.1"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("203.0.113.1:7174"), "{}", text(&output.stderr));
    });
}

#[test]
fn wrong_options_are_refused() {
    refused("rping", "required");
    refused("rping -c", "--addr");
    refused("rping -s -c -a 127.0.0.1", "cannot be used with");
    refused("rping -c -P -a 127.0.0.1", "cannot be used with");
    refused("rping --both -S 26", "26 is not in 27..=65535");
    refused("rping --both -C -1", "-1");
}
