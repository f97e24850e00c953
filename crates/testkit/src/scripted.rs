//! A host whose only peer is the test: it makes requests and answers by hand.

use feroce_engine::{
    AsyncEvent, Config, LossPolicy, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendWr, WcStatus,
};
use feroce_train::{Ecn, Instant, RxMeta};
use feroce_wire::{AtomicAckEth, Bth, Gid, Op, Opcode, Pmtu, Psn, Qpn, Rkey, Service, Syndrome};

use crate::script::{ACK, aeth, no_credits, with};
use crate::{Host, Packet, START, TestQp, address, bring_up, header};

/// Queue pair number of the scripted peer.
pub const PEER_QPN: Qpn = Qpn::new(0x42);
/// First PSN that the scripted peer sends.
pub const PEER_PSN: u32 = 0x500;
/// First PSN that the engine sends to it.
pub const OUR_PSN: u32 = 0x900;

/// See the module documentation.
#[derive(Debug)]
pub struct Scripted {
    /// The time.
    pub now: Instant,
    /// The host.
    pub host: Host,
    /// Its queue pair.
    pub qp: TestQp,
    /// Address of the peer.
    pub peer: Gid,
    /// Service of packets that the peer sends.
    pub service: Service,
}

impl Scripted {
    /// A queue pair connected to the peer.
    pub fn new(qp_type: QpType, with: QpAttr) -> Self {
        Self::with_config(qp_type, with, Config::default())
    }

    /// The same, with an engine configured so.
    pub fn with_config(qp_type: QpType, with: QpAttr, config: Config) -> Self {
        Self::made(config, with, OUR_PSN, |host| host.init_attr(qp_type))
    }

    /// A queue pair created with what `init` returns, whose requests start with PSN `first`.
    pub fn made(
        config: Config,
        with: QpAttr,
        first: u32,
        init: impl FnOnce(&mut Host) -> QpInitAttr,
    ) -> Self {
        let mut host = Host::with_config(1, config);
        let init = init(&mut host);
        let mut qp = host.create_qp(init);
        qp.first_psn = Psn::new(first);
        let peer = address(99);
        bring_up(&mut host, START, &qp, (peer, PEER_QPN, Psn::new(PEER_PSN)), Pmtu::B1024, &with);
        let service = match init.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
        };
        Self { now: START, host, qp, peer, service }
    }

    /// A reliable connection that does not advertise credits, so that acknowledgements do not
    /// depend on how many receives are posted.
    pub fn rc() -> Self {
        Self::rc_with(QpAttr::default())
    }

    /// The same with attributes.
    pub fn rc_with(with: QpAttr) -> Self {
        Self::with_config(QpType::Rc, with, no_credits())
    }

    /// A reliable connection to which a lost packet is fatal.
    pub fn lossless() -> Self {
        Self::made(no_credits(), QpAttr::default(), OUR_PSN, |host| QpInitAttr {
            loss: LossPolicy::Fatal,
            ..host.init_attr(QpType::Rc)
        })
    }

    /// A packet from the peer: `rest` is headers and payload after the BTH.
    pub fn packet(&self, op: Op, psn: u32, ack_req: bool, rest: &[u8]) -> Packet {
        let pad = rest.len().wrapping_neg() & 3;
        let bth = Bth {
            ack_req,
            pad: pad as u8,
            ..Bth::new(Opcode::new(self.service, op), self.qp.qpn, Psn::new(psn))
        };
        let mut bytes = header(|out| bth.emit(out));
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len() + pad, 0);
        let meta = RxMeta {
            src: self.peer.into(),
            dst: self.host.gid.into(),
            ecn: Ecn::Capable,
            hop_limit: 64,
            ..RxMeta::default()
        };
        Packet { meta, bytes }
    }

    /// Delivers a packet of the peer and returns what the engine sends.
    pub fn deliver(&mut self, packet: &Packet) -> Vec<Packet> {
        self.now = self.now.plus_nanos(1000);
        self.host.receive(self.now, packet);
        self.host.transmit(self.now)
    }

    /// The peer sends a packet. Returns what the engine sends.
    pub fn send(&mut self, op: Op, psn: u32, ack_req: bool, rest: &[u8]) -> Vec<Packet> {
        let packet = self.packet(op, psn, ack_req, rest);
        self.deliver(&packet)
    }

    /// The peer acknowledges or refuses `psn`.
    pub fn answer(&mut self, psn: u32, syndrome: Syndrome) -> Vec<Packet> {
        self.send(Op::Acknowledge, psn, false, &aeth(syndrome, 0))
    }

    /// The peer answers a read.
    pub fn respond(&mut self, op: Op, psn: u32, data: &[u8]) -> Vec<Packet> {
        let head = if op == Op::ReadResponseMiddle { Vec::new() } else { aeth(ACK, 0) };
        self.send(op, psn, false, &with(head, data))
    }

    /// The peer answers an atomic.
    pub fn respond_atomic(&mut self, psn: u32, original: u64) -> Vec<Packet> {
        let eth = header(|out| AtomicAckEth { original }.emit(out));
        self.send(Op::AtomicAcknowledge, psn, false, &with(aeth(ACK, 0), &eth))
    }

    /// Posts a receive.
    pub fn recv(&mut self, wr_id: u64, addr: u64, len: u32) {
        let wr: RecvWr = self.host.recv(wr_id, addr, len);
        self.qp.rq.as_mut().unwrap().post(wr).unwrap();
    }

    /// Posts a work request and returns what the engine sends.
    pub fn post(&mut self, wr: SendWr) -> Vec<Packet> {
        self.post_all([wr])
    }

    /// Posts several requests and returns what the engine sends.
    pub fn post_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Vec<Packet> {
        for wr in wrs {
            self.qp.sq.post(wr).unwrap();
        }
        self.host.transmit(self.now)
    }

    /// Advances the time by `ns` and returns what the engine sends.
    pub fn wait(&mut self, ns: u64) -> Vec<Packet> {
        self.now = self.now.plus_nanos(ns);
        self.host.engine.handle_timeout(self.now);
        self.host.transmit(self.now)
    }

    /// Which requests completed, and with which status.
    pub fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.host.poll_all().iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// State of the queue pair.
    pub fn state(&self) -> QpState {
        self.qp.sq.state()
    }

    /// The key of all memory.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.host.lkey.0)
    }

    /// Asynchronous events so far.
    pub fn events(&mut self) -> Vec<AsyncEvent> {
        self.host.async_events()
    }
}
