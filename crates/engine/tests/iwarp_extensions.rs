//! iWARP with atomics and immediate data (RFC 7306), between ends that are configured for them.
#![expect(clippy::unwrap_used, reason = "a test")]

use feroce_engine::iwarp::{Begin, StreamEnd, StreamSetup};
use feroce_engine::{Config, Data, PostError, SendFlags, SendOp, SendWr, TransportKind};
use feroce_engine::{WcFlags, WcOpcode, WcStatus};
use feroce_testkit::stream_peer::{StreamPeer, send};
use feroce_testkit::{Streams, wr};
use feroce_wire::iwarp::atomic::{AtomicOp, AtomicRequest, AtomicResponse};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Untagged};
use feroce_wire::iwarp::rdmap::RdmaOp;
use feroce_wire::iwarp::terminate::{Cause, Terminate};
use feroce_wire::{Imm, Rkey};

const INITIATOR: StreamSetup = StreamSetup { max_ulpdu: 500, ..StreamSetup::INITIATOR };
const RESPONDER: StreamSetup = StreamSetup { begin: Begin::Await(None), ..INITIATOR };

fn config() -> Config {
    Config { transport: TransportKind::Iwarp, iwarp_extensions: true, ..Config::default() }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Atomics among READs and WRITEs, however the stream is cut.
#[test]
fn atomics_and_immediate_data_keep_their_place_among_other_requests() {
    for step in [1, 7, 100, 5000] {
        let mut streams = Streams::with(config());
        // Two fetches under way at most: the others wait.
        let setup = StreamSetup { ord: 2, ..INITIATOR };
        let (mut qa, mut qb) = streams.connect(&setup, &StreamSetup { ird: 2, ..RESPONDER });
        let target = streams.b.remote(4096);
        let written = streams.a.fill(10_000, 3000, 5);
        for id in 0..2 {
            qb.rq.as_mut().unwrap().post(streams.b.recv(100 + id, 60_000, 64)).unwrap();
        }
        let fetched = |streams: &Streams, i: u64| streams.a.data(8 * i, 8);
        let add = SendOp::FetchAdd { remote: target, add: 40 };
        let hit = SendOp::CmpSwap { remote: target, compare: 40, swap: u64::MAX };
        let miss = SendOp::CmpSwap { remote: target, compare: 40, swap: 7 };
        let imm = SendOp::WriteImm(streams.b.remote(20_000), Imm(0xdead_beef));
        let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
        for request in [
            wr(1, add, fetched(&streams, 0)),
            wr(2, hit, fetched(&streams, 1)),
            wr(3, SendOp::Read(target), fetched(&streams, 2)),
            SendWr { flags: solicited, ..wr(4, imm, streams.a.data(10_000, 3000)) },
            wr(5, miss, fetched(&streams, 3)),
            wr(6, SendOp::WriteImm(target, Imm(9)), Data::EMPTY),
        ] {
            qa.sq.post(request).unwrap();
        }
        streams.run(|_| step);
        let done = streams.a.poll_all();
        let ids: Vec<_> = done.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
        let all: Vec<_> = (1..=6).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(ids, all, "in the order of the queue, pieces of {step}");
        assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::FetchAdd, 8));
        let words: Vec<u64> = (0..4).map(|i| word(&streams.a.read(8 * i, 8))).collect();
        assert_eq!(words, [0, 40, u64::MAX, u64::MAX]);
        assert_eq!(streams.b.read(20_000, 3000), written);
        let told = streams.b.poll_all();
        let told: Vec<_> = told
            .iter()
            .map(|cqe| (cqe.wr_id, cqe.opcode, cqe.flags, cqe.imm.0, cqe.byte_len, cqe.solicited))
            .collect();
        let (op, flags) = (WcOpcode::RecvWriteImm, WcFlags::WITH_IMM);
        assert_eq!(
            told,
            [(100, op, flags, 0xdead_beef, 3000, true), (101, op, flags, 9, 0, false)]
        );
        assert!(streams.ends.iter().all(Vec::is_empty));
    }
}

#[test]
fn what_the_extensions_do_not_have_is_refused() {
    let mut streams = Streams::with(config());
    let (mut qa, _qb) = streams.connect(&INITIATOR, &RESPONDER);
    let remote = streams.b.remote(0);
    for op in [SendOp::SendImm(Imm(1)), SendOp::AtomicWrite(remote)] {
        let refused = qa.sq.post(wr(1, op, streams.a.data(0, 8)));
        assert_eq!(refused, Err(PostError::OpNotSupported), "{op:?}");
    }
}

fn request(opcode: RdmaOp, queue: QueueNumber) -> Header {
    Header::Untagged(Untagged { control: Control::new(opcode, true), queue, ..send(1) })
}

fn atomic(peer: &StreamPeer, at: u64, op: AtomicOp, masks: (u64, u64)) -> [u8; 52] {
    let remote = peer.host.remote(at);
    let request = AtomicRequest {
        op,
        request_id: 77,
        stag: remote.rkey,
        offset: remote.addr,
        add_swap: 0x0001_0001,
        add_swap_mask: masks.0,
        compare: 0x1234,
        compare_mask: masks.1,
    };
    let mut bytes = [0; AtomicRequest::LEN];
    request.emit(&mut bytes);
    bytes
}

/// Masked atomics of another implementation: fields that are added each for itself, bits that are
/// compared and swapped.
#[test]
fn masks_are_heeded() {
    for (op, masks, before, after) in [
        (AtomicOp::FETCH_ADD, (0x8000_8000, 0), 0x1234_ffff_u64, 0x1235_0000_u64),
        (AtomicOp::FETCH_ADD, (0, 0), 0x1234_ffff, 0x1236_0000),
        // Reserved bits mean nothing.
        (AtomicOp(0x70), (0, 0), 0x1234_ffff, 0x1236_0000),
        (AtomicOp::CMP_SWAP, (0xff, 0xff), 0xab34, 0xab01),
        (AtomicOp::CMP_SWAP, (0xff, 0xffff), 0xab34, 0xab34),
    ] {
        let mut peer = StreamPeer::with(config(), &RESPONDER);
        let at = peer.host.remote(64);
        peer.host.region.write_at(64, &before.to_ne_bytes()).unwrap();
        let bytes = atomic(&peer, 64, op, masks);
        peer.say(&request(RdmaOp::ATOMIC_REQUEST, QueueNumber::READ_REQUEST), &bytes);
        let heard = peer.hear();
        let [(Header::Untagged(header), payload)] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!(header.control.opcode, RdmaOp::ATOMIC_RESPONSE);
        assert_eq!((header.queue, header.msn), (QueueNumber::ATOMIC_RESPONSE, 1));
        let (response, _) = AtomicResponse::parse(payload).unwrap();
        assert_eq!((response.request_id, response.original), (77, before));
        assert_eq!(word(&peer.host.read(64, 8)), after, "{op:?} {masks:x?} at {at:?}");
    }
}

#[test]
fn wrong_messages_end_the_stream() {
    let refused = |what: &str, peer: &mut StreamPeer, cause: Cause| {
        let heard = peer.hear();
        let (_, payload) = heard.last().unwrap_or_else(|| panic!("{what}: no TERMINATE"));
        assert_eq!(Terminate::parse(payload).unwrap().0.cause, cause, "{what}");
        assert_eq!(peer.end(), Some(StreamEnd::Terminated(cause)), "{what}");
    };
    let reads = QueueNumber::READ_REQUEST;
    for (what, at, op, cause) in [
        ("unaligned", 65, AtomicOp::FETCH_ADD, Cause::OPERATION_STREAM_CATASTROPHIC),
        ("unknown", 64, AtomicOp(9), Cause::OPERATION_OPCODE),
    ] {
        let mut peer = StreamPeer::with(config(), &RESPONDER);
        let bytes = atomic(&peer, at, op, (0, 0));
        peer.say(&request(RdmaOp::ATOMIC_REQUEST, reads), &bytes);
        refused(what, &mut peer, cause);
        assert_eq!(peer.host.read(64, 8), [0; 8]);
    }
    let mut peer = StreamPeer::with(config(), &RESPONDER);
    let mut bytes = atomic(&peer, 64, AtomicOp::FETCH_ADD, (0, 0));
    let wrong = Rkey(0x00de_ad00).0.to_be_bytes();
    bytes[8..12].copy_from_slice(&wrong);
    peer.say(&request(RdmaOp::ATOMIC_REQUEST, reads), &bytes);
    refused("unknown key", &mut peer, Cause::PROTECTION_INVALID_STAG);
    for (what, opcode, queue, len, cause) in [
        ("short", RdmaOp::ATOMIC_REQUEST, reads, 51, Cause::UNTAGGED_MO),
        ("long", RdmaOp::ATOMIC_REQUEST, reads, 53, Cause::UNTAGGED_TOO_LONG),
        (
            "response to nothing",
            RdmaOp::ATOMIC_RESPONSE,
            QueueNumber::ATOMIC_RESPONSE,
            12,
            Cause::OPERATION_OPCODE,
        ),
        ("no receive", RdmaOp::IMMEDIATE, QueueNumber::SEND, 8, Cause::UNTAGGED_NO_BUFFER),
        ("long data", RdmaOp::IMMEDIATE, QueueNumber::SEND, 9, Cause::UNTAGGED_TOO_LONG),
    ] {
        let mut peer = StreamPeer::with(config(), &RESPONDER);
        peer.say(&request(opcode, queue), &vec![0; len]);
        refused(what, &mut peer, cause);
    }
    // Immediate data in the middle of a SEND.
    let mut peer = StreamPeer::with(config(), &RESPONDER);
    let receive = peer.host.recv(5, 8000, 100);
    peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
    let first = Untagged { control: Control::new(RdmaOp::SEND, false), ..send(1) };
    peer.say(&Header::Untagged(first), &[1; 24]);
    peer.say(&request(RdmaOp::IMMEDIATE, QueueNumber::SEND), &[0; 8]);
    refused("inside a SEND", &mut peer, Cause::UNTAGGED_MO);
}

/// The response to another atomic than the oldest.
#[test]
fn a_response_repeats_the_number_of_its_request() {
    let mut peer = StreamPeer::with(config(), &INITIATOR);
    let (data, remote) = (peer.host.data(0, 8), peer.host.remote(64));
    peer.qp.sq.post(wr(1, SendOp::FetchAdd { remote, add: 1 }, data)).unwrap();
    let heard = peer.hear();
    let (asked, _) = AtomicRequest::parse(&heard[0].1).unwrap();
    assert_eq!((asked.op, asked.add_swap, asked.add_swap_mask), (AtomicOp::FETCH_ADD, 1, 0));
    let mut bytes = [0; AtomicResponse::LEN];
    let request_id = asked.request_id.wrapping_add(1);
    AtomicResponse { request_id, original: 5 }.emit(&mut bytes);
    let header = request(RdmaOp::ATOMIC_RESPONSE, QueueNumber::ATOMIC_RESPONSE);
    peer.say(&header, &bytes);
    assert_eq!(peer.end(), Some(StreamEnd::Terminated(Cause::OPERATION_OPCODE)));
    assert_eq!(peer.host.poll_all()[0].status, WcStatus::Flushed);
}
