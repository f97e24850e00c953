//! One fabric in two processes, joined by TCP: opensm on a host of one part manages both, and
//! programs of one part talk to those of the other. A relay stands for the network between the
//! machines.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::{fs, io};

use serde_json::Value;

use super::connections::{TCP, serve};
use super::fabric::{Fabric, installed, wait_until};
use super::verbs::{has, is_listened_on, program, said, sent};

/// A fat tree whose leaves are on two machines.
const NET: &str = r#"
part=east
Switch 8 "Leaf1"
[1] "Host1"[1]
[2] "Host2"[1]
[7] "Spine1"[1]
[8] "Spine2"[1]
Switch 8 "Spine1"
Hca 1 "Host1"
Hca 1 "Host2"
part=west
Switch 8 "Leaf2"
[1] "Host3"[1]
[2] "Host4"[1]
[7] "Spine1"[2]
[8] "Spine2"[2]
Switch 8 "Spine2"
Hca 1 "Host3"
Hca 1 "Host4"
"#;

/// A network between two machines, which may fail.
struct Relay {
    at: SocketAddr,
    /// The connections that pass, or none while the network is down.
    passing: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Relay {
    #[expect(clippy::disallowed_methods, reason = "what passes has threads of its own")]
    fn new(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its address");
        let passing = Arc::new(Mutex::new(Some(Vec::new())));
        let network = Arc::clone(&passing);
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let Some(passing) = &mut *network.lock().expect("whole") else { continue };
                let to = TcpStream::connect(&to).expect("the other part listens");
                [&from, &to].iter().for_each(|end| end.set_nodelay(true).expect("a socket"));
                for (from, to) in [(&from, &to), (&to, &from)] {
                    let [mut from, mut to] = [from, to].map(|end| end.try_clone().expect("a copy"));
                    thread::spawn(move || {
                        // An end that goes takes the other one along.
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                passing.extend([from, to]);
            }
        });
        Self { at, passing }
    }

    fn fail(&self) {
        let passing = self.passing.lock().expect("whole").take();
        for stream in passing.expect("it passes") {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn repair(&self) {
        *self.passing.lock().expect("whole") = Some(Vec::new());
    }
}

fn up(name: &str, part: &str, options: &[&str]) -> Fabric {
    Fabric::up_with(name, NET, &[&["--part", part], options].concat())
}

/// What a fabric says of a part.
fn part(fabric: &Fabric, name: &str) -> Value {
    let status: Value = serde_json::from_str(&fabric.done(&["status", "--json"])).expect("JSON");
    let parts = status["parts"].as_array().expect("parts");
    parts.iter().find(|part| part["name"] == name).expect("the part").clone()
}

fn listens(fabric: &Fabric, name: &str) -> String {
    part(fabric, name)["address"].as_str().expect("an address").to_owned()
}

fn is_joined(fabric: &Fabric, name: &str) -> bool {
    part(fabric, name)["is_joined"] == true
}

/// Both parts, joined over a relay.
fn both(test: &str) -> (Fabric, Fabric, Relay) {
    let east = up(&format!("{test}-east"), "east", &["--listen", "127.0.0.1:0"]);
    let relay = Relay::new(listens(&east, "east"));
    let west = up(&format!("{test}-west"), "west", &["--join", &relay.at.to_string()]);
    wait_until(|| is_joined(&east, "west") && is_joined(&west, "east"));
    (east, west, relay)
}

#[test]
fn programs_reach_each_other_over_two_parts() {
    if !has("ibv_devinfo", "ibverbs-utils") || !has("rping", "rdmacm-utils") {
        return;
    }
    let (east, west, relay) = both("ib-parts");
    let _opensm = east.opensm("Host1", "");
    // opensm has found all hosts, whichever part they are in.
    let (hosts, status) = west.run("Host4", "ibhosts");
    assert_eq!((status, hosts.lines().count()), (0, 4), "{hosts}");
    let (way, status) = east.run("Host1", "ibtracert -G 0x100001 0x100007");
    assert!(status == 0 && way.contains("Leaf2") && way.contains("Host4"), "{way}");

    for (words, port) in [("ibv_rc_pingpong", 18690), ("ibv_ud_pingpong -s 1024", 18691)] {
        let words = format!("{words} -n 200 -p {port}");
        let server = program(&west, "Host4", &words).spawn().expect("it starts");
        wait_until(|| is_listened_on(port));
        let client = program(&east, "Host1", &format!("{words} 127.0.0.1")).output();
        assert!(said(client.expect("it ran")).contains("200 iters"));
        said(server.wait_with_output().expect("it ran"));
    }
    let server = serve(&west, "Host4", "rping -s -C 5", TCP + 7174);
    let client = program(&east, "Host1", "rping -c -C 5 -v -a 127.77.0.4").output();
    assert!(said(client.expect("it ran")).contains("ping data: rdma-ping-4"));
    said(server.wait_with_output().expect("it ran"));
    // More than what fits all buffers, so that credits come back over the connection.
    let words = "ib_write_bw -s 65536 -n 100 -p 18692";
    let server = program(&west, "Host4", words).spawn().expect("it starts");
    wait_until(|| is_listened_on(18692));
    said(program(&east, "Host1", &format!("{words} 127.0.0.1")).output().expect("it ran"));
    said(server.wait_with_output().expect("it ran"));
    assert!(sent(&east, "Leaf1:8") + sent(&east, "Spine1:2") > 3200);

    // The network fails: the links between the parts go down, and opensm hears of it.
    relay.fail();
    wait_until(|| !is_joined(&east, "west") && !is_joined(&west, "east"));
    assert!(east.line("Leaf1:8").contains(" down "), "{}", east.line("Leaf1:8"));
    let log = east.folder.join("Host1/opensm.log");
    let heard = || fs::read_to_string(&log).expect("a log").matches("num:128").count();
    wait_until(|| heard() > 0);
    wait_until(|| east.run("Host2", "ibhosts").0.lines().count() == 2);
    let failure = || part(&west, "east")["failure"].as_str().map(str::to_owned);
    wait_until(|| failure().is_some_and(|why| why.contains("connection ends")));
    relay.repair();
    wait_until(|| is_joined(&east, "west"));
    wait_until(|| east.line("Leaf1:8").contains(" active "));
    wait_until(|| east.line("Spine1:2").contains(" active "));
    let words = "ibv_rc_pingpong -n 200 -p 18693";
    let server = program(&west, "Host4", words).spawn().expect("it starts");
    wait_until(|| is_listened_on(18693));
    said(program(&east, "Host1", &format!("{words} 127.0.0.1")).output().expect("it ran"));
    said(server.wait_with_output().expect("it ran"));
}

#[test]
fn an_end_that_is_no_part_of_the_fabric_is_refused() {
    let east = up("ib-no-part-east", "east", &["--listen", "127.0.0.1:0"]);
    let at = listens(&east, "east");
    let failure = |fabric: &Fabric, name: &str| {
        wait_until(|| part(fabric, name)["failure"].is_string());
        part(fabric, name)["failure"].as_str().expect("text").to_owned()
    };
    // Something else connects: it hears a greeting, and the connection is closed.
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0, 0, 0, 1, 7], &[0, 0, 0, 0], &[0xff; 64]] {
        let mut stream = TcpStream::connect(&at).expect("it listens");
        stream.write_all(bytes).expect("it reads");
        let mut greeting = Vec::new();
        // What was not read is no orderly end.
        let _ = stream.read_to_end(&mut greeting);
        assert!(greeting.windows(6).any(|bytes| bytes == b"feroce"), "{greeting:?}");
    }
    assert!(failure(&east, "west").contains("no part of a fabric"), "{}", failure(&east, "west"));
    let options = ["--part", "west", "--join", &at];
    let other = Fabric::up_with("ib-no-part-net", &NET.replace("[2] \"Host2\"[1]\n", ""), &options);
    let said = failure(&other, "east");
    assert!(said.contains("topologies differ"), "{said}");
    let again = up("ib-no-part-east2", "east", &["--join", &at]);
    let said = failure(&again, "west");
    assert!(said.contains("both ends are part east"), "{said}");
    let options = ["--part", "west", "--join", &at, "--addresses", "127.90"];
    let other = Fabric::up_with("ib-no-part-addresses", NET, &options);
    let said = failure(&other, "east");
    assert!(said.contains("--addresses"), "{said}");
    // Those that fit are joined for all that.
    let west = up("ib-no-part-west", "west", &["--join", &at]);
    wait_until(|| is_joined(&east, "west") && is_joined(&west, "east"));
    let third = up("ib-no-part-west2", "west", &["--join", &at]);
    let said = failure(&third, "east");
    assert!(said.contains("part west is joined already"), "{said}");
    assert!(is_joined(&east, "west"));
}

#[test]
fn parts_are_named_and_belong_to_processes() {
    let fabric = Fabric::new("ib-part-options");
    let write = |text: &str| fs::write(fabric.folder.join("a.net"), text).expect("a file");
    write(NET);
    for (options, why) in [
        (&[][..], "--part with one of east, west"),
        (&["--part", "east"], "--listen, or --join"),
        (&["--part", "north", "--listen", "127.0.0.1:0"], "no part north: east, west"),
        (&["--part", "east", "--listen", "127.0.0.1:0", "--sm=Host3"], "no host Host3"),
        (&["--listen", "127.0.0.1:0"], "--part"),
    ] {
        let (code, said) = fabric.refused(&[&["up"], options, &["a.net"]].concat());
        assert!(code == Some(2) && said.contains(why), "{said}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("its address").to_string();
    let (_, said) = fabric.refused(&["up", "--part", "east", "--listen", &at, "a.net"]);
    assert!(said.contains(&format!("cannot listen at {at}")), "{said}");
    write("Hca 1 \"Host1\"\npart=east\n");
    let (_, said) = fabric.refused(&["up", "--part", "east", "--listen", "127.0.0.1:0", "a.net"]);
    assert!(said.contains("line 2: the nodes above are in no part"), "{said}");
    write(NET);
    fabric.done(&["up", "--part", "east", "--listen", "127.0.0.1:0", "a.net"]);
    let (code, said) = fabric.refused(&["run", "-n", "Host4", "--", "true"]);
    assert!(code == Some(2) && said.contains("Host4 is in part west"), "{said}");
    let (code, said) = fabric.refused(&["link", "Leaf2:7", "down"]);
    assert!(code == Some(2) && said.contains("Leaf2 is in part west"), "{said}");
    let status = fabric.done(&["status"]);
    assert!(status.contains("part west: not joined"), "{status}");
    assert!(!status.contains("Host4"), "{status}");
    if installed("ibstat").is_some() {
        let (said, status) = fabric.run("Host1", "ibstat -s");
        assert_eq!(status, 0, "{said}");
    }
}
