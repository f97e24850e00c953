//! Golden captures of Linux Soft-RoCE, as packets of the virtual wire.
//!
//! Both programs of a capture are deterministic: the client's memory is at `CLIENT`, the server's
//! at `SERVER`, byte `i` of either follows from `i`, and the first PSN is known.

use std::path::Path;
use std::sync::Arc;

use feroce_engine::{AddrVec, QpAttr, QpType};
use feroce_mem::{Access, Iova};
use feroce_train::{Ecn, Instant, RxMeta};
use feroce_wire::{Frame, Gid, Lkey, Net, Pmtu, Psn, Qkey, Qpn};

use crate::script::no_credits;
use crate::{Connection, Host, Packet, START, TestQp, address, bring_up};

/// Where the client's memory starts.
pub const CLIENT: u64 = 0x1000_0000;
/// Where the server's memory starts.
pub const SERVER: u64 = 0x2000_0000;
/// How much memory either has.
pub const LEN: usize = 131_072;

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The packet.
    pub packet: Packet,
    /// Sent by the side that sent the first packet.
    pub from_client: bool,
}

/// The packets of a capture that a link would hand to an engine: those with the right ICRC.
pub fn capture(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    let bytes = std::fs::read(path.join(name).with_extension("pcap")).expect("capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "{name}: not a classic little-endian pcap");
    let mut packets = Vec::new();
    let mut client = None;
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        let frame = Frame::parse_ethernet(&bytes[at + 16..at + 16 + len]).expect("a RoCE frame");
        at += 16 + len;
        let Net::V4(ip, udp) = frame.net else {
            panic!("{name}: not IPv4");
        };
        let client = *client.get_or_insert(ip.src);
        if !frame.icrc_ok() {
            continue;
        }
        let meta = RxMeta {
            src: Gid::from_ipv4(ip.src).into(),
            dst: Gid::from_ipv4(ip.dst).into(),
            udp_sport: udp.src_port,
            traffic_class: ip.dscp << 2,
            hop_limit: ip.ttl,
            ecn: Ecn::from_bits(ip.ecn),
            ..RxMeta::default()
        };
        let packet = Packet { meta, bytes: frame.transport.to_vec() };
        packets.push(Captured { packet, from_client: ip.src == client });
    }
    packets
}

/// One side of a captured connection, played by our engine.
#[derive(Debug)]
pub struct Side {
    /// The time.
    pub now: Instant,
    /// Its host.
    pub host: Host,
    /// Its queue pair.
    pub qp: TestQp,
    /// Key of the memory at its captured addresses.
    pub key: Lkey,
    /// Where its memory starts.
    pub base: u64,
}

/// How a side is set up; see the captures for what the programs did.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Type of the queue pair.
    pub qp_type: QpType,
    /// Path MTU.
    pub mtu: Pmtu,
    /// First PSN of the client; that of the server is 0x1000 later.
    pub psn: u32,
    /// Attributes that replace the defaults.
    pub attr: QpAttr,
}

impl Default for Setup {
    fn default() -> Self {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = QpAttr {
            access: Some(remote),
            max_dest_rd_atomic: Some(4),
            max_rd_atomic: Some(4),
            timeout: Some(19),
            ..QpAttr::default()
        };
        Self { qp_type: QpType::Rc, mtu: Pmtu::B1024, psn: 0x100, attr }
    }
}

impl Side {
    /// The server of a capture, connected to queue pair `peer`.
    pub fn server(setup: &Setup, peer: Qpn) -> Self {
        let (psn, sq_psn) = (Psn::new(setup.psn), Psn::new(setup.psn + 0x1000));
        let side = Self::new(setup, SERVER, peer, sq_psn, psn, |i| i.wrapping_mul(7) + 3);
        side.host.region.store_u64(8, 1000).unwrap();
        side
    }

    /// The client of a capture, connected to queue pair `peer`.
    pub fn client(setup: &Setup, peer: Qpn) -> Self {
        let (psn, rq_psn) = (Psn::new(setup.psn), Psn::new(setup.psn + 0x1000));
        Self::new(setup, CLIENT, peer, psn, rq_psn, |i| i.wrapping_mul(13) + 5)
    }

    fn new(
        setup: &Setup,
        base: u64,
        peer: Qpn,
        sq_psn: Psn,
        rq_psn: Psn,
        byte: impl Fn(usize) -> usize,
    ) -> Self {
        let number = if base == CLIENT { 1 } else { 2 };
        let config = feroce_engine::Config { tail_probe: false, ..no_credits() };
        let mut host = Host::with_config(number, config);
        let now = START;
        let bytes: Vec<u8> = (0..LEN).map(|i| byte(i) as u8).collect();
        host.region.write_at(0, &bytes).unwrap();
        let region = Arc::clone(&host.region);
        let access = setup.attr.access.unwrap_or(Access::empty())
            | Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::MW_BIND;
        let key = host.engine.reg_mr(host.pd, region, 0, LEN, Iova::At(base), access).unwrap();
        let init = host.init_attr(setup.qp_type);
        let mut qp = host.create_qp(init);
        qp.first_psn = sq_psn;
        let dgid = address(3 - number);
        if setup.qp_type == QpType::Ud {
            let qkey = Qkey(0x1122_3344);
            let connection = Connection { qkey, sq_psn, ..Connection::new(dgid, peer, setup.mtu) };
            host.connect(now, qp.qpn, &connection);
        } else {
            let to = (dgid, peer, rq_psn);
            bring_up(&mut host, now, &qp, to, setup.mtu, &setup.attr);
        }
        Self { now, host, qp, key, base }
    }

    /// The path to the other side.
    pub fn av(&self) -> AddrVec {
        let other = if self.base == CLIENT { 2 } else { 1 };
        AddrVec { dgid: address(other), ..AddrVec::default() }
    }

    /// Posts receives as the programs do.
    pub fn post_receives(&mut self, count: u64, len: u32) {
        for i in 0..count {
            let addr = self.base + 65_536 + (i % 4) * 16_384;
            let sge = feroce_engine::Sge { addr, len, lkey: self.key };
            let wr = feroce_engine::RecvWr { wr_id: i + 1, sges: sge.into() };
            self.qp.rq.as_mut().unwrap().post(wr).unwrap();
        }
    }

    /// Delivers a captured packet, addressed to us, and returns what we send.
    pub fn deliver(&mut self, packet: &Packet) -> Vec<Packet> {
        let mut packet = packet.clone();
        packet.meta.src = self.av().dgid.into();
        packet.meta.dst = self.host.gid.into();
        self.now = self.now.plus_nanos(1000);
        self.host.receive(self.now, &packet);
        self.host.transmit(self.now)
    }
}
