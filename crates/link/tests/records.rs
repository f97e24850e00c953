//! The layers that record: captures and traces.

use crate::common;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::SendOne as _;
use crate::common::Sent;
use crate::common::{counter, loopback, packets_of, path, receive, send_of, warnings};
use feroce_link::Verified;
use feroce_link::{
    Carrier, Control, Fault, FaultConfig, IcrcPolicy, MemoryLink, Pcap, PcapConfig, Trace,
    TraceFile,
};
use feroce_train::{Ext, Framing, Instant, Path, Train, TrainOps};
use feroce_wire::{Aeth, Frame, Gid, Msn, NakCode, Net, Op, Opcode, Reth, Rkey, Service, Syndrome};
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, Linktype, OptionCode, PcapBlockOwned, PcapError, PcapNGReader};

/// 2026-01-02 03:04:05 UTC.
const EPOCH_NS: u64 = 1_767_323_045_000_000_000;

fn config() -> PcapConfig {
    PcapConfig { interface: "test0".to_owned(), epoch_ns: EPOCH_NS, ..PcapConfig::default() }
}

/// A file of this test that does not exist yet.
fn file(name: &str) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&file);
    file
}

fn at_us(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// A packet of a capture.
#[derive(Debug)]
struct Recorded {
    nanos: u64,
    flags: u32,
    comment: String,
    bytes: Vec<u8>,
    link_type: Linktype,
}

/// Reads a capture; the link type is that of the first interface.
fn read(bytes: &[u8]) -> (Linktype, Vec<Recorded>) {
    let mut reader = PcapNGReader::new(1 << 20, bytes).expect("a capture");
    let (mut link_types, mut packets, mut resolution) = (Vec::new(), Vec::new(), 0);
    loop {
        match reader.next() {
            Ok((used, block)) => {
                let PcapBlockOwned::NG(block) = block else { panic!("not pcapng") };
                match block {
                    Block::SectionHeader(header) => assert_eq!(header.major_version, 1),
                    Block::InterfaceDescription(interface) => {
                        assert_eq!(interface.if_tsresol, 9, "nanoseconds");
                        assert!(!link_types.contains(&interface.linktype), "an interface twice");
                        link_types.push(interface.linktype);
                        resolution = interface.ts_resolution().expect("a resolution");
                    }
                    Block::EnhancedPacket(packet) => {
                        assert_eq!(packet.caplen, packet.origlen);
                        let (seconds, part) = packet.decode_ts(0, resolution);
                        let option = |code| {
                            let found = packet.options.iter().find(|o| o.code == code);
                            found.expect("an option").as_bytes().expect("a value").to_vec()
                        };
                        let flags = option(OptionCode(2)).try_into().expect("four bytes");
                        packets.push(Recorded {
                            nanos: u64::from(seconds) * 1_000_000_000 + u64::from(part),
                            flags: u32::from_le_bytes(flags),
                            comment: String::from_utf8(option(OptionCode(1))).expect("UTF-8"),
                            bytes: packet.data[..packet.caplen as usize].to_vec(),
                            link_type: link_types[packet.if_id as usize],
                        });
                    }
                    other => panic!("unexpected block {other:?}"),
                }
                reader.consume(used);
            }
            Err(PcapError::Eof) => return (link_types[0], packets),
            Err(PcapError::Incomplete(_)) => reader.refill().expect("more"),
            Err(e) => panic!("{e}"),
        }
    }
}

/// A train with one packet of another operation.
fn single(path: Path, op: Op, head: Ext) -> Train {
    let train = send_of(path, 1, 0, 0);
    let ops = TrainOps::all(Opcode::new(Service::Rc, op));
    Train { ops, head, bth: feroce_wire::Bth { ack_req: false, ..train.bth }, ..train }
}

fn nak(path: Path) -> Train {
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: Msn::new(7) };
    single(path, Op::Acknowledge, Ext::NONE.with(|out| aeth.emit(out)))
}

fn read_request(path: Path) -> Train {
    let reth = Reth { va: 0x1000, rkey: Rkey(0x2345), len: 99 };
    single(path, Op::ReadRequest, Ext::NONE.with(|out| reth.emit(out)))
}

/// Sends one way and the other through a link that records, and returns the capture.
fn conversation(name: &str, a: Gid, b: Gid) -> (Vec<u8>, PathBuf) {
    let file = file(name);
    let (near, mut far) = MemoryLink::pair().expect("a pair");
    let mut link = Pcap::create(near, &file, config()).expect("a file");
    let out = Path { traffic_class: 0x68, hop_limit: 9, entropy: 0x123, ..path(a, b) };
    link.send_one(at_us(10), &send_of(out, 3, 256, 5)).expect("sent");
    link.send_one(at_us(11), &read_request(out)).expect("sent");
    far.send_one(at_us(20), &nak(path(b, a))).expect("sent");
    far.send_one(at_us(20), &send_of(path(b, a), 2, 1024, 1024)).expect("sent");
    assert_eq!(receive(&mut link, at_us(30)).len(), 2);
    assert_eq!(receive(&mut far, at_us(30)).len(), 2);
    assert_eq!((counter(&link, "pcap_packets"), counter(&link, "pcap_missed")), (7, 0));
    drop(link);
    (fs::read(&file).expect("written"), file)
}

fn addresses() -> [(Gid, Gid); 2] {
    [(loopback(1), loopback(2)), (common::netns::global(1), common::netns::global(2))]
}

#[test]
fn a_capture_holds_what_is_on_the_network() {
    for (n, (a, b)) in addresses().into_iter().enumerate() {
        let (bytes, _) = conversation(&format!("frames{n}.pcapng"), a, b);
        let (link_type, packets) = read(&bytes);
        assert_eq!((link_type, packets.len()), (Linktype::RAW, 7));
        for (i, packet) in packets.iter().enumerate() {
            let frame = Frame::parse_ip(&packet.bytes).expect("a RoCE packet");
            assert!(frame.icrc_ok(), "packet {i}: wrong ICRC");
            let (flags, us) = match i {
                0..=2 => (2, 10),
                3 => (2, 11),
                _ => (1, 30),
            };
            assert_eq!((packet.flags, packet.nanos), (flags, EPOCH_NS + us * 1000), "packet {i}");
            let id = [0, 1, 2, 0, 0, 0, 1][i];
            match frame.net {
                Net::V4(ip, udp) => {
                    assert_eq!((ip.id, ip.dont_fragment), (id, true), "packet {i}");
                    let out = (ip.dscp, ip.ttl, udp.src_port);
                    assert_eq!(out, if i < 4 { (26, 9, 0xc123) } else { (0, 64, 0xc000) });
                }
                Net::V6(ip, udp) => {
                    let out = (ip.dscp, ip.hop_limit, udp.src_port);
                    assert_eq!(out, if i < 4 { (26, 9, 0xc123) } else { (0, 64, 0xc000) });
                }
                Net::Grh(_) => panic!("not RoCEv2"),
            }
        }
        let sent = packets_of(&send_of(path(a, b), 3, 256, 5));
        assert_eq!(Frame::parse_ip(&packets[2].bytes).expect("a packet").transport, sent[2]);
        let comments: Vec<_> = packets.iter().map(|p| p.comment.as_str()).collect();
        assert_eq!(
            comments,
            [
                "-> 0x0012ab RC SEND First PSN 0x100000, 256 bytes",
                "-> 0x0012ab RC SEND Middle PSN 0x100001, 256 bytes",
                "-> 0x0012ab RC SEND Last PSN 0x100002, asks for ACK, 5 bytes",
                "-> 0x0012ab RC READ Request PSN 0x100000, va 0x1000 rkey 0x00002345 len 99",
                "-> 0x0012ab RC NAK PSN 0x100000, remote access error, MSN 7",
                "-> 0x0012ab RC SEND First PSN 0x100000, 1024 bytes",
                "-> 0x0012ab RC SEND Last PSN 0x100001, asks for ACK, 1024 bytes",
            ]
        );
    }
}

/// What tshark says of the packets of a capture: one line each, fields with tabs between. Nothing
/// where tshark is not installed; fails on CI.
fn tshark(file: &PathBuf, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "tshark does not run: {e}");
            eprintln!("SKIPPED: tshark does not run: {e}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn tshark_understands_a_capture() {
    for (n, (a, b)) in addresses().into_iter().enumerate() {
        let (_, file) = conversation(&format!("tshark{n}.pcapng"), a, b);
        let fields = [
            "frame.time_epoch",
            "frame.packet_flags_direction",
            "frame.interface_name",
            "infiniband.bth.opcode",
            "infiniband.bth.destqp",
            "infiniband.bth.psn",
            "infiniband.aeth.syndrome",
            "_ws.malformed",
        ];
        let Some(lines) = tshark(&file, &fields) else { return };
        let expected = [
            "1767323045.000010000\t2\ttest0\t0\t0x0012ab\t1048576\t\t",
            "1767323045.000010000\t2\ttest0\t1\t0x0012ab\t1048577\t\t",
            "1767323045.000010000\t2\ttest0\t2\t0x0012ab\t1048578\t\t",
            "1767323045.000011000\t2\ttest0\t12\t0x0012ab\t1048576\t\t",
            "1767323045.000030000\t1\ttest0\t17\t0x0012ab\t1048576\t98\t",
            "1767323045.000030000\t1\ttest0\t0\t0x0012ab\t1048576\t\t",
            "1767323045.000030000\t1\ttest0\t2\t0x0012ab\t1048577\t\t",
        ];
        let lines: Vec<_> = lines.iter().map(|line| line.replace("0x00000002", "2")).collect();
        let lines: Vec<_> = lines.iter().map(|line| line.replace("0x00000001", "1")).collect();
        assert_eq!(lines, expected);
        let comments = tshark(&file, &["frame.comment"]).expect("it ran before");
        assert!(comments[4].contains("NAK PSN 0x100000, remote access error"), "{comments:?}");
    }
}

#[test]
fn frames_of_the_first_version_have_an_ethernet_header() {
    let file = file("v1.pcapng");
    let (a, b) = (loopback(1), loopback(2));
    let v1 = |src, dst| Path { framing: Framing::RoceV1, sl: 5, ..path(src, dst) };
    let (near, mut far) = MemoryLink::pair().expect("a pair");
    let mut link = Pcap::create(near, &file, config()).expect("a file");
    link.send_one(at_us(1), &send_of(path(a, b), 1, 64, 64)).expect("sent");
    link.send_one(at_us(2), &send_of(v1(a, b), 2, 64, 64)).expect("sent");
    far.send_one(at_us(3), &send_of(v1(b, a), 3, 64, 64)).expect("sent");
    far.send_one(at_us(3), &send_of(path(b, a), 1, 64, 64)).expect("sent");
    assert_eq!(receive(&mut link, at_us(4)).len(), 2);
    assert_eq!((counter(&link, "pcap_packets"), counter(&link, "pcap_missed")), (7, 0));
    drop(link);
    let (link_type, packets) = read(&fs::read(&file).expect("written"));
    assert_eq!((link_type, packets.len()), (Linktype::RAW, 7));
    let kinds: Vec<bool> =
        packets.iter().map(|packet| packet.link_type == Linktype::ETHERNET).collect();
    assert_eq!(kinds, [false, true, true, true, true, true, false]);
    for packet in &packets[1..6] {
        let frame = Frame::parse_ethernet(&packet.bytes).expect("a RoCE frame");
        assert!(frame.icrc_ok() && matches!(frame.net, Net::Grh(_)));
        let tag = frame.eth.and_then(|ethernet| ethernet.vlan);
        assert_eq!(tag.map(|tag| (tag.vid(), tag.priority())), Some((0, 5)));
    }
    if let Some(lines) = tshark(&file, &["infiniband.bth.opcode"]) {
        assert_eq!(lines, ["4", "0", "2", "0", "1", "2", "4"]);
        let priorities = tshark(&file, &["vlan.priority"]).expect("it ran before");
        assert_eq!(priorities, ["", "5", "5", "5", "5", "5", ""]);
    }
}

/// Damaged packets are recorded as they came, and what the receiver of faults never saw is not.
#[test]
fn damage_is_recorded() {
    let out = Shared::default();
    let (mut near, far) = MemoryLink::pair().expect("a pair");
    let faults = FaultConfig::parse("corrupt=30%,seed=1").expect("well written");
    let link = Pcap::new(Fault::new(far, &faults), out.clone(), config()).expect("a header");
    let mut link = Verified::new(link, IcrcPolicy::Strict);
    for _ in 0..10 {
        near.send_one(at_us(0), &send_of(path(loopback(1), loopback(2)), 10, 64, 64))
            .expect("sent");
    }
    receive(&mut link, at_us(0));
    let bad = counter(&link, "rx_icrc_encapsulated");
    drop(link);
    let (_, packets) = read(&out.bytes());
    assert_eq!((packets.len(), bad > 10), (100, true));
    let is_bad = |packet: &&Recorded| !Frame::parse_ip(&packet.bytes).expect("a packet").icrc_ok();
    // An identification can be found that makes one in 65,536 damaged packets right.
    assert!(packets.iter().filter(is_bad).count() as u64 >= bad - 1);
}

/// A writer that others can look into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_recorded_is_written_after_a_while() {
    let out = Shared::default();
    let (near, _far) = MemoryLink::pair().expect("a pair");
    let config = PcapConfig { buffer: 4096, flush_ns: 5_000_000, ..config() };
    let mut link = Pcap::new(near, out.clone(), config).expect("a header");
    let written = || read(&out.bytes()).1.len();
    let one = send_of(path(loopback(1), loopback(2)), 1, 1024, 1024);
    assert_eq!((written(), link.poll_timeout()), (0, None));
    link.send_one(at_us(1000), &one).expect("sent");
    assert_eq!((written(), link.poll_timeout()), (0, Some(at_us(6000))));
    receive(&mut link, at_us(5999));
    assert_eq!(written(), 0);
    receive(&mut link, at_us(6000));
    assert_eq!((written(), link.poll_timeout()), (1, None));
    for _ in 0..4 {
        link.send_one(at_us(7000), &one).expect("sent");
    }
    assert_eq!((written(), link.poll_timeout()), (5, None), "the buffer is full");
    link.send_one(at_us(7000), &one).expect("sent");
    link.flush().expect("written");
    assert_eq!(written(), 6);
    link.send_one(at_us(7000), &one).expect("sent");
    link.control(Control::Exit).expect("written");
    assert_eq!(written(), 7);
    link.send_one(at_us(7000), &one).expect("sent");
    drop(link);
    assert_eq!(written(), 8);
}

/// A disk that is full after some bytes.
struct Small(usize);

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn traffic_goes_on_when_the_disk_is_full() {
    let (near, mut far) = MemoryLink::pair().expect("a pair");
    let config = PcapConfig { buffer: 1, ..config() };
    let ((), mut said) = warnings::during(|| {
        let link = Pcap::new(near, Small(1000), config).expect("a header");
        let mut link = Trace::new(link, TraceFile::new(Small(100)));
        for _ in 0..5 {
            let train = send_of(path(loopback(1), loopback(2)), 2, 256, 256);
            assert_eq!(link.send_one(at_us(0), &train).expect("sent"), Sent::Done);
        }
        assert_eq!(counter(&link, "pcap_packets") + counter(&link, "pcap_missed"), 10);
        assert!(counter(&link, "pcap_missed") > 5);
    });
    said.sort();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("the capture ends here: cannot write the capture"), "{said:?}");
    assert!(said[1].starts_with("the trace ends here"), "{said:?}");
    assert_eq!(receive(&mut far, at_us(0)).len(), 5);
}

#[test]
fn a_file_that_cannot_be_created_is_named() {
    let (near, _far) = MemoryLink::pair().expect("a pair");
    let error = Pcap::create(near, file("no/such/folder.pcapng"), config()).expect_err("no folder");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.starts_with("cannot create the capture file"), "{text}");
    assert!(text.contains("folder.pcapng"), "{text}");
}

#[test]
fn lines_of_several_devices_can_be_told_apart_and_put_in_order() {
    let out = Shared::default();
    let (near, _far) = MemoryLink::pair().expect("a pair");
    // The clock of the device began 25 hours, 1 minute and 2 seconds after 1970.
    let epoch_ns = (25 * 3600 + 62) * 1_000_000_000;
    let file = TraceFile::new(out.clone()).with_time(epoch_ns).with_name("feroce1");
    let trace = Trace::new(near, file);
    let mut link = Verified::new(trace, IcrcPolicy::Strict);
    let (a, b) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    link.send_one(at_us(5_000_007), &send_of(path(a, b), 1, 256, 5)).expect("sent");
    let text = String::from_utf8(out.bytes()).expect("UTF-8");
    let name = format!("feroce1[{}]", std::process::id());
    assert!(text.starts_with(&format!("01:01:07.000007000 {name} out 10.0.0.1 > ")), "{text}");
}

#[test]
fn a_trace_is_a_line_per_packet() {
    let out = Shared::default();
    let (near, mut far) = MemoryLink::pair().expect("a pair");
    let mut link = Verified::new(Trace::new(near, TraceFile::new(out.clone())), IcrcPolicy::Strict);
    let (a, b) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    link.send_one(at_us(5_000_000), &send_of(path(a, b), 2, 256, 5)).expect("sent");
    far.send_one(at_us(0), &nak(path(b, a))).expect("sent");
    far.send_one(at_us(0), &read_request(path(common::netns::global(2), a))).expect("sent");
    assert_eq!(receive(&mut link, at_us(6_000_012)).len(), 2);
    let text = String::from_utf8(out.bytes()).expect("UTF-8");
    assert_eq!(
        text,
        "0.000000000 out 10.0.0.1 > 10.0.0.2 -> 0x0012ab RC SEND First PSN 0x100000, 256 bytes\n\
         0.000000000 out 10.0.0.1 > 10.0.0.2 -> 0x0012ab RC SEND Last PSN 0x100001, asks for \
         ACK, 5 bytes\n\
         1.000012000 in  10.0.0.2 > 10.0.0.1 -> 0x0012ab RC NAK PSN 0x100000, \
         remote access error, MSN 7\n\
         1.000012000 in  fd09::2 > 10.0.0.1 -> 0x0012ab RC READ Request PSN 0x100000, \
         va 0x1000 rkey 0x00002345 len 99\n"
    );
}
