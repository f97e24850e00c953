//! `feroce fabric`: commands to a fabric, what they refuse, and programs of ours on its hosts.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use serde_json::Value;

use super::ports::free_port;

/// A parking lot of two switches and four hosts, slow enough for any machine.
const LOT: &str = "\
[topology]
kind = \"parking-lot\"
switches = 2
hosts = 2
rate = \"50M\"
delay = \"100us\"
";

/// How often to look for something that takes milliseconds on an idle machine.
const LOOKS: usize = 2000;

/// Folders of a test, in which its fabrics are its own.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fabric-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("runtime")).expect("a folder");
        fs::write(folder.join("libferoce.so"), "").expect("a file");
        Self(folder)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
        command.args(args).env("FEROCE_LIB", &self.0).current_dir(&self.0);
        // Paths of sockets are short.
        command.env("XDG_RUNTIME_DIR", self.0.join("runtime"));
        command
    }

    fn feroce(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("it starts")
    }

    /// Runs a command that must succeed, and returns what it printed.
    fn done(&self, args: &[&str]) -> String {
        let output = self.feroce(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail, and returns its exit status and what it said.
    fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.feroce(args);
        assert!(!output.status.success(), "{args:?}");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    }

    fn up(&self, name: &str, topology: &str) -> Fabric<'_> {
        fs::write(self.0.join("topology.toml"), topology).expect("a file");
        self.done(&["fabric", "--name", name, "up", "topology.toml"]);
        Fabric { place: self, name: name.to_owned() }
    }
}

/// A fabric that ends with the test.
struct Fabric<'a> {
    place: &'a Place,
    name: String,
}

impl Fabric<'_> {
    fn done(&self, args: &[&str]) -> String {
        self.place.done(&[&["fabric", "--name", &self.name], args].concat())
    }

    fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        self.place.refused(&[&["fabric", "--name", &self.name], args].concat())
    }

    fn status(&self) -> Value {
        let text = self.place.done(&["--json", "fabric", "--name", &self.name, "status"]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// The processes of every host.
    fn processes(&self) -> Vec<u64> {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("hosts").iter();
        hosts.map(|host| host["processes"].as_u64().expect("a number")).collect()
    }

    /// Starts a program of ours on a host.
    fn start(&self, host: usize, args: &[&str]) -> Child {
        let status = self.status();
        let address = status["hosts"][host]["address"].as_str().expect("an address").to_owned();
        let socket = format!("runtime/feroce-{}/fabric-{}/port", uid(), self.name);
        let mut command = self.place.command(args);
        command.env("FEROCE_FABRIC", self.place.0.join(socket)).env("FEROCE_ADDRESS", address);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// Waits until hosts have so many processes.
    fn wait_for(&self, processes: &[u64]) {
        let looks = (0..LOOKS).any(|_| {
            park_timeout(Duration::from_millis(5));
            self.processes() == processes
        });
        assert!(looks, "{:?} instead of {processes:?}", self.processes());
    }
}

impl Drop for Fabric<'_> {
    fn drop(&mut self) {
        let _ = self.place.feroce(&["fabric", "--name", &self.name, "down"]);
    }
}

fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn end(child: Child) -> String {
    let output = child.wait_with_output().expect("it ran");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn inputs_that_are_wrong_are_refused_with_file_and_line() {
    let place = Place::new("inputs");
    let refuse = |text: &str, what: &str| {
        fs::write(place.0.join("wrong.toml"), text).expect("a file");
        let (code, said) = place.refused(&["fabric", "up", "wrong.toml"]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(what), "{said}");
    };
    refuse("[topology]\nkind = \"star\"\nhosts = 2\nrate = \"1G\"\n", "wrong.toml:1: ");
    refuse(&format!("{LOT}colour = 3\n"), "wrong.toml:7: ");
    refuse(&LOT.replace("50M", "fast"), "wrong.toml:5: ");
    refuse("[topology]\nkind = ", "wrong.toml:2: ");
    let (code, said) = place.refused(&["fabric", "up", "absent.toml"]);
    assert!(code == Some(2) && said.contains("absent.toml"), "{said}");
    let (code, said) = place.refused(&["fabric", "--name", "a/b", "status"]);
    assert!(code == Some(2) && said.contains("letters, digits"), "{said}");
    let (code, said) = place.refused(&["fabric", "status"]);
    assert!(code == Some(1) && said.contains("feroce fabric up"), "{said}");
    let (code, _) = place.refused(&["fabric", "up", "--addresses", "10.1", "wrong.toml"]);
    assert_eq!(code, Some(2));
}

#[test]
fn links_are_changed_by_name_and_what_is_no_link_is_refused() {
    let place = Place::new("links");
    let fabric = place.up("links", LOT);
    let (code, said) = fabric.refused(&["up", "topology.toml"]);
    assert!(code == Some(1) && said.contains("runs already"), "{said}");
    fabric.done(&["link", "s0:2", "loss", "1%"]);
    fabric.done(&["link", "s1:2", "rate", "10M"]);
    fabric.done(&["link", "h0:0", "down"]);
    let port = |name: &str| {
        let status = fabric.status();
        let ports = status["ports"].as_array().expect("ports").clone();
        ports.into_iter().find(|port| port["port"] == name).expect("a port")
    };
    let middle = port("s0:2");
    assert_eq!((&middle["loss"], &middle["peer"]), (&Value::from(0.01), &Value::from("s1:2")));
    assert_eq!(middle["rate_bps"], 10_000_000);
    assert_eq!((&port("s0:0")["is_up"], &port("s0:1")["is_up"]), (&false.into(), &true.into()));
    fabric.done(&["link", "s0:0", "up"]);
    assert_eq!(port("h0:0")["is_up"], true);
    for (args, what) in [
        (["link", "s9:0", "down"].as_slice(), "no port s9:0"),
        (&["link", "s0:7", "down"], "no port s0:7"),
        (&["link", "s0:2", "loss", "often"], "0% to 100%"),
        (&["link", "s0:2", "rate", "0"], "a rate"),
        (&["pcap", "s0", "x.pcapng"], "no port s0"),
        (&["run", "-n", "h7", "--", "true"], "no host h7"),
    ] {
        let (code, said) = fabric.refused(args);
        assert!(code == Some(2) && said.contains(what), "{args:?}: {said}");
    }
}

#[test]
fn programs_of_several_hosts_pass_the_switches_and_leave_nothing_behind() {
    let place = Place::new("programs");
    let fabric = place.up("programs", LOT);
    let address = fabric.status()["hosts"][0]["address"].as_str().expect("text").to_owned();
    let server = fabric.start(0, &["rping", "-s", "-C", "20"]);
    fabric.wait_for(&[1, 0, 0, 0]);
    let capture = place.0.join("middle.pcapng");
    let capture = capture.to_str().expect("text");
    let pcap = place
        .command(&["fabric", "--name", "programs", "pcap", "-c", "20", "s0:2", capture])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    end(fabric.start(3, &["rping", "-c", "-a", &address, "-C", "20", "-V"]));
    end(server);
    assert!(end(pcap).contains("20 packets"));
    let decoded = place.done(&["decode", capture]);
    assert!(decoded.contains("20 RoCE, 0 bad ICRC"), "{decoded}");
    fabric.wait_for(&[0; 4]);
    let status = fabric.status();
    assert!(status["delivered"].as_u64() >= Some(80), "{status}");
    // A program that is killed, and a second one on the same host.
    let mut idle = fabric.start(1, &["rping", "-s", "-p", "7000"]);
    let other = fabric.start(1, &["rping", "-s", "-C", "1"]);
    fabric.wait_for(&[0, 2, 0, 0]);
    idle.kill().and_then(|()| idle.wait()).expect("it is killed");
    fabric.wait_for(&[0, 1, 0, 0]);
    let address = fabric.status()["hosts"][1]["address"].as_str().expect("text").to_owned();
    end(fabric.start(2, &["rping", "-c", "-a", &address, "-C", "1"]));
    end(other);
    fabric.done(&["down"]);
    let runtime = place.0.join(format!("runtime/feroce-{}", uid()));
    assert!(!runtime.join("fabric-programs").exists());
}

#[test]
fn measurements_and_pingpongs_of_hosts_pass_the_switches() {
    let place = Place::new("measured");
    let fabric = place.up("measured", LOT);
    let address = fabric.status()["hosts"][0]["address"].as_str().expect("text").to_owned();
    for (command, said) in [(&["perf", "send", "lat"][..], "p50"), (&["rc-pingpong"], "127.77.")] {
        let before = fabric.status()["delivered"].as_u64().expect("a number");
        let port = free_port().to_string();
        let run = [command, &["-p", &port, "-n", "20"]].concat();
        let mut server = fabric.start(0, &run);
        let ready = (0..LOOKS).any(|_| {
            park_timeout(Duration::from_millis(5));
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.parse().expect("a port"))).is_err()
        });
        assert!(ready, "{command:?}: {:?}", server.try_wait());
        let client = end(fabric.start(3, &[&run[..], &[&address]].concat()));
        assert!(client.contains(said), "{client}");
        end(server);
        let delivered = fabric.status()["delivered"].as_u64().expect("a number") - before;
        assert!(delivered >= 40, "{command:?}: {delivered}");
    }
}

#[test]
fn fabrics_run_side_by_side_and_a_program_hears_of_the_end_of_its_own() {
    let place = Place::new("several");
    let (one, two) = (place.up("one", LOT), place.up("two", LOT));
    let first = |fabric: &Fabric<'_>| fabric.status()["hosts"][0]["address"].to_string();
    assert_ne!(first(&one), first(&two), "programs of both can have the same ports");
    let client = one.start(0, &["rping", "-s", "-C", "1"]);
    one.wait_for(&[1, 0, 0, 0]);
    assert_eq!(two.processes(), [0; 4]);
    one.done(&["down"]);
    two.done(&["link", "s0:0", "loss", "1%"]);
    let mut client = client;
    client.kill().expect("it runs");
    let output = client.wait_with_output().expect("it ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has ended"), "{said}");
    let late = Command::new(env!("CARGO_BIN_EXE_feroce"))
        .args(["rping", "-s"])
        .env("FEROCE_FABRIC", place.0.join("absent"))
        .env("FEROCE_ADDRESS", "127.77.0.1")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&late.stderr);
    assert!(!late.status.success() && said.contains("feroce fabric up"), "{said}");
}

/// Starts `feroce web`, and returns its address without `http://`.
fn web_of(place: &Place) -> (Child, String) {
    let mut command = place.command(&["--json", "web"]);
    let mut web = command.stdout(Stdio::piped()).spawn().expect("feroce starts");
    let mut line = String::new();
    let stdout = web.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let url = serde_json::from_str::<Value>(&line).expect("JSON")["url"].clone();
    let url = url.as_str().expect("an address").strip_prefix("http://").expect("HTTP");
    (web, url.to_owned())
}

#[test]
fn a_host_of_an_infiniband_fabric_has_no_device_beside_its_adapter() {
    let place = Place::new("beside");
    let command = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("FEROCE_SUBNET", place.0.join("none")).env("FEROCE_HOST", "HostA");
        command.output().expect("it starts")
    };
    let both = ["--both", "--address", "127.0.0.1,127.0.0.2"];
    let output = command(&[&["perf", "send", "lat", "-n", "10"], &both[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let what = "this process is HostA of an InfiniBand fabric, which has its adapter and no device";
    assert!(said.contains(what), "{said}");
}

/// Two hosts and a switch, whose links no subnet manager has brought up.
#[test]
fn the_page_draws_an_infiniband_fabric() {
    let place = Place::new("web-ib");
    let topology = "Switch 8 \"Leaf\"\n[1] \"HostA\"[1]\n[2] \"HostB\"[1]\n\
                    Hca 1 \"HostA\"\n[1] \"Leaf\"[1]\nHca 1 \"HostB\"\n[1] \"Leaf\"[2]\n";
    fs::write(place.0.join("two.net"), topology).expect("a file");
    place.done(&["fabric", "--name", "web-ib", "up", "two.net"]);
    let fabric = Fabric { place: &place, name: "web-ib".to_owned() };
    let (mut web, url) = web_of(&place);
    let page = crate::web::dump(&format!("http://{url}"), "fabric-ib");
    web.kill().expect("our child");
    web.wait().expect("our child");
    drop(fabric);
    let Some(page) = page else { return };
    assert!(page.contains("<h2>Fabric web-ib</h2>"), "{page}");
    assert!(page.contains("3 nodes, 0 of 4 ports active"), "{page}");
    assert_eq!(page.matches("class=\"cable down\"").count(), 4, "half a link each:\n{page}");
    for expected in [">HostA</text>", ">Leaf</text>", "LID 0, 127.", "<td>Leaf:2</td>"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}

#[test]
fn the_page_shows_the_fabrics_that_run() {
    let place = Place::new("web");
    let (mut web, url) = web_of(&place);
    let (authority, path) = url.split_once('/').expect("a path");
    let fabrics = || {
        let mut stream = TcpStream::connect(authority).expect("it listens");
        write!(stream, "GET /{path}look.json HTTP/1.1\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str::<Value>(body).expect("JSON")["fabrics"].clone()
    };
    let before = fabrics();
    let fabric = place.up("web", LOT);
    let during = fabrics();
    let port = during[0]["status"]["ports"][0]["port"].as_str().expect("a name");
    fabric.done(&["link", port, "down"]);
    let cut = fabrics();
    let page = crate::web::dump(&format!("http://{url}"), "fabric");
    drop(fabric);
    let after = fabrics();
    web.kill().expect("our child");
    web.wait().expect("our child");
    assert_eq!((&before, &after), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(during[0]["kind"], "ethernet");
    let ports = |seen: &Value| seen[0]["status"]["ports"].as_array().expect("a list").clone();
    assert_eq!(during[0]["status"]["hosts"].as_array().map(Vec::len), Some(4));
    let fields =
        ["port", "peer", "queued", "queue_max", "pauses", "paused_us", "rate_bps", "dropped"];
    assert!(ports(&during).iter().all(|port| fields.iter().all(|key| !port[*key].is_null())));
    let is_up = |ports: Vec<Value>| ports.iter().all(|port| port["is_up"] == true);
    assert!(is_up(ports(&during)) && !is_up(ports(&cut)), "{cut}");
    let Some(page) = page else { return };
    assert!(page.contains("<h2>Fabric web</h2>"), "{page}");
    assert_eq!(page.matches("class=\"cable").count(), ports(&cut).len(), "half a link each");
    assert_eq!(page.matches("class=\"cable down\"").count(), 2, "both ends of one link:\n{page}");
    assert!(page.contains("<th class=\"number\">Dropped</th>"), "{page}");
}
