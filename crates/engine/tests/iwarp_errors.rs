//! iWARP: what a peer must not do, and how it is told.
#![expect(clippy::unwrap_used, reason = "a test")]

use feroce_engine::iwarp::{Begin, StreamEnd, StreamSetup};
use feroce_engine::{AsyncEvent, Data, SendOp, Sge, SgeList, WcStatus};
use feroce_mem::Access;
use feroce_testkit::stream_peer::{StreamPeer, read_request, send, write};
use feroce_testkit::{Mr, wr};
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Terminate};
use feroce_wire::{Lkey, Rkey};

/// A responder.
const SETUP: StreamSetup =
    StreamSetup { begin: Begin::Await(None), ird: 2, ..StreamSetup::INITIATOR };

/// Which asynchronous event is due.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    None,
    Access,
    Request,
    Fatal,
}

struct Peer {
    peer: StreamPeer,
    /// Memory that may be written and read.
    open: Mr,
    /// Memory that may only be read.
    read_only: Mr,
    /// Memory that may only be written.
    write_only: Mr,
}

impl Peer {
    /// A responder with one receive of 100 bytes.
    fn new() -> Self {
        let mut peer = StreamPeer::new(&SETUP);
        let host = &mut peer.host;
        let region = std::sync::Arc::clone(&host.region);
        let mut register = |at: usize, access| {
            let iova = Some(0x1_0000);
            Mr::register(&mut host.engine, host.pd, &region, (at, 1000), iova, access)
        };
        let open = register(0, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
        let read_only = register(2000, Access::REMOTE_READ);
        let write_only = register(4000, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let receive = host.recv(77, 8000, 100);
        peer.qp.rq.as_mut().unwrap().post(receive).unwrap();
        Self { peer, open, read_only, write_only }
    }

    fn read(&self, stag: Rkey, source_offset: u64, len: u32) -> (Header, Vec<u8>) {
        let (sink_stag, sink_offset) = (Rkey(0x99), 0x5000);
        let request = ReadRequest { sink_stag, sink_offset, len, source_stag: stag, source_offset };
        let (header, payload) = read_request(1, &request);
        (header, payload.to_vec())
    }

    /// The stream must end with this TERMINATE and event, and everything be flushed.
    fn expect(mut self, what: &str, cause: Cause, event: Event, receive: WcStatus) {
        let heard = self.peer.hear();
        let (header, payload) = heard.last().unwrap_or_else(|| panic!("{what}: no TERMINATE"));
        let Header::Untagged(header) = header else { panic!("{what}: {header:?}") };
        assert_eq!(header.control.opcode, RdmaOp::TERMINATE, "{what}");
        assert_eq!((header.queue, header.msn), (QueueNumber::TERMINATE, 1), "{what}");
        let (message, _) = Terminate::parse(payload).unwrap();
        assert_eq!(message.cause, cause, "{what}");
        assert_eq!(message.header.is_some(), cause.layer != 2, "{what}");
        assert_eq!(message.request.is_some(), what.starts_with("READ:"), "{what}");
        assert!(self.peer.is_over, "{what}: nothing follows");
        assert_eq!(self.peer.end(), Some(StreamEnd::Terminated(cause)), "{what}");
        assert_eq!(counted(&self.peer), [(counter_of(cause), 1)], "{what}");
        let qpn = self.peer.qp.qpn;
        let expected = match event {
            Event::None => vec![],
            Event::Access => vec![AsyncEvent::QpAccessError(qpn)],
            Event::Request => vec![AsyncEvent::QpRequestError(qpn)],
            Event::Fatal => vec![AsyncEvent::QpFatal(qpn)],
        };
        assert_eq!(self.peer.host.async_events(), expected, "{what}");
        let completions = self.peer.host.poll_all();
        let ids: Vec<_> = completions.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
        assert_eq!(ids, [(77, receive)], "{what}");
        // What comes behind it is not looked at.
        let late = write(self.open.rkey(), 0x1_0000);
        self.peer.say(&late, b"late");
        assert_eq!(self.peer.host.read(0, 4), [0; 4], "{what}");
    }
}

/// What was counted of streams.
fn counted(peer: &StreamPeer) -> Vec<(&'static str, u64)> {
    peer.host.engine.stream_counters().iter().filter(|(_, count)| *count > 0).collect()
}

/// The counter of the streams that were refused so.
pub(super) fn counter_of(cause: Cause) -> &'static str {
    match cause {
        Cause::MPA_CRC => "iwarp_refused_crc",
        Cause::MPA_MARKERS => "iwarp_refused_framing",
        Cause::TAGGED_VERSION | Cause::UNTAGGED_VERSION | Cause::OPERATION_VERSION => {
            "iwarp_refused_version"
        }
        Cause::OPERATION_OPCODE => "iwarp_refused_opcode",
        Cause::OPERATION_INVALIDATE => "iwarp_refused_invalidate",
        Cause::UNTAGGED_QUEUE => "iwarp_refused_queue",
        Cause::UNTAGGED_MSN => "iwarp_refused_msn",
        Cause::UNTAGGED_MO => "iwarp_refused_offset",
        Cause::UNTAGGED_TOO_LONG => "iwarp_refused_too_long",
        Cause::UNTAGGED_NO_BUFFER => "iwarp_refused_no_buffer",
        Cause::TAGGED_INVALID_STAG | Cause::PROTECTION_INVALID_STAG => "iwarp_refused_stag",
        Cause::TAGGED_BOUNDS | Cause::PROTECTION_BOUNDS => "iwarp_refused_bounds",
        Cause::TAGGED_WRAP | Cause::PROTECTION_WRAP => "iwarp_refused_wrap",
        Cause::PROTECTION_ACCESS => "iwarp_refused_access",
        Cause::TAGGED_NOT_OF_STREAM | Cause::PROTECTION_NOT_OF_STREAM => {
            "iwarp_refused_not_of_stream"
        }
        Cause::OPERATION_STREAM_CATASTROPHIC => "iwarp_refused_alignment",
        Cause::DDP_LOCAL_CATASTROPHIC => "iwarp_refused_receive",
        Cause::RDMAP_LOCAL_CATASTROPHIC => "iwarp_failed_request",
        other => panic!("no test expects {other}"),
    }
}

fn control(opcode: RdmaOp) -> Control {
    Control::new(opcode, true)
}

#[test]
fn tagged_segments() {
    let refused = |what, cause, event, header: &dyn Fn(&Peer) -> (Header, usize)| {
        let mut peer = Peer::new();
        let (header, len) = header(&peer);
        peer.peer.say(&header, &vec![7; len]);
        peer.expect(what, cause, event, WcStatus::Flushed);
    };
    refused("unknown STag", Cause::TAGGED_INVALID_STAG, Event::None, &|_| {
        (write(Rkey(0x00de_ad00), 0), 8)
    });
    refused("old tag", Cause::TAGGED_INVALID_STAG, Event::None, &|peer| {
        (write(Rkey(peer.open.key ^ 1), 0x1_0000), 8)
    });
    refused("beyond the end", Cause::TAGGED_BOUNDS, Event::Access, &|peer| {
        (write(peer.open.rkey(), 0x1_0000 + 996), 8)
    });
    refused("before the start", Cause::TAGGED_BOUNDS, Event::Access, &|peer| {
        (write(peer.open.rkey(), 0xffff), 8)
    });
    refused("wraps", Cause::TAGGED_WRAP, Event::Access, &|peer| {
        (write(peer.open.rkey(), u64::MAX - 3), 8)
    });
    refused("read only", Cause::PROTECTION_ACCESS, Event::Access, &|peer| {
        (write(peer.read_only.rkey(), 0x1_0000), 8)
    });
    let tagged = |peer: &Peer, control| {
        let (stag, offset) = (peer.open.rkey(), 0x1_0000);
        (Header::Tagged(Tagged { control, stag, offset }), 8)
    };
    refused("DDP version", Cause::TAGGED_VERSION, Event::Fatal, &|peer| {
        tagged(peer, Control { ddp_version: 2, ..control(RdmaOp::WRITE) })
    });
    refused("RDMAP version", Cause::OPERATION_VERSION, Event::Fatal, &|peer| {
        tagged(peer, Control { rdmap_version: 2, ..control(RdmaOp::WRITE) })
    });
    for opcode in [RdmaOp::SEND, RdmaOp::READ_REQUEST, RdmaOp::READ_RESPONSE, RdmaOp(15)] {
        refused("tagged operation", Cause::OPERATION_OPCODE, Event::Fatal, &|peer| {
            tagged(peer, control(opcode))
        });
    }
}

#[test]
fn untagged_segments() {
    let refused = |what, cause, status, header: Untagged, len: usize| {
        let mut peer = Peer::new();
        peer.peer.say(&Header::Untagged(header), &vec![7; len]);
        peer.expect(what, cause, Event::Fatal, status);
    };
    let flushed = WcStatus::Flushed;
    let versions = Control { ddp_version: 2, ..control(RdmaOp::SEND) };
    refused(
        "DDP version",
        Cause::UNTAGGED_VERSION,
        flushed,
        Untagged { control: versions, ..send(1) },
        8,
    );
    let versions = Control { rdmap_version: 0, ..control(RdmaOp::SEND) };
    refused(
        "RDMAP version",
        Cause::OPERATION_VERSION,
        flushed,
        Untagged { control: versions, ..send(1) },
        8,
    );
    for opcode in [0, 2, 8, 9, 10, 15].map(RdmaOp) {
        let header = Untagged { control: control(opcode), ..send(1) };
        refused("operation", Cause::OPERATION_OPCODE, flushed, header, 8);
    }
    let queue = QueueNumber(3);
    refused("queue", Cause::UNTAGGED_QUEUE, flushed, Untagged { queue, ..send(1) }, 8);
    let queue = QueueNumber::READ_REQUEST;
    refused("SEND in queue 1", Cause::OPERATION_OPCODE, flushed, Untagged { queue, ..send(1) }, 8);
    refused("number", Cause::UNTAGGED_MSN, flushed, send(2), 8);
    refused("offset", Cause::UNTAGGED_MO, flushed, Untagged { mo: 4, ..send(1) }, 8);
    let too_long = WcStatus::LocalLength;
    refused("too long", Cause::UNTAGGED_TOO_LONG, too_long, send(1), 101);
    let invalidate =
        Untagged { control: control(RdmaOp::SEND_INV), invalidate: Rkey(5), ..send(1) };
    refused("invalidate", Cause::OPERATION_INVALIDATE, flushed, invalidate, 8);
}

#[test]
fn a_gap_in_a_message_is_refused() {
    let mut peer = Peer::new();
    let first = Untagged { control: Control::new(RdmaOp::SEND, false), ..send(1) };
    peer.peer.say(&Header::Untagged(first), &[1; 24]);
    peer.peer.say(&Header::Untagged(Untagged { mo: 20, ..send(1) }), &[2; 24]);
    peer.expect("gap", Cause::UNTAGGED_MO, Event::Fatal, WcStatus::Flushed);
}

#[test]
fn a_send_without_a_receive_ends_the_stream() {
    let mut peer = StreamPeer::new(&SETUP);
    peer.say(&Header::Untagged(send(1)), b"hello");
    let heard = peer.hear();
    let (message, _) = Terminate::parse(&heard[0].1).unwrap();
    assert_eq!(message.cause, Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(message.segment_len, Some(18 + 5));
    assert_eq!(peer.end(), Some(StreamEnd::Terminated(Cause::UNTAGGED_NO_BUFFER)));
}

#[test]
fn reads() {
    let refused = |what, cause, event, request: &dyn Fn(&Peer) -> (Header, Vec<u8>)| {
        let mut peer = Peer::new();
        let (header, payload) = request(&peer);
        peer.peer.say(&header, &payload);
        peer.expect(what, cause, event, WcStatus::Flushed);
    };
    refused("READ: unknown STag", Cause::PROTECTION_INVALID_STAG, Event::None, &|peer| {
        peer.read(Rkey(0x00de_ad00), 0x1_0000, 8)
    });
    refused("READ: beyond the end", Cause::PROTECTION_BOUNDS, Event::Request, &|peer| {
        peer.read(peer.open.rkey(), 0x1_0000, 1001)
    });
    refused("READ: wraps", Cause::PROTECTION_WRAP, Event::Request, &|peer| {
        peer.read(peer.open.rkey(), u64::MAX, 8)
    });
    refused("READ: write only", Cause::PROTECTION_ACCESS, Event::Request, &|peer| {
        peer.read(peer.write_only.rkey(), 0x1_0000, 8)
    });
    refused("short request", Cause::UNTAGGED_MO, Event::Fatal, &|peer| {
        let (header, payload) = peer.read(peer.open.rkey(), 0x1_0000, 8);
        (header, payload[..20].to_vec())
    });
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut peer = Peer::new();
    for msn in 1..=3 {
        let (Header::Untagged(header), payload) = peer.read(peer.open.rkey(), 0x1_0000, 8) else {
            unreachable!()
        };
        peer.peer.say(&Header::Untagged(Untagged { msn, ..header }), &payload);
    }
    peer.expect("third of two", Cause::UNTAGGED_NO_BUFFER, Event::Fatal, WcStatus::Flushed);
}

#[test]
fn a_wrong_crc_ends_the_stream_before_anything_completes() {
    let mut peer = Peer::new();
    let mut bytes = peer.peer.segment(&Header::Untagged(send(1)), b"damaged");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    peer.peer.say_bytes(&bytes);
    peer.expect("CRC", Cause::MPA_CRC, Event::Fatal, WcStatus::Flushed);
}

/// A damaged segment may look like a wrong key, a wrong number or a message that is too long.
#[test]
fn a_damaged_segment_is_one_with_a_wrong_crc_whatever_it_looks_like() {
    for (what, at) in [("key", 5), ("offset", 10), ("opcode", 3), ("length", 1), ("last", 2)] {
        let mut peer = Peer::new();
        let mut bytes = peer.peer.segment(&write(peer.open.rkey(), 0x1_0064), &[7; 40]);
        bytes[at] ^= 0x40;
        // A longer segment ends inside the next.
        bytes.extend([0; 80]);
        peer.peer.say_bytes(&bytes);
        peer.expect(what, Cause::MPA_CRC, Event::Fatal, WcStatus::Flushed);
    }
    let mut peer = Peer::new();
    let mut bytes = peer.peer.segment(&Header::Untagged(send(1)), &[7; 80]);
    bytes[1] ^= 0x40;
    peer.peer.say_bytes(&bytes);
    let receive = WcStatus::Flushed;
    bytes = vec![0; 80];
    peer.peer.say_bytes(&bytes);
    peer.expect("too long for its receive", Cause::MPA_CRC, Event::Fatal, receive);
}

#[test]
fn a_segment_without_a_header_ends_the_stream() {
    let mut peer = Peer::new();
    // A ULPDU of three bytes.
    peer.peer.say_bytes(&[0, 3, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]);
    peer.expect("short", Cause::MPA_MARKERS, Event::Fatal, WcStatus::Flushed);
}

#[test]
fn a_receive_whose_memory_is_gone_ends_the_stream() {
    let mut peer = StreamPeer::new(&SETUP);
    let sges = SgeList::from(Sge { addr: 0, len: 10, lkey: Lkey(0xbad) });
    peer.qp.rq.as_mut().unwrap().post(feroce_engine::RecvWr { wr_id: 5, sges }).unwrap();
    peer.say(&Header::Untagged(send(1)), b"hello");
    assert_eq!(counted(&peer), [("iwarp_refused_receive", 1)]);
    assert_eq!(peer.host.poll_all()[0].status, WcStatus::LocalProtection);
}

#[test]
fn nothing_is_checked_of_empty_segments() {
    let mut peer = Peer::new();
    peer.peer.say(&write(Rkey(0x00de_ad00), u64::MAX), &[]);
    let (header, payload) = peer.read(Rkey(0x00de_ad00), 7, 0);
    peer.peer.say(&header, &payload);
    let heard = peer.peer.hear();
    let [(Header::Tagged(response), payload)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((response.stag, response.offset, payload.len()), (Rkey(0x99), 0x5000, 0));
    assert_eq!(peer.peer.end(), None);
}

#[test]
fn a_terminate_of_the_peer_flushes() {
    let mut peer = Peer::new();
    let header =
        Untagged { control: control(RdmaOp::TERMINATE), queue: QueueNumber::TERMINATE, ..send(1) };
    // As Linux says it.
    peer.peer.say(&Header::Untagged(header), &[0x21, 0x02, 0x00, 0x00]);
    assert_eq!(peer.peer.hear(), [], "it is not answered");
    assert!(peer.peer.is_over);
    let end = StreamEnd::PeerTerminated(Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(peer.peer.end(), Some(end));
    assert_eq!(counted(&peer.peer), [("iwarp_terminated_by_peer", 1)]);
    assert_eq!(peer.peer.host.poll_all().len(), 1);
}

#[test]
fn a_stream_that_ends_inside_a_segment_was_cut() {
    for (len, end) in [(0, StreamEnd::Closed), (10, StreamEnd::Cut)] {
        let mut peer = Peer::new();
        let bytes = peer.peer.segment(&Header::Untagged(send(1)), b"hello");
        peer.peer.say_bytes(&bytes[..len]);
        peer.peer.host.engine.handle_stream_end(peer.peer.now, peer.peer.qp.qpn, false);
        assert_eq!(peer.peer.end(), Some(end));
        assert_eq!(counted(&peer.peer), [("iwarp_cut", 1)][..usize::from(len > 0)]);
        assert_eq!(peer.peer.host.poll_all()[0].status, WcStatus::Flushed);
    }
}

/// The length field of a SEND is damaged on its way, and the peer waits for the answer.
#[test]
fn a_stream_whose_rest_does_not_arrive_ends() {
    let mut peer = Peer::new();
    let mut bytes = peer.peer.segment(&Header::Untagged(send(1)), b"hello");
    bytes[0] ^= 0x40;
    let (said, late) = (peer.peer.now, bytes.len() - 1);
    peer.peer.say_bytes(&bytes[..late]);
    // A minute is counted from the last byte.
    let after = |seconds: u64| said.plus_nanos(seconds * 1_000_000_000);
    let qpn = peer.peer.qp.qpn;
    peer.peer.host.engine.handle_stream(after(40), qpn, &bytes[late..]);
    let mut due = Vec::new();
    while let Some(at) = peer.peer.host.engine.poll_timeout() {
        peer.peer.host.engine.handle_timeout(at);
        due.extend(peer.peer.end().map(|end| (at, end)));
        assert_eq!(peer.peer.hear(), [], "the peer would not understand it");
    }
    assert_eq!(due, [(after(100), StreamEnd::Stalled)]);
    assert_eq!(counted(&peer.peer), [("iwarp_stalled", 1)]);
    assert_eq!(peer.peer.host.poll_all()[0].status, WcStatus::Flushed);
    assert!(peer.peer.is_over, "the driver closes the connection");
}

#[test]
fn a_stream_that_is_silent_between_segments_goes_on() {
    let mut peer = Peer::new();
    let header = write(peer.open.rkey(), 0x1_0000);
    for _ in 0..3 {
        let bytes = peer.peer.segment(&header, b"hello");
        peer.peer.say_bytes(&bytes[..9]);
        peer.peer.say_bytes(&bytes[9..]);
        while let Some(at) = peer.peer.host.engine.poll_timeout() {
            peer.peer.now = at;
            peer.peer.host.engine.handle_timeout(at);
            assert_eq!(peer.peer.hear(), []);
        }
    }
    assert_eq!(peer.peer.end(), None);
    assert_eq!(counted(&peer.peer), []);
}

/// The queue pairs of a completion queue that overran go to ERR: the driver closes their streams.
#[test]
fn an_overrun_of_the_completion_queue_ends_the_stream() {
    let mut peer = StreamPeer::new(&SETUP);
    let host = &mut peer.host;
    host.engine.resize_cq(host.cq, &mut host.poller, 1).unwrap();
    for id in 1..=3 {
        peer.qp.rq.as_mut().unwrap().post(peer.host.recv(id, 0, 100)).unwrap();
    }
    (1..=2).for_each(|msn| peer.say(&Header::Untagged(send(msn)), b"hello"));
    assert_eq!(peer.host.engine.counters().cq_overrun, 1);
    assert_eq!(peer.end(), Some(StreamEnd::Closed));
    assert_eq!(peer.hear(), []);
    assert!(peer.is_over, "the driver closes the connection");
}

#[test]
fn responses_that_do_not_fit_their_read_are_refused() {
    for (stag_off, offset_off, len, last) in
        [(1, 0, 64, true), (0, 8, 64, true), (0, 0, 65, true), (0, 0, 63, true), (0, 0, 64, false)]
    {
        let mut peer = StreamPeer::new(&StreamSetup::INITIATOR);
        let data = peer.host.data(0x100, 64);
        let op = SendOp::Read(feroce_engine::Remote { addr: 0, rkey: Rkey(1) });
        peer.qp.sq.post(wr(1, op, data)).unwrap();
        let heard = peer.hear();
        let (request, _) = ReadRequest::parse(&heard[0].1).unwrap();
        assert_eq!((request.sink_stag.0, request.len), (peer.host.lkey.0, 64));
        let response = Tagged {
            control: Control::new(RdmaOp::READ_RESPONSE, last),
            stag: Rkey(request.sink_stag.0 + stag_off),
            offset: request.sink_offset + offset_off,
        };
        peer.say(&Header::Tagged(response), &vec![9; len]);
        assert!(matches!(peer.end(), Some(StreamEnd::Terminated(_))));
        let done = peer.host.poll_all();
        assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Flushed));
        assert_eq!(peer.host.read(0, 1000), [0; 1000], "no byte was placed");
    }
}

#[test]
fn local_errors_complete_with_their_reason_and_flush_the_rest() {
    let mut peer = StreamPeer::new(&StreamSetup::INITIATOR);
    let good = peer.host.data(0, 10);
    let bad = Data::Sges(SgeList::from(Sge { addr: 0, len: 10, lkey: Lkey(0xbad) }));
    let remote = feroce_engine::Remote { addr: 0, rkey: Rkey(1) };
    peer.qp.sq.post(wr(1, SendOp::Send, good.clone())).unwrap();
    peer.qp.sq.post(wr(2, SendOp::Read(remote), good.clone())).unwrap();
    peer.qp.sq.post(wr(3, SendOp::Send, bad)).unwrap();
    peer.qp.sq.post(wr(4, SendOp::Send, good)).unwrap();
    let heard = peer.hear();
    let operations: Vec<_> = heard.iter().map(|(header, _)| header.control().opcode).collect();
    assert_eq!(operations, [RdmaOp::SEND, RdmaOp::READ_REQUEST, RdmaOp::TERMINATE]);
    let done: Vec<_> = peer.host.poll_all().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    let (flushed, protection) = (WcStatus::Flushed, WcStatus::LocalProtection);
    assert_eq!(done, [(1, flushed), (2, flushed), (3, protection), (4, flushed)]);
    assert_eq!(counted(&peer), [("iwarp_failed_request", 1)]);
}
