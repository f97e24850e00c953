//! The output of the commands that show devices, events of an interface that changes, and the
//! completions and manual pages generated from the definition of the command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_feroce");

fn run(args: &str) -> Output {
    Command::new(PROGRAM).args(args.split_whitespace()).output().expect("the program runs")
}

fn stdout(args: &str) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &str) -> Value {
    serde_json::from_str(&stdout(&format!("--json {args}"))).expect("one JSON value")
}

#[test]
fn devices_are_listed_as_ibv_devices_does() {
    let text = stdout("devices");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("    device          \t   node GUID"), "{text}");
    assert!(lines[1].starts_with("    ------          \t----------------"), "{text}");
    assert!(lines[2].starts_with("    feroce0         \t"), "{text}");
    let listed = json("devices");
    assert_eq!(listed.as_array().expect("a list").len(), lines.len() - 2);
    let guid = listed[0]["node_guid"].as_str().expect("text");
    let columns: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(columns[1], guid, "{text}");
    assert_eq!(columns[2], listed[0]["interface"], "{text}");
    assert_eq!(columns[3], "active", "{text}");
    assert!(columns[5..].concat().ends_with("b/s") || columns[5] == "Gb/s", "{text}");
    let gid = listed[0]["gids"][0].as_str().expect("text").trim_start_matches("::ffff:");
    assert!(lines[2].contains(gid), "{text}");
    assert_eq!(guid.len(), 16);
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    for command in ["devices", "demo --fast"] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let mut feroce = Command::new(env!("CARGO_BIN_EXE_feroce"));
        let out = feroce.args(command.split(' ')).stdout(full).output().expect("feroce starts");
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{command}: {text}");
        assert_eq!(
            text.trim_end(),
            "feroce: cannot write the output: No space left on device (os error 28)"
        );
    }
}

#[test]
fn devinfo_has_the_layout_of_ibv_devinfo() {
    let text = stdout("devinfo -d lo");
    for line in [
        "\ttransport:\t\t\tInfiniBand (0)",
        "\tphys_port_cnt:\t\t\t1",
        "\t\tport:\t1",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
        "\t\t\tmax_mtu:\t\t4096 (5)",
        "\t\t\tactive_mtu:\t\t4096 (5)",
        "\t\t\tlink_layer:\t\tEthernet",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} in {text}");
    }
    assert!(!text.contains("GID["), "{text}");
}

#[test]
fn devinfo_verbose_shows_every_gid_with_its_type() {
    let text = stdout("devinfo -v");
    let gids: Vec<&str> = text.lines().filter(|l| l.contains("GID[")).collect();
    assert!(!gids.is_empty());
    let is_typed = |l: &&str| l.ends_with(", RoCE v2") || l.ends_with(", RoCE v1");
    assert!(gids.iter().all(is_typed) && gids[0].ends_with(", RoCE v2"), "{text}");
    assert!(text.contains("\tmax_qp:\t\t\t\t"), "{text}");
    let infos = json("devinfo");
    let count: usize = infos
        .as_array()
        .expect("a list")
        .iter()
        .map(|info| info["ports"][0]["gids"].as_array().expect("a list").len())
        .sum();
    assert_eq!(count, gids.len());
    assert_ne!(infos[0]["vendor_id"], 0);
}

#[test]
fn devinfo_lists_names_and_refuses_unknown_ones() {
    let text = stdout("devinfo -l");
    assert!(text.contains(" found:\n\tferoce0\n"), "{text}");
    let output = run("devinfo -d nonesuch");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("feroce devices"));
}

/// A shell that is root in a network namespace of its own, and ends with the test.
struct Namespace {
    shell: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Namespace {
    /// `None`, with a message, where users may not create namespaces; under CI that is a failure.
    fn new() -> Option<Self> {
        let allowed = Command::new("unshare").args(["-Urn", "ip", "link"]).output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            let why = "`unshare -Urn ip link` fails: namespaces are not allowed here";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let mut shell = Command::new("timeout")
            .args(["--foreground", "90", "unshare", "-Urn", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it ran before");
        let stdin = shell.stdin.take().expect("piped");
        let stdout = BufReader::new(shell.stdout.take().expect("piped"));
        Some(Self { shell, stdin, stdout })
    }

    fn tell(&mut self, command: &str) {
        use std::io::Write as _;
        writeln!(self.stdin, "{command}").expect("the shell listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The programs that the shell started end by themselves.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// GIDs of RoCEv1 need a privilege; where there are none, a line says why.
#[test]
fn gids_of_rocev1_follow_those_of_rocev2() {
    let Some(mut host) = Namespace::new() else { return };
    host.tell("ip link set lo up; ip link add v0 type veth peer name v1");
    host.tell("ip link set v0 addrgenmode none; ip link set v0 up");
    host.tell("ip addr add 10.1.1.1/24 dev v0; ip addr add 10.1.1.2/24 dev v0");
    let mut show = |before: &str, device: &str| {
        host.tell(&format!(
            "{before} {PROGRAM} devinfo -v -d {device} | grep -e GID -e 'RoCE v1:'; echo end"
        ));
        let lines = std::iter::from_fn(|| Some(host.line()).filter(|line| line != "end"));
        lines.map(|line| line.trim().replace('\t', "")).collect::<Vec<_>>()
    };
    let v2 = ["GID[  0]:::ffff:10.1.1.1, RoCE v2", "GID[  1]:::ffff:10.1.1.2, RoCE v2"];
    let v1 = ["GID[  2]:::ffff:10.1.1.1, RoCE v1", "GID[  3]:::ffff:10.1.1.2, RoCE v1"];
    assert_eq!(show("", "v0"), [v2, v1].concat());
    let refused = show("setpriv --bounding-set=-net_raw --inh-caps=-net_raw", "v0");
    assert_eq!(refused[..2], v2);
    assert!(refused[2].starts_with("RoCE v1:no GIDs: CAP_NET_RAW is missing: "), "{refused:?}");
    let off = show("FEROCE_ROCEV1=0", "v0");
    assert_eq!(off[2], "RoCE v1:no GIDs: the setting `rocev1` is off");
    let loopback = show("", "lo");
    let why = "RoCE v1:no GIDs: only the device of an Ethernet interface has them";
    assert_eq!(loopback.last().map(String::as_str), Some(why));
}

#[test]
fn changes_of_an_interface_are_events() {
    let Some(mut host) = Namespace::new() else { return };
    host.tell("ip link add v0 type veth peer name v1");
    host.tell("ip addr add 10.1.1.1/24 dev v0");
    host.tell("ip link set v0 addrgenmode none; ip link set v1 addrgenmode none");
    host.tell("ip link set v1 up; ip link set v0 up");
    host.tell("until ip link show v0 | grep -q LOWER_UP; do sleep 0.1; done");
    // Without the entries of RoCEv1, which come and go with those of RoCEv2.
    host.tell(&format!("FEROCE_ROCEV1=0 timeout 60 {PROGRAM} asyncwatch -v -d v0 -n 9 &"));
    assert!(host.line().starts_with("feroce0: async event FD "));
    let gid = |index: u8, gid: &str| {
        format!("  event_type IBV_EVENT_GID_CHANGE (18), port 1, GID[{index}] {gid}")
    };
    let expect = |host: &mut Namespace, command: &str, lines: &[String]| {
        host.tell(command);
        for line in lines {
            assert_eq!(host.line(), *line, "after {command}");
        }
    };
    let port = |name: &str, code: u8| format!("  event_type {name} ({code}), port 1");
    expect(&mut host, "ip addr add 10.1.1.2/24 dev v0", &[gid(1, "::ffff:10.1.1.2")]);
    expect(&mut host, "ip addr add fd00::2/64 dev v0 nodad", &[gid(2, "fd00::2")]);
    expect(&mut host, "ip addr del 10.1.1.2/24 dev v0", &[gid(1, "::")]);
    expect(&mut host, "ip addr add 10.1.1.3/24 dev v0", &[gid(1, "::ffff:10.1.1.3")]);
    expect(&mut host, "ip link set v1 down", &[port("IBV_EVENT_PORT_ERR", 10)]);
    let active = |mtu: u32| format!("{}, MTU {mtu}", port("IBV_EVENT_PORT_ACTIVE", 9));
    expect(&mut host, "ip link set v1 up", &[active(1024)]);
    expect(&mut host, "ip link set v0 mtu 9000", &[active(4096)]);
    let down = [gid(2, "::"), port("IBV_EVENT_PORT_ERR", 10)];
    expect(&mut host, "ip link set v0 down", &down);
    host.tell("wait; echo end");
    assert_eq!(host.line(), "end");
}

#[test]
fn help_has_examples_for_every_command() {
    let text = stdout("--help");
    let commands = text.lines().skip_while(|l| *l != "Commands:").skip(1);
    let names = commands
        .take_while(|l| !l.is_empty())
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| *name != "help");
    for name in names {
        let help = stdout(&format!("{name} --help"));
        assert!(help.contains("Examples:"), "{name}");
    }
}

#[test]
fn completions_and_pages_cover_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&format!("completions {shell}")).contains("rc-pingpong"), "{shell}");
    }
    assert!(stdout("man").contains(".TH feroce 1"));
    let directory = std::env::temp_dir().join(format!("feroce-man-{}", std::process::id()));
    stdout(&format!("man {}", directory.display()));
    let page = std::fs::read_to_string(directory.join("feroce-rc-pingpong.1"));
    std::fs::remove_dir_all(&directory).expect("we made it");
    assert!(page.expect("a page").contains("rx\\-depth"));
}
