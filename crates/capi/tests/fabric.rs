//! Programs of the distribution, as they are, on hosts of a fabric that runs in real time: switches
//! between them, links that lose packets, and links that fail and are repaired.

use crate::common;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

/// How often to look for something that takes milliseconds on an idle machine.
const LOOKS: usize = 2000;

/// A fabric of this test.
struct Fabric {
    folder: PathBuf,
}

impl Fabric {
    /// A parking lot: two switches with two hosts each.
    fn up(name: &str, rate: &str, delay: &str) -> Self {
        let fabric = Self { folder: common::scratch(name) };
        let text = format!(
            "[topology]\nkind = \"parking-lot\"\nswitches = 2\nhosts = 2\nrate = \"{rate}\"\n\
             delay = \"{delay}\"\n"
        );
        fs::write(fabric.folder.join("lot.toml"), text).expect("a file");
        fabric.done(&["up", "lot.toml"]);
        fabric
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "100"]).arg(common::command()).arg("fabric").args(args);
        command.env("FEROCE_LIB", common::library()).env("XDG_RUNTIME_DIR", &self.folder);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn done(&self, args: &[&str]) -> String {
        end(self.command(args).spawn().expect("`timeout` is there")).0
    }

    fn start(&self, host: &str, program: &str) -> Child {
        let words: Vec<&str> = program.split_whitespace().collect();
        let args = [&["run", "-n", host, "--"], &*words].concat();
        self.command(&args).spawn().expect("`timeout` is there")
    }

    /// The address of a host.
    fn address(&self, host: &str) -> String {
        let status = self.done(&["status"]);
        let line = status.lines().find(|line| line.starts_with(&format!("{host} ")));
        let address = line.and_then(|line| line.split_whitespace().nth(1));
        address.expect("an address").to_owned()
    }

    /// Packets that have reached hosts.
    fn delivered(&self) -> u64 {
        let status = self.done(&["status"]);
        let line = status.lines().find(|line| line.contains("packets delivered"));
        let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        count.expect("a number")
    }

    /// Runs a server on `h0` and its client on `h3`, whose last argument is the server's address,
    /// and returns what the client said.
    fn pair(&self, server: &str, client: &str, is_ready: impl Fn() -> bool) -> String {
        let (server, client) = self.begin(server, client, is_ready);
        let (said, _) = end(client);
        end(server);
        said
    }

    /// The same, with a link between the two that fails and is repaired while they work.
    fn pair_while_a_link_fails(
        &self,
        server: &str,
        client: &str,
        is_ready: impl Fn() -> bool,
    ) -> String {
        let (before, lost) = (self.delivered(), self.lost_where_a_link_is_down());
        let (server, client) = self.begin(server, client, is_ready);
        // In the middle of it: they exchange some thousands.
        wait_until(|| self.delivered() > before + 320);
        self.done(&["link", "s0:2", "down"]);
        let meanwhile = self.delivered();
        wait_until(|| self.lost_where_a_link_is_down() > lost);
        self.done(&["link", "s0:2", "up"]);
        let (said, _) = end(client);
        end(server);
        assert!(self.delivered() > meanwhile + 320, "the link failed too late");
        said
    }

    /// Packets that switches dropped because a link was down.
    fn lost_where_a_link_is_down(&self) -> u64 {
        let status = self.done(&["status"]);
        let count = |what: &str| -> u64 {
            let before = status.split_once(what).map(|(before, _)| before);
            let word = before.and_then(|text| text.split_whitespace().next_back());
            word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{status}"))
        };
        count(" link down") + count(" no route")
    }

    /// The part of the link to `h0` that the simulator gives to a flow of `h1`, beside one of `h3`.
    fn predicted_share(&self) -> f64 {
        const BYTES: f64 = 600e6;
        let flow = |from: u32| format!("\n[[flow]]\nfrom = {from}\nto = 0\nbytes = {BYTES}\n");
        let lot = fs::read_to_string(self.folder.join("lot.toml")).expect("a file");
        let scenario = self.folder.join("flows.toml");
        fs::write(&scenario, lot + &flow(1) + &flow(3)).expect("a file");
        let out = self.folder.join("simulated");
        let mut sim = Command::new(common::command());
        sim.args(["sim", "run", "-o"]).arg(&out).arg(&scenario).stdout(Stdio::null());
        assert!(sim.status().expect("it starts").success());
        let flows = fs::read_to_string(out.join("flows.csv")).expect("a file");
        let column = |line: &str, n| line.split(',').nth(n)?.parse::<f64>().ok();
        let ends: Vec<f64> = flows.lines().filter_map(|line| column(line, 6)).collect();
        let [first, second] = ends[..] else { panic!("{flows}") };
        // The second flow has the link for itself once the first has ended.
        let alone = column(flows.lines().last().unwrap_or_default(), 7).expect("a number");
        let rest = BYTES * (second - first) / alone;
        BYTES / (2.0 * BYTES - rest)
    }

    /// Whether a process on `h0` listens for a service.
    fn is_served(&self) -> bool {
        let listens = |line: &str| line.starts_with("h0 ") && line.ends_with(" 1        1");
        self.done(&["status"]).lines().any(listens)
    }

    fn begin(&self, server: &str, client: &str, is_ready: impl Fn() -> bool) -> (Child, Child) {
        let address = self.address("h0");
        let server = self.start("h0", &server.replace("ADDRESS", &address));
        wait_until(is_ready);
        (server, self.start("h3", &client.replace("ADDRESS", &address)))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}

fn wait_until(is_ready: impl Fn() -> bool) {
    let came = (0..LOOKS).any(|_| {
        park_timeout(Duration::from_millis(10));
        is_ready()
    });
    assert!(came, "it takes too long");
}

/// What a program that must succeed printed.
fn end(child: Child) -> (String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ran");
    let [said, errors] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{status}\n{said}{errors}");
    (said, errors)
}

/// Kills a program behind `timeout`, which cannot say goodbye.
fn kill(mut child: Child) {
    let timeout = child.id();
    let children = fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children"));
    let children = children.expect("it runs");
    let status = Command::new("kill").arg("-KILL").args(children.split_whitespace()).status();
    assert!(status.is_ok_and(|status| status.success()), "{children}");
    child.wait().expect("it ends");
}

/// Whether a TCP port is listened on.
fn is_listened_on(port: u16) -> bool {
    let local = format!(":{port:04X} ");
    ["tcp", "tcp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/net/{family}")).unwrap_or_default();
        table.lines().any(|line| line.contains(&local) && line.contains(" 0A "))
    })
}

fn is_installed(program: &str, package: &str) -> bool {
    common::output(Command::new(program).arg("--version"), package).is_some()
}

fn has_rping() -> bool {
    common::output(Command::new("rping").arg("-h"), "rdmacm-utils").is_some()
}

#[test]
fn perftest_rping_and_ucx_run_over_links_that_lose_packets() {
    let fabric = Fabric::up("fabric-loss", "200M", "50us");
    fabric.done(&["link", "s0:2", "loss", "1%"]);
    let has_perftest = is_installed("ib_write_bw", "perftest");
    if has_perftest {
        let run = "ib_write_bw -F -n 50 -s 65536 -p 18611";
        let said = fabric.pair(run, &format!("{run} ADDRESS"), || is_listened_on(18611));
        assert!(said.contains("65536      50 "), "{said}");
    }
    if is_installed("ucx_perftest", "ucx-utils") {
        let run = "env UCX_TLS=rc_v ucx_perftest -p 18612 -t tag_bw -s 8192 -n 100 -w 1";
        let said = fabric.pair(run, &format!("{run} ADDRESS"), || is_listened_on(18612));
        assert!(said.contains("Final: "), "{said}");
    }
    if has_rping() {
        let server = "rping -s -a ADDRESS -C 20 -S 4096";
        let client = "rping -c -a ADDRESS -C 20 -S 4096 -v";
        let said = fabric.pair(server, client, || fabric.is_served());
        assert_eq!(said.matches("ping data").count(), 20, "{said}");
    }
    let status = fabric.done(&["status"]);
    assert!(!has_perftest || !status.contains(" 0 loss,"), "nothing was lost: {status}");
}

#[test]
fn perftest_rping_and_ucx_survive_a_link_that_fails_and_is_repaired() {
    let fabric = Fabric::up("fabric-down", "100M", "50us");
    if is_installed("ib_write_bw", "perftest") {
        let run = "ib_write_bw -F -n 200 -s 65536 -u 18 -p 18613";
        let ready = || is_listened_on(18613);
        let said = fabric.pair_while_a_link_fails(run, &format!("{run} ADDRESS"), ready);
        assert!(said.contains("65536      200 "), "{said}");
    }
    if is_installed("ucx_perftest", "ucx-utils") {
        let run = "env UCX_TLS=rc_v ucx_perftest -p 18617 -t tag_bw -s 8192 -n 1500 -w 1";
        let ready = || is_listened_on(18617);
        let said = fabric.pair_while_a_link_fails(run, &format!("{run} ADDRESS"), ready);
        assert!(said.contains("Final: "), "{said}");
    }
    if has_rping() {
        // The client compares what comes back, and fails unless all of it does.
        let (server, client) = ("rping -s -a ADDRESS -C 500", "rping -c -a ADDRESS -C 500 -V");
        let [server, client] = [server, client].map(|program| format!("{program} -S 8192"));
        fabric.pair_while_a_link_fails(&server, &client, || fabric.is_served());
    }
}

/// Ratios of what programs measure to what the model says. Other programs of the machine disturb
/// it, so it runs on request.
#[test]
fn mckey_gets_what_is_sent_to_its_group_through_the_switches() {
    let has_mckey = common::output(Command::new("mckey").arg("-h"), "rdmacm-utils").is_some();
    if !has_mckey {
        return;
    }
    let fabric = Fabric::up("fabric-mckey", "1G", "50us");
    let feroce = common::command().display();
    let run = |host: &str, command: &str| {
        fabric.start(host, &format!("{command} -m 239.1.2.3 -b {}", fabric.address(host)))
    };
    // Two programs of one host, and hosts behind both switches.
    let receivers = [
        run("h1", "mckey"),
        run("h2", "mckey"),
        run("h3", "mckey"),
        run("h3", &format!("{feroce} mckey")),
    ];
    let has = |line: &str| fabric.done(&["status"]).lines().any(|other| other.ends_with(line));
    wait_until(|| has(": 4 processes on h1, h2, h3"));
    let (said, _) = end(run("h0", "mckey -s"));
    assert!(said.contains("data transfers complete"), "{said}");
    for receiver in receivers {
        let (said, _) = end(receiver);
        assert!(said.contains("data transfers complete"), "{said}");
    }
    // What was sent once was copied by the switches: ten messages to four programs on three hosts.
    let status = fabric.done(&["status"]);
    assert!(!status.contains("group"), "a program has left it: {status}");
    let packets = |port: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(port)).expect("a port");
        line.split_whitespace().nth(6).and_then(|word| word.parse().ok()).expect("a number")
    };
    let ports = ["h0:0", "s0:1", "s0:2", "s1:0", "s1:1"].map(packets);
    assert_eq!(ports, [10; 5], "{status}");
    assert_eq!(packets("s0:0"), 0, "the sender does not get its own packets");
    // A program that is killed is no member any more, and the others still are.
    let killed = run("h1", "mckey");
    let other = run("h3", "mckey");
    wait_until(|| has(": 2 processes on h1, h3"));
    kill(killed);
    wait_until(|| has(": 1 process on h3"));
    kill(other);
}

#[test]
fn programs_measure_the_delays_and_the_shares_of_the_model() {
    if std::env::var_os("FEROCE_TEST_MEASURE").is_none() {
        return eprintln!("SKIPPED: it measures, on an idle machine; `cargo xtask fabric` runs it");
    }
    if !is_installed("ib_write_lat", "perftest") {
        return;
    }
    let column = |said: &str, bytes: &str, n: usize| -> f64 {
        let line = said.lines().find(|line| line.trim_start().starts_with(bytes));
        let word = line.and_then(|line| line.split_whitespace().nth(n));
        word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    let fabric = Fabric::up("fabric-measure", "10G", "50us");
    let run = "ib_write_lat -F -n 1000 -s 2 -p 18614";
    let said = fabric.pair(run, &format!("{run} ADDRESS"), || is_listened_on(18614));
    // Three links of 50 us, and 102 bytes at 10 Gb/s on each.
    let ratio = column(&said, "2 ", 4) / (3.0 * (50.0 + 0.0816));
    assert!((0.9..1.1).contains(&ratio), "{ratio}: {said}");
    // Two senders at the two switches share the link to `h0`.
    let predicted = fabric.predicted_share();
    let run = |port: u16| format!("ib_write_bw -F -D 4 -s 65536 -p {port} --report_gbits");
    let address = fabric.address("h0");
    let servers = [18615, 18616].map(|port| {
        let server = fabric.start("h0", &run(port));
        wait_until(|| is_listened_on(port));
        server
    });
    let clients = [("h1", 18615), ("h3", 18616)]
        .map(|(host, port)| fabric.start(host, &format!("{} {address}", run(port))));
    let shares = clients.map(|client| column(&end(client).0, "65536 ", 3));
    let _ = servers.map(end);
    // 4096 of the 4178 bytes of a packet on the link are payload.
    let all = shares.iter().sum::<f64>() / (10.0 * 4096.0 / 4178.0);
    assert!((0.95..1.05).contains(&all), "{shares:?}");
    for (share, predicted) in shares.iter().zip([predicted, 1.0 - predicted]) {
        let ratio = share / shares.iter().sum::<f64>() / predicted;
        assert!((0.95..1.05).contains(&ratio), "{shares:?} instead of {predicted}");
    }
    assert!(fabric.done(&["status"]).contains("in real time"), "the machine is too slow");
}
