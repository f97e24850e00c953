//! Captured exchanges of the Linux connection manager, with one side replaced by our manager.
//!
//! The test passes the messages of the other side to a manager, repeats the calls of the consumer,
//! and compares the messages of the manager with those of Linux, byte by byte. Only these may
//! differ: our communication ID, our first PSN, and the transaction ID of exchanges that our side
//! starts.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;

use crate::common::{A, B, peer};
use feroce_cm::{
    Accept, Accepts, Ask, Config, ConnId, Connect, Event, Manager, PathParams, Reply, Serves,
    Transport,
};
use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, RejReason, Req, ServiceId};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Bth, Deth, Frame, Gid, Net, Packet, Qpn};

type Mad = [u8; MAD_LEN];

/// Positions of the identifiers in a datagram.
const LOCAL_ID: Range<usize> = 24..28;
const REMOTE_ID: Range<usize> = 28..32;
const TRANSACTION: Range<usize> = 8..16;

/// A message of a capture.
#[derive(Clone)]
struct Said {
    by_client: bool,
    mad: Mad,
    message: CmMessage,
    /// The communication ID of the client, which identifies the connection in this test.
    name: CommId,
    /// The message is a retransmission.
    again: bool,
}

/// The frames of a capture.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let file = std::fs::read(folder.join(format!("{name}.pcap"))).unwrap();
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (frame, next) = after.split_at(len);
        rest = next;
        frames.push(frame.to_vec());
    }
    frames
}

fn capture(name: &str) -> Vec<Said> {
    let mut said: Vec<Said> = Vec::new();
    for frame in frames(name) {
        let frame = Frame::parse_ethernet(&frame).unwrap();
        let Ok(packet) = Packet::parse(frame.transport) else { continue };
        if packet.bth.dest_qp != Qpn::QP1 {
            continue;
        }
        let mad: Mad = frame.transport[Bth::LEN + Deth::LEN..][..MAD_LEN].try_into().unwrap();
        let by_client = matches!(frame.net, Net::V4(ip, _) if Gid::from_ipv4(ip.src) == A);
        let message = CmMessage::parse(&mad).unwrap().1;
        let name = match (&message, by_client) {
            (CmMessage::SidrRep(rep), _) => rep.request_id,
            (_, true) => CommId(u32::from_be_bytes(mad[LOCAL_ID].try_into().unwrap())),
            (_, false) => CommId(u32::from_be_bytes(mad[REMOTE_ID].try_into().unwrap())),
        };
        let again = said.iter().any(|s| s.by_client == by_client && s.message == message);
        said.push(Said { by_client, mad, message, name, again });
    }
    said
}

/// One side of a capture.
struct Replay {
    said: Vec<Said>,
    is_client: bool,
    manager: Manager,
    now: Instant,
    conns: BTreeMap<CommId, ConnId>,
    /// Messages that our manager has sent and Linux has not sent yet.
    pending: VecDeque<Mad>,
    finals: usize,
    /// Which messages of the client the server did not receive.
    lost: fn(usize) -> bool,
}

impl Replay {
    fn new(name: &str, is_client: bool, lost: fn(usize) -> bool) -> Self {
        let ca_guid = if is_client { 0x5054_0aff_fe4d_0001 } else { 0x5054_0aff_fe4d_0002 };
        let mut manager = Manager::new(Config { seed: 3, ca_guid, ..Config::default() });
        let said = capture(name);
        let nobody = RejReason::INVALID_SERVICE_ID;
        let nobody_listens =
            said.iter().any(|s| matches!(&s.message, CmMessage::Rej(rej) if rej.reason == nobody));
        if !is_client && !nobody_listens {
            for (service, serves) in said.iter().filter_map(|s| service_of(&s.message)) {
                let _ = manager.listen(Instant::from_nanos(1), service, Accepts::Any, serves, 8);
            }
        }
        Self {
            said,
            is_client,
            manager,
            now: Instant::from_nanos(1),
            conns: BTreeMap::new(),
            pending: VecDeque::new(),
            finals: 0,
            lost,
        }
    }

    fn run(mut self) -> Self {
        let mut to_server = 0;
        for at in 0..self.said.len() {
            let said = self.said[at].clone();
            to_server += usize::from(said.by_client);
            if said.by_client == self.is_client {
                self.say(&said);
            } else if self.is_client || !(self.lost)(to_server) {
                self.hear(&said, at);
            }
        }
        self
    }

    /// Linux sent a message at this point of the capture, and our manager must send the same.
    fn say(&mut self, said: &Said) {
        match &said.message {
            CmMessage::Req(req) if !said.again => self.connect(req),
            CmMessage::SidrReq(req) if !said.again => {
                let (service, private_data) = (req.service_id, req.private_data);
                let ask = Ask { peer: peer(A), service, private_data };
                self.conns.insert(said.name, self.manager.ask(self.now, &ask));
            }
            CmMessage::Dreq(_) if !said.again => self.disconnect(said.name),
            _ => {}
        }
        self.take();
        let ours = loop {
            if let Some(i) = self.pending.iter().position(|mad| self.is_about(mad, said.name)) {
                break self.pending.remove(i).unwrap();
            }
            // Our manager has not sent this message, so Linux must have retransmitted it: advance
            // to our next timeout.
            assert!(said.again, "Linux says {:?} and we do not", said.message);
            self.now = self.manager.poll_timeout().unwrap();
            self.manager.handle_timeout(self.now);
            self.take();
        };
        let (ours, theirs) = (masked(&ours), masked(&said.mad));
        let shown = |mad: &Mad| CmMessage::parse(mad).map(|(_, message)| message);
        assert_eq!(ours, theirs, "{:?}\n{:?}", shown(&ours), shown(&theirs));
    }

    /// Whether one of our messages belongs to a connection of the capture.
    fn is_about(&self, mad: &Mad, name: CommId) -> bool {
        let id = |at: Range<usize>| CommId(u32::from_be_bytes(mad[at].try_into().unwrap()));
        let is_sidr_rep = mad[17] == 0x18;
        if self.is_client {
            self.conns.get(&name).is_some_and(|conn| conn.comm_id() == id(LOCAL_ID))
        } else {
            id(if is_sidr_rep { LOCAL_ID } else { REMOTE_ID }) == name
        }
    }

    /// The other side sent a message: pass it to our manager.
    fn hear(&mut self, said: &Said, at: usize) {
        if matches!(said.message, CmMessage::Dreq(_)) {
            // If both sides sent DREQ at the same time, our side had sent its own before it
            // received this one.
            let crossed = self.said[at..].iter().any(|s| {
                let is_dreq = matches!(s.message, CmMessage::Dreq(_));
                is_dreq && s.name == said.name && s.by_client == self.is_client && !s.again
            });
            if crossed {
                self.disconnect(said.name);
            }
        }
        let mut mad = said.mad;
        if let Some(conn) = self.conns.get(&said.name) {
            let is_sidr = matches!(said.message, CmMessage::SidrRep(_));
            let field = if is_sidr { LOCAL_ID } else { REMOTE_ID };
            if !matches!(said.message, CmMessage::Req(_) | CmMessage::SidrReq(_)) {
                mad[field].copy_from_slice(&conn.comm_id().0.to_be_bytes());
            }
        }
        let local = if self.is_client { A } else { B };
        self.manager.handle_mad(self.now, peer(local), &mad);
        while let Some(event) = self.manager.poll_event() {
            self.react(&event);
        }
    }

    fn react(&mut self, event: &Event) {
        self.finals += usize::from(event.is_final());
        match event {
            Event::Replied { conn, .. } => self.manager.ready(*conn).unwrap(),
            Event::Request(incoming) => {
                self.conns.insert(incoming.req.local_id, incoming.conn);
                self.answer(incoming.conn, incoming.req.local_id);
            }
            Event::SidrRequest(incoming) => {
                self.conns.insert(incoming.req.request_id, incoming.conn);
                self.answer(incoming.conn, incoming.req.request_id);
            }
            _ => {}
        }
    }

    /// Answers a request as the server of the capture did.
    fn answer(&mut self, conn: ConnId, name: CommId) {
        let said = self.said.iter().find(|s| !s.by_client && s.name == name).unwrap();
        match &said.message {
            CmMessage::Rep(rep) => {
                let accept = Accept {
                    qpn: rep.qpn,
                    srq: rep.srq,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    flow_control: rep.flow_control,
                    rnr_retry: rep.rnr_retry,
                    private_data: rep.private_data,
                };
                self.manager.accept(self.now, conn, &accept).unwrap();
            }
            CmMessage::Rej(rej) => {
                self.manager.reject(self.now, conn, rej.reason, &rej.private_data).unwrap();
            }
            CmMessage::SidrRep(rep) => {
                let (qpn, qkey, private_data) = (rep.qpn, rep.qkey, rep.private_data);
                self.manager.reply(self.now, conn, &Reply { qpn, qkey, private_data }).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self, req: &Req) {
        let connect = Connect {
            peer: peer(A),
            service: req.service_id,
            transport: Transport::Rc,
            path: PathParams {
                mtu: req.path_mtu().unwrap(),
                flow_label: req.primary.flow_label,
                ..PathParams::default()
            },
            qpn: req.qpn,
            srq: req.srq,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry,
            private_data: req.private_data,
        };
        self.conns.insert(req.local_id, self.manager.connect(self.now, &connect));
    }

    fn disconnect(&mut self, name: CommId) {
        self.manager.disconnect(self.now, self.conns[&name]).unwrap();
    }

    fn take(&mut self) {
        self.pending.extend(std::iter::from_fn(|| self.manager.poll_mad()).map(|mad| mad.bytes));
    }
}

fn service_of(message: &CmMessage) -> Option<(ServiceId, Serves)> {
    match message {
        CmMessage::Req(req) => Some((req.service_id, Serves::Connections)),
        CmMessage::SidrReq(req) => Some((req.service_id, Serves::Datagrams)),
        _ => None,
    }
}

/// The datagram without the fields that may differ.
fn masked(mad: &Mad) -> Mad {
    let mut mad = *mad;
    let (_, message) = CmMessage::parse(&mad).unwrap();
    if matches!(message, CmMessage::Req(_) | CmMessage::SidrReq(_) | CmMessage::Dreq(_)) {
        mad[TRANSACTION].fill(0);
    }
    // A REJ without a listener has no local communication ID (0), and a SIDR_REP has the request ID
    // that the other side chose.
    if !matches!(message, CmMessage::SidrRep(_)) && mad[LOCAL_ID] != [0; 4] {
        mad[LOCAL_ID].fill(1);
    }
    match message {
        CmMessage::Req(_) => mad[24 + 44..24 + 47].fill(0),
        CmMessage::Rep(_) => mad[24 + 20..24 + 23].fill(0),
        _ => {}
    }
    mad
}

/// Replays both sides of a capture. Our manager may send `extra` messages that Linux did not send,
/// because its program had ended.
fn both_sides(name: &str, finals: usize, lost: fn(usize) -> bool, extra: usize) {
    for is_client in [true, false] {
        let mut replay = Replay::new(name, is_client, lost).run();
        replay.take();
        assert!(replay.pending.len() <= extra, "{name}: {} too many", replay.pending.len());
        assert!(replay.pending.iter().all(|mad| mad[17] == 0x16), "{name}: only DREP");
        let expected = if is_client { finals } else { finals - refusals(&replay.said) };
        assert_eq!(replay.finals, expected, "{name}, client: {is_client}");
    }
}

/// Number of requests that the server rejected, or answered with SIDR_REP: its manager reports no
/// final event for these.
fn refusals(said: &[Said]) -> usize {
    let is_refusal = |s: &&Said| {
        !s.by_client && matches!(s.message, CmMessage::Rej(_) | CmMessage::SidrRep(_)) && !s.again
    };
    said.iter().filter(is_refusal).count()
}

const NONE: fn(usize) -> bool = |_| false;

#[test]
fn programs_connect_and_disconnect() {
    both_sides("rping", 1, NONE, 0);
    both_sides("rping_big", 1, NONE, 0);
    both_sides("mtu4096_rping", 1, NONE, 0);
    both_sides("ucmatose", 2, NONE, 0);
    both_sides("cmtime", 3, NONE, 0);
    both_sides("ib_send_bw_cm", 2, NONE, 0);
}

#[test]
fn both_disconnect_at_once() {
    both_sides("rstream", 1, NONE, 0);
    // The client program had ended before it could send DREP.
    both_sides("rdma_server_client", 1, NONE, 1);
}

#[test]
fn refusals_carry_reason_and_private_data() {
    both_sides("cm_gcm", 4, NONE, 0);
    both_sides("cm_reject_nolistener", 1, NONE, 0);
}

#[test]
fn lost_messages_are_repeated() {
    // Every second message to the server was lost after the point of capture.
    both_sides("cm_req_lost", 2, |n| n % 2 == 1, 0);
}

#[test]
fn datagram_services_are_found() {
    both_sides("udaddy", 1, NONE, 0);
}

/// The CM messages alone do not show which side uses which PSN: two sides with the same wrong
/// interpretation would agree. So this test compares them with the data packets of the capture.
#[test]
fn each_side_sends_from_the_number_that_the_other_named() {
    let (mut named, mut sent) = ([None; 2], [None; 2]);
    for frame in frames("rping") {
        let frame = Frame::parse_ethernet(&frame).unwrap();
        let packet = Packet::parse(frame.transport).unwrap();
        let by_client = matches!(frame.net, Net::V4(ip, _) if Gid::from_ipv4(ip.src) == A);
        let side = usize::from(by_client);
        if packet.bth.dest_qp != Qpn::QP1 {
            let is_request = packet.bth.opcode.decode().is_some_and(|(_, op)| op.is_request());
            sent[side] = sent[side].or_else(|| is_request.then_some(packet.bth.psn));
            continue;
        }
        match CmMessage::parse(&frame.transport[Bth::LEN + Deth::LEN..]).unwrap().1 {
            CmMessage::Req(req) => named[0] = Some(req.psn),
            CmMessage::Rep(rep) => named[1] = Some(rep.psn),
            _ => {}
        }
    }
    assert!(sent.iter().all(Option::is_some));
    assert_eq!(sent, named);
}
