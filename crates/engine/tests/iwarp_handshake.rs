//! iWARP: what two ends agree on before the first segment.
#![expect(clippy::unwrap_used, reason = "a test")]

use feroce_engine::iwarp::{
    Begin, HandshakeConfig, HandshakeError, Initiator, ReadyToReceive, Reply, Request, Responder,
    StreamSetup,
};
use feroce_engine::{Data, SendOp, SgeList};
use feroce_testkit::stream_peer::{StreamPeer, send, write};
use feroce_testkit::wr;
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::Header;
use feroce_wire::iwarp::fpdu::MAX_ULPDU;
use feroce_wire::iwarp::mpa::{Enhanced, Role, Rtr, Startup, StartupError};
use feroce_wire::iwarp::terminate::Cause;

const DEFAULT: HandshakeConfig = HandshakeConfig {
    crc: true,
    revision: 2,
    ird: 8,
    ord: 4,
    peer_to_peer: true,
    max_ulpdu: 1442,
    long_fpdus: false,
};

#[test]
fn fpdus_fit_into_tcp_segments_unless_they_may_be_longer() {
    let config = HandshakeConfig { max_ulpdu: usize::MAX, ..DEFAULT };
    let ulpdu = |config: HandshakeConfig, mss| config.with_mss(mss).max_ulpdu;
    assert_eq!([8948, 1448, 1446, 10].map(|mss| ulpdu(config, mss)), [8942, 1442, 1438, 64]);
    assert_eq!(ulpdu(config, 1 << 20), MAX_ULPDU);
    let long = HandshakeConfig { long_fpdus: true, ..config };
    assert_eq!([1448, 10].map(|mss| ulpdu(long, mss)), [MAX_ULPDU; 2]);
    assert_eq!(ulpdu(HandshakeConfig { max_ulpdu: 300, ..long }, 1448), 300);
}

/// Reads a request that arrives in pieces of `step` bytes, and what follows it.
fn request(config: HandshakeConfig, bytes: &[u8], step: usize) -> (Request, Vec<u8>) {
    let mut responder = Responder::new(config);
    let mut found = None;
    let mut behind = Vec::new();
    for mut arrived in bytes.chunks(step) {
        if found.is_none() {
            found = responder.handle(&mut arrived).unwrap();
        }
        behind.extend(arrived);
    }
    (found.expect("complete"), behind)
}

/// Both ends, with private data; returns what each believes.
fn shake(initiator: HandshakeConfig, responder: HandshakeConfig) -> (StreamSetup, StreamSetup) {
    let (mut initiator, bytes) = Initiator::new(initiator, b"from the initiator").unwrap();
    let (request, behind) = request(responder, &[&bytes[..], b"rest"].concat(), 3);
    assert_eq!((request.private_data(), &behind[..]), (&b"from the initiator"[..], &b"rest"[..]));
    let (theirs, bytes) = request.accept(b"from the responder").unwrap();
    let (cut, mut reply) = (bytes.len() - 1, &bytes[..]);
    assert_eq!(initiator.handle(&mut &bytes[..cut]), Ok(None));
    let mut last = &reply[cut..];
    let Some(Reply::Accepted { setup, private_data }) = initiator.handle(&mut last).unwrap() else {
        panic!("rejected")
    };
    reply = last;
    assert!(reply.is_empty());
    assert_eq!(private_data, b"from the responder");
    (setup, theirs)
}

#[test]
fn peers_agree_on_reads_and_on_who_begins() {
    let other = HandshakeConfig { ird: 3, ord: 100, ..DEFAULT };
    let (ours, theirs) = shake(DEFAULT, other);
    assert_eq!((ours.ird, ours.ord), (8, 3));
    assert_eq!((theirs.ird, theirs.ord), (3, 8));
    assert_eq!(ours.begin, Begin::Announce(ReadyToReceive::Write));
    assert_eq!(theirs.begin, Begin::Await(Some(ReadyToReceive::Write)));
    let client = HandshakeConfig { peer_to_peer: false, ..DEFAULT };
    let (ours, theirs) = shake(client, DEFAULT);
    assert_eq!((ours.begin, theirs.begin), (Begin::Send, Begin::Await(None)));
    let old = HandshakeConfig { revision: 1, ..DEFAULT };
    let (ours, theirs) = shake(old, DEFAULT);
    assert_eq!((ours.begin, theirs.begin), (Begin::Send, Begin::Await(None)));
    assert_eq!((ours.ord, theirs.ird), (4, 8), "nothing was said about READs");
}

#[test]
fn one_end_is_enough_to_ask_for_crcs() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let a = HandshakeConfig { crc: ours, ..DEFAULT };
        let b = HandshakeConfig { crc: theirs, ..DEFAULT };
        let (a, b) = shake(a, b);
        assert_eq!((a.crc, b.crc), (ours || theirs, ours || theirs));
    }
}

/// The frames of Linux, taken from captures.
#[test]
fn frames_are_those_that_linux_sends() {
    let config = HandshakeConfig { crc: false, ird: 3, ord: 4, peer_to_peer: true, ..DEFAULT };
    let (_, bytes) = Initiator::new(config, b"").unwrap();
    let expected = [&b"MPA ID Req Frame"[..], &[0x10, 2, 0, 4, 0x80, 3, 0xc0, 4]].concat();
    assert_eq!(bytes, expected);
    let (request, _) = request(HandshakeConfig { ird: 9, ord: 9, ..config }, &bytes, 1);
    assert_eq!(request.reads(), Some((3, 4)));
    let (_, reply) = request.accept(b"").unwrap();
    let expected = [&b"MPA ID Rep Frame"[..], &[0x10, 2, 0, 4, 0x80, 4, 0x80, 3]].concat();
    assert_eq!(reply, expected);
}

#[test]
fn a_rejection_carries_private_data() {
    let (mut initiator, bytes) = Initiator::new(DEFAULT, b"").unwrap();
    let (request, _) = request(DEFAULT, &bytes, 100);
    let reply = request.reject(b"go away").unwrap();
    let rejected = Reply::Rejected { private_data: b"go away".to_vec() };
    assert_eq!(initiator.handle(&mut &reply[..]), Ok(Some(rejected)));
}

#[test]
fn replies_that_break_the_agreement_are_refused() {
    let answer = |startup: Startup, private_data: &[u8]| {
        let (mut initiator, _) = Initiator::new(DEFAULT, b"").unwrap();
        let mut out = [0; 100];
        let len = startup.emit([&[], private_data], &mut out).unwrap();
        initiator.handle(&mut &out[..len])
    };
    let reply = Startup { enhanced: true, ..Startup::new(Role::Reply, 2) };
    let enhanced = |ird, ord, peer_to_peer, rtr| {
        let mut out = [0; 4];
        Enhanced { ird, ord, peer_to_peer, rtr }.emit(&mut out);
        out
    };
    let too_many = HandshakeError::TooManyReads { wanted: 9 };
    assert_eq!(answer(reply, &enhanced(4, 9, false, Rtr::NONE)), Err(too_many));
    assert_eq!(too_many.cause(), Cause::MPA_READS);
    let no_common = HandshakeError::NoReadyToReceive;
    assert_eq!(answer(reply, &enhanced(4, 8, true, Rtr::SEND)), Err(no_common));
    assert_eq!(answer(reply, b"ab"), Err(HandshakeError::NoSetup));
    assert_eq!(answer(Startup { revision: 3, ..reply }, b""), Err(HandshakeError::Revision(3)));
    let wrong = Startup { role: Role::Request, ..reply };
    let not_mpa = HandshakeError::NotMpa(StartupError::WrongKey);
    assert_eq!(answer(wrong, b""), Err(not_mpa));
    // Markers are given to those that want them.
    let marked = answer(Startup { markers: true, ..reply }, &enhanced(4, 8, true, Rtr::READ));
    let Ok(Some(Reply::Accepted { setup, .. })) = marked else { panic!("{marked:?}") };
    assert!(setup.markers);
    assert_eq!(setup.begin, Begin::Announce(ReadyToReceive::Read));
}

#[test]
fn private_data_has_a_limit() {
    let most = DEFAULT.max_private_data();
    assert_eq!(most, 508);
    let (_, bytes) = Initiator::new(DEFAULT, &[7; 508]).unwrap();
    assert_eq!(request(DEFAULT, &bytes, 50).0.private_data(), [7; 508]);
    let too_long = HandshakeError::PrivateDataTooLong { most };
    assert_eq!(Initiator::new(DEFAULT, &[7; 509]).map(|_| ()), Err(too_long));
    // Others are believed up to the limit of the RFC, and no further.
    let mut long = [&b"MPA ID Req Frame"[..], &[0, 1, 2, 1]].concat();
    long.resize(2000, 0);
    let refused = Responder::new(DEFAULT).handle(&mut &long[..]);
    let error = HandshakeError::NotMpa(StartupError::PrivateDataTooLong(513));
    assert_eq!(refused, Err(error));
}

/// Linux may overlook the message that lets it send.
#[test]
fn a_silent_peer_is_reminded_until_it_sends() {
    let begin = Begin::Announce(ReadyToReceive::Write);
    let mut peer = StreamPeer::new(&StreamSetup { begin, ..StreamSetup::INITIATOR });
    let (now, qpn) = (peer.now, peer.qp.qpn);
    let empty = vec![(write(Rkey(0), 0), Vec::new())];
    assert_eq!(peer.hear(), empty);
    assert_eq!(peer.hear(), []);
    for _ in 0..2 {
        assert!(peer.host.engine.announce_again(now, qpn));
        assert_eq!(peer.hear(), empty);
    }
    peer.say(&write(Rkey(0), 0), &[]);
    assert!(!peer.host.engine.announce_again(now, qpn));
    assert_eq!(peer.hear(), []);
    // Other messages are not sent twice: a READ would be answered twice.
    let begin = Begin::Announce(ReadyToReceive::Read);
    let mut peer = StreamPeer::new(&StreamSetup { begin, ..StreamSetup::INITIATOR });
    assert_eq!(peer.hear().len(), 1);
    assert!(!peer.host.engine.announce_again(now, peer.qp.qpn));
    // An end that announces nothing reminds of the first message that it has sent.
    let mut peer = StreamPeer::new(&StreamSetup { begin: Begin::Send, ..StreamSetup::INITIATOR });
    let qpn = peer.qp.qpn;
    assert!(peer.host.engine.announce_again(now, qpn));
    assert_eq!(peer.hear(), []);
    peer.qp.sq.post(wr(1, SendOp::Send, Data::EMPTY)).unwrap();
    assert_eq!(peer.hear(), [(Header::Untagged(send(1)), Vec::new())]);
    assert!(peer.host.engine.announce_again(now, qpn));
    assert_eq!(peer.hear(), empty);
}

/// And it does not announce itself, although its programs expect the peer to send first.
#[test]
fn a_responder_need_not_wait_for_ever() {
    let begin = Begin::Await(None);
    let mut peer = StreamPeer::new(&StreamSetup { begin, ..StreamSetup::INITIATOR });
    peer.qp.sq.post(wr(1, SendOp::Send, Data::Sges(SgeList::default()))).unwrap();
    assert_eq!(peer.hear(), []);
    peer.host.engine.stop_waiting(peer.now, peer.qp.qpn);
    assert_eq!(peer.hear(), [(Header::Untagged(send(1)), Vec::new())]);
}
