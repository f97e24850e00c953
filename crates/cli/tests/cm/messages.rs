//! `feroce ucmatose`, `feroce server` and `feroce client`.

use nix::sys::signal::Signal;

use super::netns::with_cable;
use super::{CABLES, Running, across, both, refused, run, text};

#[test]
fn every_connection_carries_its_messages() {
    for (net, options, connections, messages) in [
        (30, "", 1, 10),
        (31, "-c 30 -C 5 -S 3000", 30, 150),
        (32, "-c 4 -m -t 32 -a 14", 4, 40),
        (33, "-c 2 -C 0", 2, 0),
        (34, "-c 2 -S 0", 2, 0),
    ] {
        let report = both(net, &format!("ucmatose {options}"));
        for end in ["server", "client"] {
            let end = &report[end];
            assert_eq!(end["connections"], connections, "{options}: {report}");
            assert_eq!(end["received"], messages, "{options}: {report}");
        }
        assert_eq!(report["server"]["sent"], messages, "{options}: {report}");
    }
}

#[test]
fn messages_cross_a_cable() {
    with_cable(1500, |cable| {
        for (a, b) in CABLES {
            let (served, called) = across(
                cable,
                &format!("ucmatose -c 3 -b {a}"),
                &format!("ucmatose -c 3 -b {b} -s {a}"),
            );
            for said in [served, called] {
                assert!(said.contains("data transfers complete"), "{said}");
                assert!(said.ends_with("return status 0\n"), "{said}");
            }
            let (served, called) =
                across(cable, &format!("server -s {a}"), &format!("client -s {a} -b {b}"));
            assert_eq!(served, "rdma_server: start\nrdma_server: end 0\n");
            assert_eq!(called, "rdma_client: start\nrdma_client: end 0\n");
        }
    });
}

#[test]
fn a_greeting_needs_no_cable() {
    let report = both(35, "client");
    assert_eq!((&report["server"]["ok"], &report["client"]["ok"]), (&true.into(), &true.into()));
}

#[test]
fn a_dead_server_is_noticed() {
    // The server waits for a second connection before it sends anything.
    let server = Running::server("ucmatose -c 2 -b 127.19.36.1");
    let mut client = Running::start("ucmatose -b 127.19.36.2 -s 127.19.36.1");
    client.wait_for_output("receiving data transfers");
    server.signal(Signal::SIGKILL);
    let (status, _, errors) = client.finish();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("the peer has disconnected"), "{errors}");
}

#[test]
fn nobody_listens() {
    let _server = Running::server("ucmatose -b 127.19.38.1");
    for command in ["ucmatose", "client"] {
        let output = run(&format!("{command} -s 127.19.38.1 -p 7500 -b 127.19.38.2"));
        assert_eq!(output.status.code(), Some(1));
        let errors = text(&output.stderr);
        assert!(errors.contains("127.19.38.1:7500 refused"), "{errors}");
    }
}

#[test]
fn wrong_options_are_refused() {
    refused("ucmatose --both -c 0", "0 is not in 1..");
    refused("ucmatose --both -P ib", "[possible values: tcp]");
    refused("ucmatose --both -s 127.0.0.1", "cannot be used with");
    refused("ucmatose -f gid", "[possible values: name, ip, ipv6]");
    refused("client -p 65536", "65536 is not in 0..=65535");
    refused("server extra", "unexpected argument");
}
