//! Packets whose payload does not exist.

use feroce_mem::{Landing, Source};
use feroce_train::{Ecn, RemotePayload, RxMeta, RxTrain, Train};
use feroce_wire::{Bth, Ethernet, Frame, ImmDt, Ipv4, Net, Op, Pmtu, Psn, Qpn, Reth, Service, Udp};

use super::WireLength;

/// Bytes around a RoCEv2 packet over IPv4: preamble 8, Ethernet 14, IPv4 20, UDP 8, ICRC 4, frame
/// check sequence 4, gap 12.
const AROUND: u32 = 70;

/// Bytes around an InfiniBand packet: start and end 2, LRH 8, ICRC 4, VCRC 2.
const AROUND_INFINIBAND: u32 = 16;

/// Bytes of a frame before the base transport header, and behind the payload.
const BEFORE_TRANSPORT: usize = Ethernet::MIN_LEN + Ipv4::MIN_LEN + Udp::LEN;
const ICRC_LEN: usize = 4;

impl WireLength {
    /// Bytes of a full packet.
    pub(super) fn packet_bytes(self, mtu: Pmtu) -> u32 {
        self.overhead()
            + match self {
                Self::RoceV2 | Self::Infiniband => mtu.bytes() as u32,
                Self::Model { payload, .. } => payload,
            }
    }

    /// Bytes of a packet in the middle of a message beside its payload.
    pub(super) fn overhead(self) -> u32 {
        match self {
            Self::RoceV2 => AROUND + Bth::LEN as u32,
            Self::Infiniband => AROUND_INFINIBAND + Bth::LEN as u32,
            Self::Model { overhead, .. } => overhead,
        }
    }
}

/// The longest transport headers: flows are writes, and the last packet of one may have immediate
/// data.
const HEADERS_LEN: usize = Bth::LEN + Reth::LEN + ImmDt::LEN;

/// Transport headers of a packet, and how long its payload would be. A fabric holds many packets,
/// so what all packets of a flow have in common is in [`Routing`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    headers: [u8; HEADERS_LEN],
    headers_len: u8,
    /// It goes from the receiver of its flow to the sender.
    is_back: bool,
    /// It comes from the layer below the engine: the headers are two PSNs.
    is_kept: bool,
    payload_len: u32,
    /// The number of its flow.
    pub(super) flow: u32,
}

/// Headers below the transport, of each flow and in both directions: the packets of a queue pair
/// have the same.
#[derive(Debug)]
pub(super) struct Routing(Vec<[Option<RxMeta>; 2]>);

impl Routing {
    pub(super) fn new(flows: usize) -> Self {
        Self(vec![[None; 2]; flows])
    }

    /// The headers of a packet, if the engine has sent one in this direction.
    pub(super) fn of(&self, body: &Body) -> Option<&RxMeta> {
        self.0[body.flow as usize][usize::from(body.is_back)].as_ref()
    }

    /// The engine sends a train of a flow.
    fn note(&mut self, body: &Body, train: &Train) {
        let meta = &mut self.0[body.flow as usize][usize::from(body.is_back)];
        meta.get_or_insert_with(|| RxMeta::from(&train.path));
        debug_assert_eq!(*meta, Some(RxMeta::from(&train.path)), "a flow has one path");
    }
}

/// What a packet is to the layer below the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A request of the engine.
    Request(Psn),
    /// An acknowledgement of everything up to a PSN.
    Acknowledge(Psn),
    /// Something else of the engine.
    Other,
    /// Selective repeat, from layer to layer: the PSN that is awaited, and one that is kept.
    Kept(Psn, Psn),
}

/// Headers of a packet that says what is kept: a BTH, and two PSNs.
const KEPT_LEN: u8 = Bth::LEN as u8 + 8;

impl Body {
    /// Packet `i` of a train.
    pub(super) fn new(train: &Train, i: u32, is_back: bool, routing: &mut Routing) -> Self {
        let headers_len = Bth::LEN + train.ext(i).as_slice().len();
        let mut headers = [0; HEADERS_LEN];
        train.emit_head(i, &mut headers);
        let body = Self {
            headers,
            headers_len: headers_len as u8,
            is_back,
            is_kept: false,
            payload_len: (train.packet_len(i) - headers_len) as u32,
            // Flows are told apart by the label, which is not zero.
            flow: train.path.flow_label - 1,
        };
        routing.note(&body, train);
        body
    }

    /// Tells the sender of a packet which one is awaited and which is kept.
    pub(super) fn kept(flow: u32, awaited: Psn, kept: Psn) -> Self {
        let mut headers = [0; HEADERS_LEN];
        headers[..3].copy_from_slice(&awaited.to_be_bytes());
        headers[3..6].copy_from_slice(&kept.to_be_bytes());
        let (headers_len, payload_len) = (KEPT_LEN, 0);
        Self { headers, headers_len, is_back: true, is_kept: true, payload_len, flow }
    }

    /// What it is to the layer below the engine.
    pub(super) fn kind(&self) -> Kind {
        if self.is_kept {
            let [a, b, c, d, e, f, ..] = self.headers;
            return Kind::Kept(Psn::from_be_bytes([a, b, c]), Psn::from_be_bytes([d, e, f]));
        }
        let Ok((bth, _)) = Bth::parse(&self.headers[..Bth::LEN]) else { return Kind::Other };
        match bth.opcode.decode() {
            Some((_, Op::Acknowledge)) => Kind::Acknowledge(bth.psn),
            Some((Service::Rc, op)) if op.is_request() => Kind::Request(bth.psn),
            _ => Kind::Other,
        }
    }

    /// Bytes that it takes on a link.
    pub(super) fn wire_len(&self, wire: WireLength, mtu: u32) -> u32 {
        match wire {
            WireLength::RoceV2 => AROUND + u32::from(self.headers_len) + self.payload_len,
            WireLength::Infiniband => {
                AROUND_INFINIBAND + u32::from(self.headers_len) + self.payload_len
            }
            WireLength::Model { answer, .. } if self.payload_len == 0 => answer,
            WireLength::Model { payload, overhead, .. } => {
                let is_full = self.payload_len == mtu;
                overhead + if is_full { payload } else { self.payload_len.min(payload) }
            }
        }
    }

    /// Whether it carries no payload: an answer, as flows are writes.
    pub(super) fn is_answer(&self) -> bool {
        self.payload_len == 0
    }

    /// The queue pair that it is for.
    pub(super) fn dest_qp(&self) -> Option<Qpn> {
        Bth::parse(&self.headers[..Bth::LEN]).ok().map(|(bth, _)| bth.dest_qp)
    }

    /// Switches may mark packets with payload. Marks on answers would slow down the wrong end.
    pub(super) fn ecn(&self) -> Ecn {
        if self.is_answer() { Ecn::NotCapable } else { Ecn::Capable }
    }

    /// It as an Ethernet frame up to the payload, which does not exist, and the length of the whole
    /// frame. `None` if it is no packet of RoCE.
    pub(super) fn frame(&self, ecn: Ecn, routing: &Routing) -> Option<(Vec<u8>, u32)> {
        let meta = routing.of(self).filter(|_| !self.is_kept)?;
        let (src, dst) = (meta.src.gid.as_ipv4()?, meta.dst.gid.as_ipv4()?);
        let headers_len = usize::from(self.headers_len);
        let mut transport = self.headers[..headers_len].to_vec();
        transport.resize(headers_len + self.payload_len as usize, 0);
        let mut frame = Frame::v4(src, dst, meta.udp_sport, &transport).ok()?;
        if let Net::V4(ip, _) = &mut frame.net {
            (ip.dscp, ip.ecn) = (meta.traffic_class >> 2, ecn.to_bits());
        }
        let mac = |[a, b, c, d]: [u8; 4]| [2, 0, a, b, c, d];
        let frame = frame.on_ethernet(mac(src), mac(dst)).sealed();
        let mut bytes = vec![0; BEFORE_TRANSPORT + transport.len() + ICRC_LEN];
        let len = frame.emit(&mut bytes).ok()?;
        if self.payload_len > 0 {
            bytes.truncate(BEFORE_TRANSPORT + headers_len);
        }
        Some((bytes, len as u32))
    }

    /// Hands it to an engine.
    pub(super) fn receive(&self, meta: RxMeta, handle: impl FnOnce(&RxTrain<'_>)) {
        let bytes = &self.headers[..usize::from(self.headers_len)];
        let len = self.payload_len as usize;
        let remote =
            (len > 0).then_some(RemotePayload { source: &Absent, offset: 0, len, packets: 1 });
        handle(&RxTrain { remote, ..RxTrain::single(meta, bytes) });
    }
}

/// Payload that does not exist: memory keeps what it has.
#[derive(Debug)]
struct Absent;

impl Source for Absent {
    fn fetch(&self, _: usize, _: &mut Landing<'_>) -> bool {
        true
    }
}
