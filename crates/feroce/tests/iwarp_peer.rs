//! Devices that speak iWARP against a peer that is one TCP socket: right and wrong messages, both
//! roles, and what the device answers on the wire.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use feroce::cm::{CmError, Connection, Connector, Listener, Manager, RejReason};
use feroce::{Access, Device, Error, Mr, QpCap, SendOp, SendWr, Settings, WcStatus};
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::fpdu::{Deframer, Framer, Piece};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Terminate};

pub(super) fn manager(ip: IpAddr, crc: bool) -> Manager {
    let mut settings = Settings::default();
    settings.set("transport", "iwarp").unwrap();
    settings.mpa_crc = crc;
    Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap()
}

/// The peer: a socket on which both ends have exchanged their frames.
pub(super) struct Peer {
    pub(super) socket: TcpStream,
    framer: Framer,
    deframer: Deframer,
    arrived: Vec<u8>,
}

impl Peer {
    pub(super) fn new(socket: TcpStream, crc: bool) -> Self {
        socket.set_nodelay(true).unwrap();
        // So long that it only ends a test that has failed.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (framer, deframer) = (Framer::new(crc, false), Deframer::new(crc));
        Self { socket, framer, deframer, arrived: Vec::new() }
    }

    pub(super) fn segment(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.framer.wire_len(header.len() + payload.len())];
        let fill = |at: usize, out: &mut [u8]| out.copy_from_slice(&payload[at..at + out.len()]);
        self.framer.emit(header, payload.len(), &mut out, fill).unwrap();
        out
    }

    pub(super) fn say(&mut self, header: &Header, payload: &[u8]) {
        let bytes = self.segment(header, payload);
        // The device may have closed already.
        let _ = self.socket.write_all(&bytes);
    }

    /// The next segment; `None`: the device has closed.
    pub(super) fn hear(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut segment = None;
        loop {
            let mut bytes = &self.arrived[..];
            let before = bytes.len();
            let mut is_whole = false;
            while let Some(piece) = self.deframer.next(&mut bytes).unwrap() {
                match piece {
                    Piece::Header { header, .. } => segment = Some((header, Vec::new())),
                    Piece::Payload(part) => segment.as_mut().unwrap().1.extend(part),
                    Piece::End => is_whole = true,
                }
                if is_whole {
                    break;
                }
            }
            let used = before - bytes.len();
            self.arrived.drain(..used);
            if is_whole {
                return segment;
            }
            let mut more = [0; 4096];
            match self.socket.read(&mut more) {
                Ok(0) => return None,
                Ok(len) => self.arrived.extend_from_slice(&more[..len]),
                // It closed with bytes of ours unread.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// A device that has accepted the peer: its end, memory that the peer may use, and the peer.
pub(super) struct Served {
    pub(super) far: Connection,
    pub(super) open: Mr,
    pub(super) peer: Peer,
}

const OPEN: usize = 4096;

/// Connects with this request, and accepts it. Returns the reply as well.
pub(super) fn served(ip: IpAddr, crc: bool, request: &[u8]) -> (Served, Vec<u8>) {
    served_with(ip, crc, request, OPEN, 100)
}

/// The same, with so many bytes of memory, in the second half of which receives of this length are.
pub(super) fn served_with(
    ip: IpAddr,
    crc: bool,
    request: &[u8],
    memory: usize,
    receive: usize,
) -> (Served, Vec<u8>) {
    let server = manager(ip, crc);
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
    socket.write_all(request).unwrap();
    let mut far = listener.accept().unwrap().cap(QpCap::new(8, 8)).accept().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let open = far.pd().alloc_mr(memory, access).unwrap();
    let place = memory / 2..memory / 2 + receive;
    far.post_recv((0..4).map(|i| open.recv(i, place.clone()))).unwrap();
    let mut reply = vec![0; 20];
    socket.read_exact(&mut reply).unwrap();
    let more = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
    reply.resize(20 + more, 0);
    socket.read_exact(&mut reply[20..]).unwrap();
    let peer = Peer::new(socket, reply[16] & 0x40 != 0);
    (Served { far, open, peer }, reply)
}

/// Revision 2, four READs each way.
pub(super) const PLAIN: &[u8] = b"MPA ID Req Frame\x10\x02\0\x04\0\x04\0\x04";

pub(super) fn send(opcode: RdmaOp, msn: u32) -> Untagged {
    let (control, queue) = (Control::new(opcode, true), QueueNumber::SEND);
    Untagged { control, invalidate: Rkey(0), queue, msn, mo: 0 }
}

pub(super) fn tagged(opcode: RdmaOp, stag: Rkey, offset: u64) -> Tagged {
    Tagged { control: Control::new(opcode, true), stag, offset }
}

pub(super) fn read(
    msn: u32,
    stag: Rkey,
    source_offset: u64,
    len: u32,
) -> (Header, [u8; ReadRequest::LEN]) {
    let (sink_stag, sink_offset) = (Rkey(0x1234_5600), 0x1000);
    let request = ReadRequest { sink_stag, sink_offset, len, source_stag: stag, source_offset };
    let mut payload = [0; ReadRequest::LEN];
    request.emit(&mut payload);
    let queue = QueueNumber::READ_REQUEST;
    (Header::Untagged(Untagged { queue, ..send(RdmaOp::READ_REQUEST, msn) }), payload)
}

/// A SEND, a WRITE, a READ of what was written, and a SEND with a solicited event. SENDs and READs
/// have the numbers from these on.
pub(super) fn all_is_well(served: &mut Served, what: &str, (sent, asked): (u32, u32)) {
    let Served { far, open, peer } = served;
    let data: Vec<u8> = (0..100).collect();
    peer.say(&Header::Untagged(send(RdmaOp::SEND, sent)), &data[..32]);
    let cqe = far.recv_cq().wait().unwrap();
    assert_eq!((cqe.status, cqe.byte_len), (WcStatus::Success, 32), "{what}");
    peer.say(&Header::Tagged(tagged(RdmaOp::WRITE, open.rkey(), open.addr() + 5)), &data);
    let (header, payload) = read(asked, open.rkey(), open.addr(), 120);
    peer.say(&header, &payload);
    let (header, answer) = peer.hear().unwrap();
    let wanted = tagged(RdmaOp::READ_RESPONSE, Rkey(0x1234_5600), 0x1000);
    assert_eq!(header, Header::Tagged(wanted), "{what}");
    assert_eq!((answer.len(), &answer[5..105]), (120, &data[..]), "{what}");
    peer.say(&Header::Untagged(send(RdmaOp::SEND_SE, sent + 1)), &data[..9]);
    assert_eq!(far.recv_cq().wait().unwrap().byte_len, 9, "{what}");
}

#[test]
fn right_messages_after_every_kind_of_handshake() {
    let requests: [(&str, &[u8], &[u8]); 10] = [
        ("revision 0", b"MPA ID Req Frame\0\0\0\0", b"MPA ID Rep Frame\0\0\0\0"),
        ("revision 1", b"MPA ID Req Frame\0\x01\0\0", b"MPA ID Rep Frame\0\x01\0\0"),
        ("revision 1, CRC", b"MPA ID Req Frame\x40\x01\0\0", b"MPA ID Rep Frame\x40\x01\0\0"),
        ("revision 2, plain", b"MPA ID Req Frame\0\x02\0\0", b"MPA ID Rep Frame\0\x02\0\0"),
        ("revision 2", PLAIN, b"MPA ID Rep Frame\x10\x02\0\x04\0\x04\0\x04"),
        (
            "revision 2, CRC",
            b"MPA ID Req Frame\x50\x02\0\x04\0\x04\0\x04",
            b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04",
        ),
        (
            "between peers, WRITE",
            b"MPA ID Req Frame\x10\x02\0\x04\x80\x04\x80\x04",
            b"MPA ID Rep Frame\x10\x02\0\x04\x80\x04\x80\x04",
        ),
        (
            "between peers, READ",
            b"MPA ID Req Frame\x10\x02\0\x04\x80\x04\x40\x04",
            b"MPA ID Rep Frame\x10\x02\0\x04\x80\x04\x40\x04",
        ),
        (
            "between peers, SEND",
            b"MPA ID Req Frame\x10\x02\0\x04\xc0\x04\0\x04",
            b"MPA ID Rep Frame\x10\x02\0\x04\xc0\x04\0\x04",
        ),
        (
            "between peers, no message named",
            b"MPA ID Req Frame\x10\x02\0\x04\x80\x04\0\x04",
            b"MPA ID Rep Frame\x10\x02\0\x04\x80\x04\x80\x04",
        ),
    ];
    let ip = Ipv4Addr::new(127, 156, 0, 1).into();
    for (what, request, expected) in requests {
        let (mut served, reply) = served(ip, false, request);
        assert_eq!(reply, expected, "{what}");
        let Served { peer, .. } = &mut served;
        let mut msns = (1, 1);
        match what {
            "between peers, READ" => {
                let (header, payload) = read(1, Rkey(0), 0, 0);
                peer.say(&header, &payload);
                let (_, answer) = peer.hear().unwrap();
                assert_eq!(answer, [], "{what}");
                msns.1 = 2;
            }
            "between peers, SEND" => {
                peer.say(&Header::Untagged(send(RdmaOp::SEND, 1)), &[]);
                msns.0 = 2;
            }
            _ if what.starts_with("between") => {
                peer.say(&Header::Tagged(tagged(RdmaOp::WRITE, Rkey(0), 0)), &[]);
            }
            _ => {}
        }
        all_is_well(&mut served, what, msns);
    }
}

/// What the peer says, and how it is told that this is wrong.
type Case = (&'static str, Cause, fn(&mut Served));

const WRONG: &[Case] = &[
    ("DDP version", Cause::UNTAGGED_VERSION, |s| {
        let mut header = send(RdmaOp::SEND, 1);
        header.control.ddp_version = 2;
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("DDP version, tagged", Cause::TAGGED_VERSION, |s| {
        let mut header = tagged(RdmaOp::WRITE, s.open.rkey(), s.open.addr());
        header.control.ddp_version = 2;
        s.peer.say(&Header::Tagged(header), &[7; 24]);
    }),
    ("RDMAP version", Cause::OPERATION_VERSION, |s| {
        let mut header = send(RdmaOp::SEND, 1);
        header.control.rdmap_version = 2;
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("RDMAP version, tagged", Cause::OPERATION_VERSION, |s| {
        let mut header = tagged(RdmaOp::WRITE, s.open.rkey(), s.open.addr());
        header.control.rdmap_version = 2;
        s.peer.say(&Header::Tagged(header), &[7; 24]);
    }),
    ("immediate data with a solicited event", Cause::OPERATION_OPCODE, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp(9), 1)), &[7; 8]);
    }),
    ("atomic", Cause::OPERATION_OPCODE, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp(10), 1)), &[7; 24]);
    }),
    ("tagged READ request", Cause::OPERATION_OPCODE, |s| {
        let header = tagged(RdmaOp::READ_REQUEST, s.open.rkey(), s.open.addr());
        s.peer.say(&Header::Tagged(header), &[7; 24]);
    }),
    ("SEND on the queue of READs", Cause::OPERATION_OPCODE, |s| {
        let header = Untagged { queue: QueueNumber::READ_REQUEST, ..send(RdmaOp::SEND, 1) };
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("a key that the peer may not invalidate", Cause::OPERATION_INVALIDATE, |s| {
        let header = Untagged { invalidate: s.open.rkey(), ..send(RdmaOp::SEND_SE_INV, 1) };
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("a ULPDU without a header", Cause::MPA_MARKERS, |s| {
        let _ = s.peer.socket.write_all(&[0, 6, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]);
    }),
    ("immediate data", Cause::OPERATION_OPCODE, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp(8), 1)), &[7; 8]);
    }),
    ("reserved operation", Cause::OPERATION_OPCODE, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp(15), 1)), &[7; 24]);
    }),
    ("tagged SEND", Cause::OPERATION_OPCODE, |s| {
        let header = tagged(RdmaOp::SEND, s.open.rkey(), s.open.addr());
        s.peer.say(&Header::Tagged(header), &[7; 24]);
    }),
    ("response to nothing", Cause::OPERATION_OPCODE, |s| {
        let header = tagged(RdmaOp::READ_RESPONSE, s.open.rkey(), s.open.addr());
        s.peer.say(&Header::Tagged(header), &[7; 16]);
    }),
    ("queue", Cause::UNTAGGED_QUEUE, |s| {
        let header = Untagged { queue: QueueNumber(3), ..send(RdmaOp::SEND, 1) };
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("message number", Cause::UNTAGGED_MSN, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp::SEND, 2)), &[7; 24]);
    }),
    ("message offset", Cause::UNTAGGED_MO, |s| {
        let mut header = send(RdmaOp::SEND, 1);
        header.control.last = false;
        s.peer.say(&Header::Untagged(header), &[7; 24]);
        s.peer.say(&Header::Untagged(Untagged { mo: 20, ..send(RdmaOp::SEND, 1) }), &[7; 24]);
    }),
    ("too long for the receive", Cause::UNTAGGED_TOO_LONG, |s| {
        s.peer.say(&Header::Untagged(send(RdmaOp::SEND, 1)), &[7; 101]);
    }),
    ("no receive", Cause::UNTAGGED_NO_BUFFER, |s| {
        for msn in 1..=5 {
            s.peer.say(&Header::Untagged(send(RdmaOp::SEND, msn)), &[7; 24]);
        }
    }),
    ("unknown key", Cause::TAGGED_INVALID_STAG, |s| {
        s.peer.say(&Header::Tagged(tagged(RdmaOp::WRITE, Rkey(0x00de_ad00), 0)), &[7; 8]);
    }),
    ("beyond the end", Cause::TAGGED_BOUNDS, |s| {
        let end = s.open.addr() + OPEN as u64 - 4;
        s.peer.say(&Header::Tagged(tagged(RdmaOp::WRITE, s.open.rkey(), end)), &[7; 8]);
    }),
    ("READ beyond the end", Cause::PROTECTION_BOUNDS, |s| {
        let (header, payload) = read(1, s.open.rkey(), s.open.addr(), 0x7fff_ffff);
        s.peer.say(&header, &payload);
    }),
    ("unknown key to invalidate", Cause::OPERATION_INVALIDATE, |s| {
        let invalidate = Rkey(0x00de_ad00);
        let header = Untagged { invalidate, ..send(RdmaOp::SEND_INV, 1) };
        s.peer.say(&Header::Untagged(header), &[7; 24]);
    }),
    ("short READ request", Cause::UNTAGGED_MO, |s| {
        let (header, _) = read(1, s.open.rkey(), s.open.addr(), 8);
        s.peer.say(&header, &[0; 20]);
    }),
];

#[test]
fn wrong_messages_are_answered_by_a_terminate_and_the_end() {
    let ip = Ipv4Addr::new(127, 157, 0, 1).into();
    for (what, cause, say) in WRONG {
        let (mut served, _) = served(ip, true, PLAIN);
        say(&mut served);
        let (header, payload) = served.peer.hear().unwrap_or_else(|| panic!("{what}: no answer"));
        let wanted = Untagged { queue: QueueNumber::TERMINATE, ..send(RdmaOp::TERMINATE, 1) };
        assert_eq!(header, Header::Untagged(wanted), "{what}");
        assert_eq!(Terminate::parse(&payload).unwrap().0.cause, *cause, "{what}");
        assert_eq!(served.peer.hear(), None, "{what}");
        served.far.wait_disconnected().unwrap();
    }
}

#[test]
fn a_wrong_crc_is_answered_and_nothing_completes() {
    let ip = Ipv4Addr::new(127, 158, 0, 1).into();
    let (mut served, _) = served(ip, true, PLAIN);
    let mut bytes = served.peer.segment(&Header::Untagged(send(RdmaOp::SEND, 1)), &[7; 24]);
    *bytes.last_mut().unwrap() ^= 1;
    served.peer.socket.write_all(&bytes).unwrap();
    let (_, payload) = served.peer.hear().unwrap();
    assert_eq!(Terminate::parse(&payload).unwrap().0.cause, Cause::MPA_CRC);
    served.far.wait_disconnected().unwrap();
    assert_eq!(served.far.recv_cq().wait().unwrap().status, WcStatus::Flushed);
}

/// Orderly, in the middle of a segment, by a reset, and with a TERMINATE.
#[test]
fn a_peer_may_end_in_any_way() {
    let ip = Ipv4Addr::new(127, 159, 0, 1).into();
    for way in 0..4 {
        let (mut served, _) = served(ip, true, PLAIN);
        let bytes = served.peer.segment(&Header::Untagged(send(RdmaOp::SEND, 1)), &[7; 90]);
        match way {
            0 => {}
            1 => served.peer.socket.write_all(&bytes[..50]).unwrap(),
            2 => {
                // What is unread when a socket is closed makes it a reset.
                let open = &served.open;
                let (header, payload) = read(1, open.rkey(), open.addr(), 8);
                served.peer.say(&header, &payload);
                served.peer.socket.peek(&mut [0]).unwrap();
            }
            _ => {
                let header =
                    Untagged { queue: QueueNumber::TERMINATE, ..send(RdmaOp::TERMINATE, 1) };
                served.peer.say(&Header::Untagged(header), &[0x11, 0, 0, 0]);
                assert_eq!(served.peer.hear(), None);
            }
        }
        let Served { far, peer, .. } = served;
        drop(peer);
        far.wait_disconnected().unwrap();
        assert_eq!(far.recv_cq().wait().unwrap().status, WcStatus::Flushed, "{way}");
    }
}

/// A device connects to a peer that gives this reply.
pub(super) fn answered(ip: IpAddr, crc: bool, reply: &[u8]) -> (Result<Connection, Error>, Peer) {
    let client = manager(ip, crc);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; 24]).unwrap();
            socket.write_all(reply).unwrap();
            Peer::new(socket, crc || reply[16] & 0x40 != 0)
        });
        let near = Connector::new(&client).cap(QpCap::new(8, 8)).connect(to);
        (near, peer.join().unwrap())
    })
}

#[test]
fn replies_of_every_kind() {
    let ip = Ipv4Addr::new(127, 160, 0, 1).into();
    let accepted: [(&str, &[u8]); 4] = [
        ("revision 2", b"MPA ID Rep Frame\x10\x02\0\x04\0\x04\0\x04"),
        ("CRC", b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04"),
        ("revision 1", b"MPA ID Rep Frame\0\x01\0\0"),
        ("one READ at a time", b"MPA ID Rep Frame\x10\x02\0\x04\0\x01\0\x01"),
    ];
    for (what, reply) in accepted {
        let (near, mut peer) = answered(ip, false, reply);
        let mut near = near.unwrap();
        let mr = near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        near.post_send([SendWr::new(1, SendOp::Send, mr.data(0..9))]).unwrap();
        let (header, payload) = peer.hear().unwrap();
        assert_eq!(header, Header::Untagged(send(RdmaOp::SEND, 1)), "{what}");
        assert_eq!(payload, [0; 9], "{what}");
        peer.say(&Header::Untagged(send(RdmaOp::SEND, 1)), &[]);
        near.wait_disconnected().unwrap();
    }
}

#[test]
fn rejections_carry_what_the_peer_says() {
    let ip = Ipv4Addr::new(127, 161, 0, 1).into();
    let replies: [&[u8]; 2] = [
        b"MPA ID Rep Frame\x30\x02\0\x0b\0\x04\0\x04go away",
        b"MPA ID Rep Frame\x20\x01\0\x07go away",
    ];
    for reply in replies {
        let (near, _peer) = answered(ip, true, reply);
        let Err(Error::Cm(CmError::Rejected { reason, private_data })) = near else {
            panic!("{near:?}");
        };
        assert_eq!((reason, &*private_data), (RejReason::CONSUMER, &b"go away"[..]));
    }
    // More READs than the request has offered.
    let (near, _peer) = answered(ip, true, b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\x03\xe8");
    assert!(near.is_err(), "{near:?}");
}
