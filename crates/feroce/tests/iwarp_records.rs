//! Captures, traces and faults of devices that speak iWARP.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{Access, Device, QpCap, Remote, SendOp, SendWr, Settings, WcStatus};

/// A directory that is removed in the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("feroce-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(pairs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    settings.set("transport", "iwarp").unwrap();
    pairs.iter().for_each(|(key, value)| settings.set(key, value).unwrap());
    settings
}

fn manager(ip: IpAddr, settings: Settings) -> Manager {
    Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap()
}

fn ip(net: u8, number: u8) -> IpAddr {
    Ipv4Addr::new(127, net, 0, number).into()
}

/// Connects; the first end has accepted.
fn connect(server: &Manager, client: &Manager, at: IpAddr) -> (Connection, Connection) {
    let listener = Listener::bind(server, (at, 0).into()).unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let accepted =
            scope.spawn(|| listener.accept().unwrap().cap(QpCap::new(16, 16)).accept().unwrap());
        let near = Connector::new(client).cap(QpCap::new(16, 16)).connect(to).unwrap();
        (accepted.join().unwrap(), near)
    })
}

/// What tshark says of a capture; nothing if there is no tshark.
fn tshark(file: &Path, options: &[&str]) -> Option<String> {
    let output = match Command::new("tshark").arg("-r").arg(file).args(options).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// One SEND of 5000 bytes, one WRITE, one READ, and the end.
fn talk(mut far: Connection, mut near: Connection) {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (source, target) =
        (near.pd().alloc_mr(5000, rights).unwrap(), far.pd().alloc_mr(5000, rights).unwrap());
    source.write_at(0, &[7; 5000]).unwrap();
    let remote = Remote { addr: target.addr(), rkey: target.rkey() };
    far.post_recv([target.recv(1, 0..5000)]).unwrap();
    for (id, op) in [(1, SendOp::Send), (2, SendOp::Write(remote)), (3, SendOp::Read(remote))] {
        near.post_send([SendWr::new(id, op, source.data(0..5000))]).unwrap();
        assert_eq!(near.send_cq().wait().unwrap().status, WcStatus::Success);
    }
    assert_eq!(far.recv_cq().wait().unwrap().status, WcStatus::Success);
    near.disconnect().unwrap();
    far.wait_disconnected().unwrap();
}

#[test]
fn a_capture_is_a_connection_that_tshark_dissects() {
    let dir = Dir::new("iwarp-pcap");
    for (server_ip, client_ip) in
        [(ip(170, 1), ip(170, 2)), (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into())]
    {
        let file = dir.0.join(format!("client-{}.pcapng", client_ip.is_ipv6()));
        let server = manager(server_ip, settings(&[]));
        let client = manager(client_ip, settings(&[("pcap", file.to_str().unwrap())]));
        let (far, near) = connect(&server, &client, server_ip);
        talk(far, near);
        drop(client);
        let fields = ["-e", "iwarp_rdma.opcode", "-e", "tcp.flags.str", "-e", "iwarp_mpa.req"];
        let all = [&["-T", "fields", "-E", "separator=;"], &fields[..]].concat();
        let Some(said) = tshark(&file, &all) else { return };
        let opcodes: Vec<&str> = said.lines().filter_map(|line| line.split(';').next()).collect();
        // The empty WRITE that begins, SEND, WRITE, READ request and response.
        for opcode in ["0x00", "0x03", "0x01", "0x02"] {
            assert!(opcodes.iter().any(|all| all.contains(opcode)), "{opcode}: {said}");
        }
        let summary = tshark(&file, &["-Y", "iwarp_mpa.req || iwarp_mpa.rep"]).unwrap();
        assert_eq!(summary.lines().count(), 2, "{summary}");
        let bad = "tcp.analysis.flags || iwarp_mpa.bad_length || tcp.checksum.status == \"Bad\" \
                   || ip.checksum.status == \"Bad\" || _ws.malformed";
        let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-Y", bad];
        assert_eq!(tshark(&file, &checks).unwrap(), "");
        let crcs = tshark(&file, &["-V", "-Y", "iwarp_ddp"]).unwrap();
        assert!(crcs.contains("Good CRC32") && !crcs.contains("Bad CRC32"), "{crcs}");
    }
}

#[test]
fn a_trace_has_a_line_for_each_message() {
    let dir = Dir::new("iwarp-trace");
    let file = dir.0.join("trace.txt");
    let server = manager(ip(171, 1), settings(&[("trace", file.to_str().unwrap())]));
    let client = manager(ip(171, 2), settings(&[]));
    let (far, near) = connect(&server, &client, ip(171, 1));
    talk(far, near);
    drop(server);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("# feroce trace of"), "{text}");
    let mut rest = lines[1..].iter();
    for (direction, part) in [
        (" in  127.171.0.2:", "connected"),
        (" in  ", "MPA Request, revision 2, wants CRCs, IRD "),
        (" out 127.171.0.1:", "MPA Reply, revision 2, wants CRCs, IRD "),
        (" in  ", " WRITE, STag 0x00000000 offset 0x0"),
        (" in  ", " SEND, MSN 1, 5000 bytes"),
        (" in  ", " WRITE, STag "),
        (" in  ", " READ Request, MSN 1, len 5000 from STag "),
        (" out ", " READ Response, STag "),
        (" in  ", "connection closed"),
    ] {
        let is_there = rest.any(|line| line.contains(direction) && line.contains(part));
        assert!(is_there, "{direction}{part}: {text}");
    }
}

/// A counter of the link of a manager's only device.
fn counter(manager: &Manager, name: &str) -> u64 {
    let counters = manager.contexts()[0].link_counters();
    counters.iter().find(|(key, _)| *key == name).unwrap().1
}

/// An end reads or writes 1 MiB of the other's, and both find that the connection ends.
fn ends_with(server: &Manager, client: &Manager, at: IpAddr, op: fn(Remote) -> SendOp) {
    let (far, mut near) = connect(server, client, at);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let own = near.pd().alloc_mr(1 << 20, rights).unwrap();
    let other = far.pd().alloc_mr(1 << 20, rights).unwrap();
    let op = op(Remote { addr: other.addr(), rkey: other.rkey() });
    near.post_send([SendWr::new(1, op, own.data(0..1 << 20))]).unwrap();
    near.wait_disconnected().unwrap();
    far.wait_disconnected().unwrap();
}

// The seeds of the next two tests spare the startup frames.

#[test]
fn a_damaged_stream_ends_the_connection() {
    let server = manager(ip(172, 1), settings(&[]));
    // One byte in each 1024 that arrive at the client: those of the READ's response.
    let client = manager(ip(172, 2), settings(&[("fault", "corrupt=100%,seed=3")]));
    ends_with(&server, &client, ip(172, 1), SendOp::Read);
    assert!(counter(&client, "fault_corrupted") > 0);
}

#[test]
fn connections_that_are_cut_or_reset_end_at_both_ends() {
    for (net, fault, name) in
        [(173, "cut=5%,seed=1", "fault_cut"), (174, "reset=5%,seed=1", "fault_reset")]
    {
        let server = manager(ip(net, 1), settings(&[("fault", fault)]));
        let client = manager(ip(net, 2), settings(&[]));
        ends_with(&server, &client, ip(net, 1), SendOp::Write);
        assert_eq!(counter(&server, name), 1);
    }
}

#[test]
fn a_connection_that_breaks_before_it_is_made_is_an_error() {
    let server = manager(ip(177, 1), settings(&[]));
    // The first kibibyte that the client receives has the reply in it.
    let client = manager(ip(177, 2), settings(&[("fault", "reset=100%,seed=2")]));
    let listener = Listener::bind(&server, (ip(177, 1), 0).into()).unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let data = [1; 200];
        scope.spawn(move || {
            let param = feroce::cm::ConnParam { private_data: data.to_vec(), ..Default::default() };
            // The peer may be gone before this end has noticed.
            let _ = listener.accept().unwrap().param(param).cap(QpCap::new(16, 16)).accept();
        });
        let why = Connector::new(&client).cap(QpCap::new(16, 16)).connect(to).unwrap_err();
        assert!(why.to_string().contains("the peer refused"), "{why}");
    });
    assert_eq!(counter(&client, "fault_reset"), 1);
}

#[test]
fn a_slow_path_delivers_every_byte_in_order() {
    let slow = [("fault", "delay=2ms~1ms,rate=400Mbit:64KiB,seed=5")];
    let server = manager(ip(175, 1), settings(&slow));
    let client = manager(ip(175, 2), settings(&slow));
    let (mut far, mut near) = connect(&server, &client, ip(175, 1));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let len = 1 << 20;
    let source = near.pd().alloc_mr(len, rights).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + (i >> 9)) as u8).collect();
    source.write_at(0, &bytes).unwrap();
    let target = far.pd().alloc_mr(len, rights).unwrap();
    far.post_recv([target.recv(1, 0..len)]).unwrap();
    near.post_send([SendWr::new(1, SendOp::Send, source.data(0..len))]).unwrap();
    assert_eq!(far.recv_cq().wait().unwrap().byte_len as usize, len);
    let mut arrived = vec![0; len];
    target.read_at(0, &mut arrived).unwrap();
    assert!(arrived == bytes);
    assert!(counter(&server, "fault_held") > 0);
    drop(near);
    far.wait_disconnected().unwrap();
}

#[test]
fn faults_that_make_no_sense_are_refused() {
    let refused = |pairs: &[(&str, &str)]| {
        let mut all = Settings::default();
        pairs.iter().for_each(|(key, value)| all.set(key, value).unwrap());
        Device::at([ip(176, 1)]).open_with(all).unwrap_err().to_string()
    };
    for fault in ["loss=1%", "dup=1%", "reorder=1%:2"] {
        let why = refused(&[("transport", "iwarp"), ("fault", fault)]);
        assert!(why.contains("use corrupt, delay, rate, cut or reset"), "{why}");
    }
    for fault in ["cut=1%", "reset=1%"] {
        let why = refused(&[("fault", fault)]);
        assert!(why.contains("set `transport` to `iwarp`"), "{why}");
    }
}
