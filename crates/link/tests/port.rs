//! The carrier whose packets pass a fabric, against a fabric that this test plays.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use crate::common::{SendOne as _, Sent as SentOne};
use crate::common::{counter, is_readable, loopback, packets_of, path, receive, send_of};
use feroce_link::port::{
    Answer, CREDIT_LEN, MAX_MESSAGE, PortListener, PortSocket, RECORD_LEN, Received, Record,
    Request, Sent, Welcome, wire_len,
};
use feroce_link::{
    Carrier, Control, IcrcPolicy, Logger, PortClaim, PortConfig, PortLink, Verified,
};
use feroce_train::{Ecn, Framing, Instant, Path as Way, PortAddr, RxMeta};
use feroce_wire::{Gid, IbFrame, Lid, Lrh};

/// What the zero of the carrier's clock is on that of the fabric.
const ORIGIN_NS: u64 = 1_000_000;

const WELCOME: Welcome =
    Welcome { slot: 7, marks: true, rate_bps: 1_000_000_000, credit: 9000, train: 5000 };

/// A place for a socket.
fn place(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("port");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    let _ = std::fs::remove_file(&path);
    path
}

fn config(socket: &Path) -> PortConfig {
    let (address, log) = (Some(loopback(1)), Logger::default());
    PortConfig { socket: socket.into(), address, ecn: true, origin_ns: ORIGIN_NS, log }
}

/// Takes the next connection, and answers its request.
fn welcome(listener: &PortListener, answer: &Answer) -> (PortSocket, Request) {
    let socket = loop {
        if let Some(socket) = listener.accept().expect("a listener") {
            break socket;
        }
        thread::yield_now();
    };
    let request = Request::parse(&next(&socket)).expect("a request");
    assert_eq!(socket.send(&answer.emit()), Sent::Done);
    (socket, request)
}

/// The next message.
fn next(socket: &PortSocket) -> Vec<u8> {
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        match socket.receive(&mut buffer) {
            Received::Message(len) => {
                buffer.truncate(len);
                return buffer;
            }
            Received::Nothing => thread::yield_now(),
            Received::Gone => panic!("the carrier is gone"),
        }
    }
}

fn pair(name: &str) -> (PortLink, PortSocket) {
    let path = place(name);
    let listener = PortListener::bind(&path).expect("a socket");
    let server = thread::Builder::new()
        .spawn(move || welcome(&listener, &Answer::Welcome(WELCOME)))
        .expect("a thread");
    let link = PortLink::connect(config(&path)).expect("a fabric");
    let (socket, request) = server.join().expect("no panic");
    assert_eq!(request, Request::Port(loopback(1)));
    assert_eq!(link.welcome(), WELCOME);
    (link, socket)
}

/// A message with credit and records.
fn message(credit: u32, records: &[Record<'_>]) -> Vec<u8> {
    let mut message = credit.to_ne_bytes().to_vec();
    for record in records {
        let at = message.len();
        message.resize(at + RECORD_LEN, 0);
        record.emit_head(&mut message[at..]);
        message.extend_from_slice(record.bytes);
    }
    message
}

#[test]
fn packets_carry_the_time_they_were_sent_and_are_delivered_when_they_arrive() {
    let (link, fabric) = pair("times");
    let mut link = Verified::new(link, IcrcPolicy::Strict);
    let train = send_of(path(loopback(1), loopback(2)), 3, 256, 100);
    assert_eq!(link.send_one(Instant::from_nanos(500), &train).expect("sent"), SentOne::Done);
    let sent = next(&fabric);
    let mut rest = &sent[CREDIT_LEN..];
    let record = Record::take(&mut rest).expect("a record");
    assert!(rest.is_empty());
    assert_eq!((record.at_ns, record.meta.ecn), (ORIGIN_NS + 500, Ecn::Capable));
    assert_eq!(record.bytes.chunks(record.stride).count(), 3);
    // The same packets come back, in two parts, marked.
    let meta = RxMeta { ecn: Ecn::Congested, ..record.meta };
    let (early, late) = record.bytes.split_at(record.stride);
    let part = |at_ns, bytes| Record { at_ns: ORIGIN_NS + at_ns, meta, bytes, ..record };
    assert!(!is_readable(&link, 0));
    fabric.send(&message(0, &[part(1000, early), part(200_000, late)]));
    assert!(is_readable(&link, 1000));
    assert!(receive(&mut link, Instant::from_nanos(999)).is_empty());
    assert_eq!(link.poll_timeout(), Some(Instant::from_nanos(1000)));
    assert!(!link.arm(Instant::from_nanos(999)), "it arrives in a moment");
    let first = receive(&mut link, Instant::from_nanos(1000));
    assert_eq!((first.len(), first[0].meta.ecn), (1, Ecn::Congested));
    assert!(link.arm(Instant::from_nanos(1000)), "the rest takes a while");
    assert!(!is_readable(&link, 0), "there is nothing to read meanwhile");
    let second = receive(&mut link, Instant::from_nanos(200_000));
    let got = [&first[0].packets[..], &second[0].packets].concat();
    assert_eq!(got, packets_of(&train));
    assert_eq!((link.poll_timeout(), counter(&link, "fabric_rx_trains")), (None, 2));
}

#[test]
fn an_attached_port_carries_infiniband() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    // The kind of socket is of no importance to one message at a time.
    let config = PortConfig { address: None, ecn: false, ..config(Path::new("fabric")) };
    let channel = Box::new(PortSocket::of(ours.into()).expect("a socket"));
    let link = PortLink::attached(config, channel, WELCOME).expect("a port");
    let mut link = Verified::new(link, IcrcPolicy::Strict);
    let local = |lid| PortAddr { gid: Gid::ZERO, lid: Lid(lid) };
    let (src, dst, framing) = (local(3), local(8), Framing::InfiniBand);
    let way = Way { src, dst, framing, sl: 2, ..Way::default() };
    let train = send_of(way, 2, 1024, 100);
    link.send_one(Instant::ZERO, &train).expect("no error");
    let mut sent = vec![0; MAX_MESSAGE];
    let len = (&theirs).read(&mut sent).expect("a message");
    let record = Record::take(&mut &sent[CREDIT_LEN..len]).expect("a record");
    assert_eq!((record.meta.src, record.meta.dst, record.meta.sl), (src, dst, 2));
    assert_eq!((record.meta.framing, record.meta.ecn), (framing, Ecn::NotCapable));
    // The ICRC covers the local route header of each packet.
    let transport = &record.bytes[..record.stride - 4];
    let lrh = Lrh { dlid: Lid(8), slid: Lid(3), sl: 2, ..Lrh::default() };
    let frame = IbFrame::new(lrh, None, transport).expect("short");
    assert_eq!(frame.icrc.to_le_bytes(), record.bytes[record.stride - 4..record.stride]);
    // What comes back is delivered with its headers, and a packet to another LID is damaged.
    (&theirs).write_all(&message(0, &[record])).expect("room");
    let got = receive(&mut link, Instant::ZERO);
    assert_eq!((got[0].packets.clone(), got[0].meta), (packets_of(&train), record.meta));
    let meta = RxMeta { dst: local(9), ..record.meta };
    (&theirs).write_all(&message(0, &[Record { meta, ..record }])).expect("room");
    assert!(receive(&mut link, Instant::ZERO).is_empty());
    assert!(link.control(Control::Addresses(&[loopback(9)])).is_ok());
    // Consumers join groups through subnet administration.
    assert!(link.control(Control::Join(Gid([0xff; 16]))).is_ok());
}

#[test]
fn a_port_is_in_a_group_as_long_as_it_has_the_connection() {
    let path = place("groups");
    let listener = PortListener::bind(&path).expect("a socket");
    let refused = || Answer::Refused("why".into());
    let server = thread::Builder::new()
        .spawn(move || {
            let answers = [Answer::Welcome(WELCOME), Answer::Welcome(WELCOME), refused()];
            answers.map(|answer| welcome(&listener, &answer))
        })
        .expect("a thread");
    let mut link = PortLink::connect(config(&path)).expect("a fabric");
    let [group, other] = [[239, 1, 1, 1], [239, 1, 1, 2]].map(Gid::from_ipv4);
    link.control(Control::Join(group)).expect("joined");
    link.control(Control::Join(group)).expect("it is a member already");
    let error = link.control(Control::Join(other)).expect_err("refused");
    assert_eq!(error.to_string(), "the fabric: why");
    let [_, (member, joins), (_, asks)] = server.join().expect("no panic");
    let join = |group| Request::Join { address: loopback(1), slot: WELCOME.slot, group };
    assert_eq!((joins, asks), (join(group), join(other)));
    let mut buffer = vec![0; MAX_MESSAGE];
    assert_eq!(member.receive(&mut buffer), Received::Nothing);
    link.control(Control::Leave(other)).expect("it was no member");
    assert_eq!(member.receive(&mut buffer), Received::Nothing);
    link.control(Control::Leave(group)).expect("left");
    assert_eq!(member.receive(&mut buffer), Received::Gone);
}

#[test]
fn a_carrier_without_credit_takes_nothing_until_it_gets_some() {
    let (mut link, fabric) = pair("credit");
    assert_eq!(link.caps().max_bytes, WELCOME.train);
    let train = send_of(path(loopback(1), loopback(2)), 1, 4096, 4096);
    let send = |link: &mut PortLink| link.send_one(Instant::ZERO, &train).expect("no error");
    let cost = wire_len(&RxMeta::from(&train.path), train.packet_len(0) + 4);
    let trains = WELCOME.credit.div_ceil(cost);
    for _ in 0..trains {
        assert_eq!(send(&mut link), SentOne::Done);
    }
    assert_eq!(send(&mut link), SentOne::Full);
    fabric.send(&message(trains * cost - WELCOME.credit, &[]));
    assert!(receive(&mut link, Instant::ZERO).is_empty());
    assert_eq!(send(&mut link), SentOne::Full, "the debt is paid, and no more");
    fabric.send(&message(1, &[]));
    assert!(is_readable(&link, 1000));
    assert!(receive(&mut link, Instant::ZERO).is_empty());
    assert_eq!(send(&mut link), SentOne::Done);
    assert_eq!(counter(&link, "fabric_tx_full"), 2);
}

#[test]
fn a_fabric_that_ends_is_an_error_once_and_then_silence() {
    let (mut link, fabric) = pair("end");
    // A damaged message is dropped and counted.
    fabric.send(&[0, 0, 0, 0, 1, 2, 3]);
    assert_eq!(receive(&mut link, Instant::ZERO).len(), 0);
    assert_eq!(counter(&link, "fabric_rx_damaged"), 1);
    drop(fabric);
    assert!(is_readable(&link, 1000));
    let error = link.receive(Instant::ZERO, 1, &mut |_| ()).expect_err("it has ended");
    assert!(error.to_string().contains("has ended"), "{error}");
    assert!(!is_readable(&link, 0), "no thread spins for it");
    assert_eq!(link.receive(Instant::ZERO, 1, &mut |_| ()).expect("silence"), 0);
    let train = send_of(path(loopback(1), loopback(2)), 2, 256, 256);
    assert_eq!(link.send_one(Instant::ZERO, &train).expect("lost"), SentOne::Done);
    assert_eq!(counter(&link, "fabric_tx_lost"), 2);
}

#[test]
fn what_a_fabric_refuses_is_an_error() {
    let path = place("refused");
    let error = PortLink::connect(config(&path)).expect_err("nothing is there");
    assert!(error.to_string().contains("feroce fabric up"), "{error}");
    let listener = PortListener::bind(&path).expect("a socket");
    let answers = [Answer::Refused("no such host".into()), Answer::InUse, Answer::InUse];
    let server = thread::Builder::new()
        .spawn(move || answers.map(|answer| welcome(&listener, &answer).1))
        .expect("a thread");
    let error = PortLink::connect(config(&path)).expect_err("refused");
    assert!(error.to_string().contains("no such host"), "{error}");
    let error = PortLink::connect(config(&path)).expect_err("in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let error = PortClaim::new(&path, loopback(1), 3, 0x0106_4321).expect_err("in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let requests = server.join().expect("no panic");
    let claim = Request::Claim { address: loopback(1), slot: 3, service: 0x0106_4321 };
    assert_eq!(requests[2], claim);
    let (mut link, _fabric) = pair("addresses");
    link.control(Control::Addresses(&[loopback(1)])).expect("its own");
    let error = link.control(Control::Addresses(&[loopback(2)])).expect_err("not its own");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
}
