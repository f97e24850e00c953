//! Debian's opensm on our subnet: it must write the same files as on the networks that were
//! recorded, run with other routing engines, and route around a link that breaks.
//!
//! Usage: `cargo run -p feroce-subnet --example opensm` (needs opensm and ibsim-utils)
//!
//! The program stands in for ibsim: it speaks the protocol of `libumad2sim.so`, which is preloaded
//! into opensm. It is no test, because that library loses wake-ups and sometimes crashes.

#![expect(clippy::disallowed_methods, reason = "programs run in real time")]

mod simulator;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process, thread};

use feroce_subnet::{Forward, PortRef};
use feroce_wire::Lid;
use simulator::Simulator;

const OPENSM: &str = "/usr/sbin/opensm";
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// The file that opensm writes last.
const NEIGHBORS: &str = "neighbors";

/// A program, which ends with this one.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A subnet that opensm manages.
struct Session {
    simulator: Simulator,
    folder: PathBuf,
    _opensm: Program,
}

impl Drop for Session {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A program on a host of the subnet.
fn command(program: &str, host: &str, simulator: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .env("SIM_HOST", host)
        .env("IBSIM_SOCKNAME", simulator)
        .env("OSM_TMP_DIR", folder)
        .env("OSM_CACHE_DIR", folder)
        .env("LD_PRELOAD", PRELOAD)
        .stdin(Stdio::null());
    command
}

impl Session {
    /// Runs opensm on a network until it has brought it up.
    fn start(test: &str, net: &str, options: &[&str]) -> Self {
        let folder = env::temp_dir().join(format!("feroce-opensm-{}-{test}", process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let name = format!("feroce-{}-{test}", process::id());
        let mut simulator = Simulator::new(&name, net);
        let log = folder.join("opensm.log");
        let child = command(OPENSM, "Host1", &name, &folder)
            .args(options)
            .args(["-d", "2", "-D", "0x43", "-f"])
            .arg(&log)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut opensm = Program(child.expect("opensm: apt-get install opensm ibsim-utils"));
        // The neighbors are written last, in one step, after the message.
        let has = |file: &str, text: &str| {
            fs::read_to_string(folder.join(file)).is_ok_and(|whole| whole.contains(text))
        };
        simulator.serve_until(|_| {
            let status = opensm.0.try_wait().expect("a child");
            assert_eq!(status, None, "{}", fs::read_to_string(&log).unwrap_or_default());
            has("opensm.log", "SUBNET UP") && has(NEIGHBORS, "\n")
        });
        Self { simulator, folder, _opensm: opensm }
    }
}

fn compare(test: &str, net: &str, options: &[&str]) {
    let session = Session::start(test, net, options);
    let files = files(test);
    assert_eq!(files.len(), 6);
    for (name, expected) in files {
        let ours = fs::read_to_string(session.folder.join(&name)).expect("a file");
        match name == NEIGHBORS {
            true => assert_eq!(sorted(&ours), sorted(&expected), "{name}"),
            false => assert_eq!(ours, expected, "{name}"),
        }
    }
    println!("{test}: six files as recorded");
}

/// What was recorded: names and contents.
fn files(folder: &str) -> Vec<(String, String)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/opensm/recorded").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("a file"))
        })
        .collect();
    files.sort();
    files
}

/// The same lines in order. opensm writes its neighbors in the order of a hash table, whose chains
/// follow the order in which nodes happened to answer.
fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn main() {
    let (tree, ring) =
        (include_str!("../../tests/nets/ft4.net"), include_str!("../../tests/nets/ring6.net"));
    compare("ft4", tree, &[]);
    compare("ft4-lmc1", tree, &["-l", "1"]);
    compare("ring6-minhop", ring, &[]);
    compare("ring6-lash", ring, &["-R", "lash", "-Q"]);
    for engine in ["updn", "dnup", "ftree", "dor", "sssp", "dfsssp"] {
        run_engine(engine, tree);
    }
    break_link(tree);
}

/// Another routing engine leads from every switch to every host.
fn run_engine(engine: &str, net: &str) {
    let session = Session::start(engine, net, &["-R", engine]);
    for switch in session.simulator.subnet.nodes().iter().filter_map(|node| node.switch()) {
        for lid in [1, 5, 7, 8] {
            let way = switch.forward(Lid(lid), 0);
            assert!(matches!(way, Ok(Forward::One(1..))), "{engine}: {lid}: {way:?}");
        }
    }
    println!("{engine}: every switch has a way to every host");
}

/// opensm hears of a link that breaks, routes around it and represses the traps.
fn break_link(net: &str) {
    let mut session = Session::start("broken", net, &[]);
    let simulator = &mut session.simulator;
    let node = |simulator: &Simulator, name: &str| {
        let nodes = simulator.subnet.nodes();
        nodes.iter().position(|node| node.name() == name).expect("a node")
    };
    let (leaf, spine) = (node(simulator, "Leaf1"), node(simulator, "Spine1"));
    // Both hosts of Leaf2 by way of Spine2, where one of them went by way of Spine1.
    let ways = |simulator: &Simulator| {
        let switch = simulator.subnet.nodes()[leaf].switch().expect("a switch");
        [7, 8].map(|lid| switch.forward(Lid(lid), 1))
    };
    assert_eq!(ways(simulator), [Ok(Forward::One(7)), Ok(Forward::One(8))]);
    let (now, link) = (simulator.now(), PortRef { node: spine, port: 2 });
    simulator.subnet.set_link(now, link, false);
    simulator.hand_out();
    let around = [Ok(Forward::One(8)), Ok(Forward::One(8))];
    simulator.serve_until(|simulator| ways(simulator) == around);
    // opensm represses the traps: none will be sent again.
    simulator.serve_until(|simulator| simulator.subnet.poll_timeout().is_none());
    println!("broken link: routed around, traps repressed");
}
