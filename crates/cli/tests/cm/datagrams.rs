//! `feroce udaddy` and `feroce mckey`.

use nix::sys::signal::Signal;

use super::netns::{ip, with_cable};
use super::{CABLES, Running, across, both, refused, run, text};

#[test]
fn datagrams_are_answered() {
    for (net, options, connections, datagrams) in
        [(40, "", 1, 10), (41, "-c 5 -C 20 -S 4096", 5, 100), (42, "-c 2 -C 0", 2, 0)]
    {
        let report = both(net, &format!("udaddy {options}"));
        for end in ["server", "client"] {
            let end = &report[end];
            assert_eq!(end["connections"], connections, "{options}: {report}");
            assert_eq!(end["received"], datagrams, "{options}: {report}");
            assert_eq!(end["sent"], datagrams, "{options}: {report}");
        }
    }
}

#[test]
fn datagrams_cross_a_cable() {
    with_cable(1500, |cable| {
        for (a, b) in CABLES {
            let (served, called) = across(
                cable,
                &format!("udaddy -c 2 -b {a}"),
                &format!("udaddy -c 2 -t 8 -b {b} -s {a}"),
            );
            for said in [served, called] {
                assert!(said.contains("data transfers complete"), "{said}");
            }
        }
        let output = cable.in_b(|| run("udaddy -S 1025 -b 10.9.0.2 -s 10.9.0.1"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("longer than the MTU of 1024"));
    });
}

#[test]
fn a_service_that_is_not_there() {
    let server = Running::server("udaddy -b 127.19.43.1");
    let output = run("udaddy -s 127.19.43.1 -p 7500 -b 127.19.43.2");
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("127.19.43.1:7500 does not offer the service"), "{errors}");
    // The server received no request, and ends at SIGTERM.
    server.signal(Signal::SIGTERM);
    assert_eq!(server.finish().0, Some(130));
}

#[test]
fn a_group_gets_what_is_sent_to_it() {
    for (net, options) in [(44, ""), (45, "-c 3 -C 5"), (46, "-l")] {
        let report = both(net, &format!("mckey -m 239.19.{net}.1 {options}"));
        let (sent, received) = (&report["sender"]["sent"], &report["receiver"]["received"]);
        assert_ne!(sent, 0, "{report}");
        assert_eq!(sent, received, "{options}: {report}");
    }
}

#[test]
fn groups_span_a_cable() {
    with_cable(1500, |cable| {
        // The namespaces of the cable have no routes for multicast groups; real machines usually
        // have.
        cable.in_a(|| ip("route add 239.0.0.0/8 dev wire"));
        cable.in_b(|| ip("route add 239.0.0.0/8 dev wire"));
        for (group, a, b) in [
            ("239.9.9.9", "-b 10.9.0.1", "-b 10.9.0.2"),
            ("239.9.9.8", "", "-o"),
            ("ff15::9", "-b fd09::1", "-l -b fd09::2"),
        ] {
            let mut member = cable.in_a(|| Running::start(&format!("mckey -m {group} {a}")));
            member.wait_for_output("receiving data transfers");
            let sent = cable.in_b(|| run(&format!("mckey -m {group} -s {b}")));
            let said = text(&sent.stdout);
            assert!(sent.status.success(), "{group}: {said} {}", text(&sent.stderr));
            assert!(said.contains("joined dgid: "), "{said}");
            let (status, said, errors) = member.finish();
            assert_eq!(status, Some(0), "{group}: {said} {errors}");
            assert!(said.contains("data transfers complete"), "{said}");
        }
    });
}

#[test]
fn a_member_can_be_interrupted() {
    let mut member = Running::start("mckey -m 239.19.47.1 -b 127.19.47.1");
    member.wait_for_output("receiving data transfers");
    member.signal(Signal::SIGINT);
    let (status, said, _) = member.finish();
    assert_eq!(status, Some(130));
    assert!(said.contains("test complete"), "{said}");
}

#[test]
fn wrong_options_are_refused() {
    refused("mckey", "--multicast");
    refused("mckey -m nowhere", "invalid IP address");
    refused("mckey -m 239.1.1.1 --both -s", "cannot be used with");
    refused("udaddy --both -P ipoib", "[possible values: udp]");
    let output = run("mckey -m 127.19.48.9 -b 127.19.48.1");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not a multicast address"));
}
