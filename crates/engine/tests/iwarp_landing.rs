//! iWARP: payload that the driver receives straight into memory.

use feroce_engine::iwarp::{Begin, StreamEnd, StreamSetup};
use feroce_engine::{
    AsyncEvent, QpAttr, QpInitAttr, QpState, QpType, Sge, SgeList, SrqInitAttr, WcStatus,
};
use feroce_mem::{Access, Region};
use feroce_testkit::stream_peer::{StreamPeer, send, write};
use feroce_testkit::{Mr, land};
use feroce_train::Scatter;
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Control, Header, Tagged, Untagged};
use feroce_wire::iwarp::rdmap::RdmaOp;
use feroce_wire::iwarp::terminate::Cause;

/// Length of the payload of most segments here.
const LEN: usize = 50_000;

/// The last bytes of a segment, which are copied.
const COPIED: usize = 64;

/// A responder without CRC.
fn peer() -> StreamPeer {
    StreamPeer::new(&StreamSetup {
        begin: Begin::Await(None),
        crc: false,
        ..StreamSetup::INITIATOR
    })
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 251) as u8).collect()
}

/// What the engine of the peer lends for what comes next.
fn lent(peer: &mut StreamPeer) -> Scatter {
    let mut scatter = Scatter::default();
    peer.host.engine.lend_scatter(peer.now, peer.qp.qpn, &mut scatter);
    scatter
}

/// The peer has received this, the first bytes of it where the engine wants them.
fn landed(peer: &mut StreamPeer, mut bytes: &[u8]) -> usize {
    let landed = land(&mut peer.host, peer.now, peer.qp.qpn, &mut bytes);
    peer.say_bytes(bytes);
    landed
}

#[test]
fn payload_of_writes_lands_but_for_its_last_bytes() {
    let mut peer = peer();
    let data = payload(LEN);
    let stag = Rkey(peer.host.lkey.0);
    let bytes = peer.segment(&write(stag, 3), &data);
    let (head, rest) = bytes.split_at(2 + 14 + 1000);
    assert!(peer.host.engine.handle_stream(peer.now, peer.qp.qpn, head), "more is to come");
    let scatter = lent(&mut peer);
    assert_eq!(scatter.len(), LEN - 1000 - COPIED);
    // Padding and CRC, and the head of another WRITE.
    assert_eq!(scatter.behind, COPIED + (bytes.len() - 16 - LEN) + 16);
    peer.host.engine.handle_stream_landed(peer.now, peer.qp.qpn, 0);
    // In three pieces.
    for piece in rest.chunks(17_000) {
        let received = peer.host.engine.counters().rcvd_bytes;
        landed(&mut peer, piece);
        assert_eq!(peer.host.engine.counters().rcvd_bytes, received + piece.len() as u64);
    }
    assert_eq!(peer.host.read(3, LEN), data);
    assert_eq!((peer.host.read(0, 3), peer.host.read(3 + LEN, 1)), (vec![0; 3], vec![0]));
    assert!(lent(&mut peer).is_empty(), "between two segments");
    assert_eq!(peer.end(), None);
}

#[test]
fn a_message_lands_in_all_its_buffers() {
    let mut peer = peer();
    let data = payload(2 * LEN);
    let sges = [(7, 100), (50_000, 0), (200_001, 30_000), (100_000, 80_000)]
        .map(|(addr, len)| Sge { addr, len, ..peer.host.sge(0, 0) });
    let receive = feroce_engine::RecvWr { wr_id: 5, sges: SgeList::new(&sges) };
    peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
    for (mo, part) in data.chunks(LEN).enumerate() {
        let control = Control::new(RdmaOp::SEND, mo == 1);
        let header = Untagged { control, mo: (mo * LEN) as u32, ..send(1) };
        let bytes = peer.segment(&Header::Untagged(header), part);
        let (head, rest) = bytes.split_at(2 + 18);
        peer.say_bytes(head);
        assert_eq!(landed(&mut peer, rest), LEN - COPIED);
    }
    let completions = peer.host.poll_all();
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].status, completions[0].byte_len), (WcStatus::Success, 100_000));
    let found =
        [(7, 100), (200_001, 30_000), (100_000, 69_900)].map(|(at, len)| peer.host.read(at, len));
    assert_eq!(found.concat(), data);
}

/// A CRC covers what was sent, not what memory holds; and short payload is copied faster.
#[test]
fn what_a_crc_covers_and_what_is_short_does_not_land() {
    for (crc, len) in [(true, LEN), (false, 10_000)] {
        let setup = StreamSetup { begin: Begin::Await(None), crc, ..StreamSetup::INITIATOR };
        let mut peer = StreamPeer::new(&setup);
        let stag = Rkey(peer.host.lkey.0);
        let bytes = peer.segment(&write(stag, 0), &payload(len));
        let (head, rest) = bytes.split_at(100);
        assert!(!peer.host.engine.handle_stream(peer.now, peer.qp.qpn, head));
        assert_eq!(landed(&mut peer, rest), 0);
        assert_eq!(peer.host.read(0, len), payload(len));
    }
}

/// Nothing is lent under a key that has ended, and the peer is told as ever.
#[test]
fn a_key_that_ends_in_the_middle_is_refused() {
    for lands in [false, true] {
        let mut peer = peer();
        let region = std::sync::Arc::clone(&peer.host.region);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let host = &mut peer.host;
        let mr =
            Mr::register(&mut host.engine, host.pd, &region, (4096, LEN), Some(0x1_0000), access);
        let bytes = peer.segment(&write(mr.rkey(), 0x1_0000), &payload(LEN));
        let (head, rest) = bytes.split_at(1000);
        let (middle, rest) = rest.split_at(20_000);
        peer.say_bytes(head);
        let mut scatter = Scatter::default();
        if lands {
            scatter = lent(&mut peer);
            scatter.copy_in(middle);
        }
        let dereg = peer.host.engine.dereg_mr(mr.lkey()).unwrap();
        if lands {
            assert!(!dereg.is_quiet(), "the driver may still write");
            scatter.clear();
            peer.host.engine.handle_stream_landed(peer.now, peer.qp.qpn, middle.len());
        } else {
            peer.say_bytes(middle);
        }
        assert!(dereg.is_quiet());
        assert_eq!(landed(&mut peer, rest), 0);
        let cause = Cause::TAGGED_INVALID_STAG;
        assert_eq!(peer.end(), Some(StreamEnd::Terminated(cause)), "landing: {lands}");
        assert_eq!(peer.host.read(4096 + 21_000, 1), [0], "nothing behind it is written");
    }
}

/// Completions give memory back to the consumer: there are none while the driver writes there.
#[test]
fn a_queue_pair_that_fails_meanwhile_flushes_afterwards() {
    let mut peer = peer();
    for id in [1, 2] {
        let receive = peer.host.recv(id, 0, LEN as u32);
        peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
    }
    let bytes = peer.segment(&Header::Untagged(send(1)), &payload(LEN));
    peer.say_bytes(&bytes[..1000]);
    let scatter = lent(&mut peer);
    assert!(!scatter.is_empty());
    let (now, qpn) = (peer.now, peer.qp.qpn);
    peer.host.modify(now, qpn, &QpAttr::to(QpState::Err));
    assert_eq!(peer.host.poll_all().len(), 0);
    peer.host.engine.handle_stream_landed(now, qpn, scatter.len());
    let flushed: Vec<_> = peer.host.poll_all().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(flushed, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
    assert_eq!(peer.end(), Some(StreamEnd::Closed));
}

/// A consumer destroys the queue pair when it is told that no receive is left: the one that is
/// being filled has completed before.
#[test]
fn the_last_receive_is_told_of_when_it_has_completed() {
    let mut peer = peer();
    let host = &mut peer.host;
    let attr = SrqInitAttr { pd: host.pd, max_wr: 4, max_sge: 4, limit: 0, xrc: None };
    let (srq, mut queue) = host.engine.create_srq(attr).unwrap();
    let init = QpInitAttr { srq: Some(srq), ..host.init_attr(QpType::Rc) };
    let qp = host.create_qp(init);
    let setup = StreamSetup { begin: Begin::Await(None), crc: false, ..StreamSetup::INITIATOR };
    host.modify(peer.now, qp.qpn, &QpAttr::init(Access::REMOTE_WRITE));
    host.engine.attach_stream(peer.now, qp.qpn, &setup).unwrap();
    queue.post(host.recv(1, 0, LEN as u32)).unwrap();
    peer.qp = qp;
    let bytes = peer.segment(&Header::Untagged(send(1)), &payload(LEN));
    peer.say_bytes(&bytes[..1000]);
    assert!(!lent(&mut peer).is_empty());
    let (now, qpn) = (peer.now, peer.qp.qpn);
    peer.host.modify(now, qpn, &QpAttr::to(QpState::Err));
    assert_eq!((peer.host.async_events(), peer.host.poll_all().len()), (vec![], 0));
    peer.host.engine.handle_stream_landed(now, qpn, 100);
    assert_eq!(peer.host.poll_all().len(), 1);
    assert_eq!(peer.host.async_events(), [AsyncEvent::LastWqeReached(qpn)]);
}

/// Buffers may have room for more than the length of a completion can say.
#[test]
fn a_message_of_more_than_four_gigabytes_is_too_long() {
    const PIECE: usize = 60_000;
    const BUFFER: usize = 160 << 20;
    let mut peer = peer();
    let region = Region::alloc(BUFFER).unwrap();
    let (host, all) = (&mut peer.host, (0, BUFFER));
    let mr = Mr::register(&mut host.engine, host.pd, &region, all, None, Access::LOCAL_WRITE);
    let sge = Sge { addr: 0, len: BUFFER as u32, lkey: mr.lkey() };
    let receive = feroce_engine::RecvWr { wr_id: 1, sges: SgeList::new(&[sge; 30]) };
    peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
    let (now, qpn, data) = (peer.now, peer.qp.qpn, payload(PIECE));
    let mut mo = 0_u32;
    let end = loop {
        let control = Control::new(RdmaOp::SEND, false);
        let bytes = peer.segment(&Header::Untagged(Untagged { control, mo, ..send(1) }), &data);
        let (head, rest) = bytes.split_at(20);
        peer.say_bytes(head);
        // The driver says that it has received the payload.
        let placed = lent(&mut peer).len();
        peer.host.engine.handle_stream_landed(now, qpn, placed);
        peer.say_bytes(&rest[placed..]);
        if let Some(end) = peer.end() {
            break end;
        }
        mo = mo.checked_add(PIECE as u32).expect("an end in time");
    };
    assert_eq!(end, StreamEnd::Terminated(Cause::UNTAGGED_TOO_LONG));
    assert_eq!(mo, u32::MAX / PIECE as u32 * PIECE as u32);
    assert_eq!(peer.host.poll_all()[0].status, WcStatus::LocalLength);
}

/// A polling thread asks for a place each time that it looks, although nothing has arrived.
#[test]
fn looking_for_bytes_does_not_put_off_the_end_of_a_stalled_stream() {
    let mut peer = peer();
    let bytes = peer.segment(&write(Rkey(peer.host.lkey.0), 0), &payload(LEN));
    let (said, qpn) = (peer.now, peer.qp.qpn);
    peer.say_bytes(&bytes[..1000]);
    let mut ends = Vec::new();
    for second in 1..=60 {
        peer.now = said.plus_nanos(second * 1_000_000_000);
        peer.host.engine.handle_timeout(peer.now);
        ends.extend(peer.end().map(|end| (second, end)));
        lent(&mut peer);
        peer.host.engine.handle_stream_landed(peer.now, qpn, 0);
    }
    assert_eq!(ends, [(60, StreamEnd::Stalled)]);
}

#[test]
fn bytes_of_a_queue_pair_that_is_gone_are_forgotten() {
    let mut peer = peer();
    let stag = Rkey(peer.host.lkey.0);
    let bytes = peer.segment(&write(stag, 0), &payload(LEN));
    peer.say_bytes(&bytes[..1000]);
    let scatter = lent(&mut peer);
    let (now, qpn) = (peer.now, peer.qp.qpn);
    peer.host.modify(now, qpn, &QpAttr::to(QpState::Reset));
    peer.host.engine.handle_stream_landed(now, qpn, scatter.len());
    peer.host.engine.destroy_qp(qpn).unwrap();
    peer.host.engine.handle_stream_landed(now, qpn, scatter.len());
    assert!(lent(&mut peer).is_empty());
    assert_eq!(peer.host.poll_all().len(), 0);
}

/// A WRITE in segments of which none but the last has all rights: the reason is the usual one.
#[test]
fn bounds_are_checked_before_anything_lands() {
    let mut peer = peer();
    let stag = Rkey(peer.host.lkey.0);
    let control = Control::new(RdmaOp::WRITE, true);
    let beyond = Tagged { control, stag, offset: u64::MAX - 5 };
    let bytes = peer.segment(&Header::Tagged(beyond), &payload(LEN));
    assert!(!peer.host.engine.handle_stream(peer.now, peer.qp.qpn, &bytes[..1000]));
    assert!(matches!(peer.end(), Some(StreamEnd::Terminated(_))));
    assert!(lent(&mut peer).is_empty());
}
