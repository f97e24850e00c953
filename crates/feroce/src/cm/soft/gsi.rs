//! Queue pair 1 (the GSI), which sends and receives management datagrams.

use std::collections::BTreeMap;
use std::sync::Arc;

use feroce_cm::{Peer, Transmit};
use feroce_engine::{
    AddrVec, AhId, CqPoller, CreatedQp, Data, Dest, Engine, LossPolicy, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, RecvQueue, RecvWr, SendFlags, SendOp, SendQueue, SendWr, Sge, SgeList,
    WcStatus,
};
use feroce_mem::{Access, Iova, PdId, Region};
use feroce_train::{Framing, InlineBytes, Instant, PortAddr};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{GRH_NEXT_HEADER, Gid, Grh, GrhView, Ipv4, Lid, Lkey, Psn, Qkey, Qpn};

use super::subnet;
use crate::Error;
use crate::attr::entry_index;

/// Received datagrams that may wait for the connection manager. Further ones are lost, and their
/// senders repeat them.
const RECEIVES: u32 = 1024;

/// Datagrams that may wait to be sent.
const SENDS: u32 = 256;

/// Most address handles to peers that are kept.
const MAX_AHS: usize = 1024;

/// Bytes of a receive: the header in front of every datagram, and the datagram.
const SLOT: usize = Grh::LEN + MAD_LEN;

/// Work request id of sends. That of a receive is the number of its slot.
const SEND_ID: u64 = u64::MAX;

/// The well-known queue key of queue pair 1.
const QKEY: Qkey = Qkey(0x8001_0000);

/// What tells address handles apart: index of our own GID, the peer, the service level, and which
/// of the LIDs of our port the handle uses.
type AhKey = (u16, PortAddr, u8, u8);

/// The queue pair and what it works with.
#[derive(Debug)]
pub(super) struct Gsi {
    pd: PdId,
    poller: CqPoller,
    sq: SendQueue,
    rq: Option<RecvQueue>,
    region: Arc<Region>,
    lkey: Lkey,
    ahs: BTreeMap<AhKey, AhId>,
    /// The service level on the way to ports of an InfiniBand subnet, as their datagrams had it.
    levels: BTreeMap<Lid, u8>,
    in_flight: u32,
}

impl Gsi {
    /// Creates queue pair 1. On an error, the objects created so far stay, and the device has no
    /// queue pair 1.
    pub(super) fn new(engine: &mut Engine, now: Instant, psn: Psn) -> Result<Self, Error> {
        let pd = engine.alloc_pd()?;
        let (cq, poller) = engine.create_cq(RECEIVES + SENDS)?;
        let cap = QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD_LEN as u32,
        };
        let CreatedQp { sq, rq, .. } = engine.create_gsi(QpInitAttr {
            qp_type: QpType::Ud,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
            loss: LossPolicy::Retransmit,
            congestion_control: false,
            hears_itself: true,
        })?;
        let region = Region::alloc(SLOT * RECEIVES as usize)?;
        let len = region.len();
        let access = Access::LOCAL_WRITE;
        let lkey = engine.reg_mr(pd, Arc::clone(&region), 0, len, Iova::At(0), access)?;
        engine.modify_qp(now, Qpn::QP1, &QpAttr::init_ud(QKEY))?;
        engine.modify_qp(now, Qpn::QP1, &QpAttr::to(QpState::Rtr))?;
        engine.modify_qp(now, Qpn::QP1, &QpAttr::rts_unreliable(psn))?;
        let (ahs, levels) = (BTreeMap::new(), BTreeMap::new());
        let mut gsi = Self { pd, poller, sq, rq, region, lkey, ahs, levels, in_flight: 0 };
        (0..u64::from(RECEIVES)).for_each(|slot| gsi.post(slot));
        Ok(gsi)
    }

    /// Posts the receive of a slot.
    fn post(&mut self, slot: u64) {
        let sge = Sge { addr: slot * SLOT as u64, len: SLOT as u32, lkey: self.lkey };
        if let Some(rq) = &mut self.rq {
            // The queue has room for every slot, so posting does not fail.
            let _ = rq.post(RecvWr { wr_id: slot, sges: SgeList::from(sge) });
        }
    }

    /// Passes received datagrams to `sink`. `own` is the LID of our port, on InfiniBand.
    pub(super) fn receive(&mut self, own: Lid, mut sink: impl FnMut(Peer, &[u8])) {
        while let Some(cqe) = self.poller.poll() {
            if cqe.wr_id == SEND_ID {
                self.in_flight = self.in_flight.saturating_sub(1);
                continue;
            }
            let mut bytes = [0; SLOT];
            let at = cqe.wr_id as usize * SLOT;
            let len = (cqe.byte_len as usize).min(SLOT);
            let is_read = self.region.read_at(at, &mut bytes).is_ok();
            if cqe.status == WcStatus::Success && is_read && cqe.src_qp == Qpn::QP1 {
                let (header, mad) = bytes[..len].split_at(Grh::LEN.min(len));
                if cqe.slid != Lid(0) {
                    self.learn(cqe.slid, cqe.sl);
                    let local = Lid(own.0 | u16::from(cqe.dlid_path_bits));
                    sink(Peer::in_subnet(local, cqe.slid), mad);
                } else if let Some(peer) = peer_of(header) {
                    sink(peer, mad);
                }
            }
            self.post(cqe.wr_id);
        }
    }

    /// Remembers the service level on the way to a port.
    pub(super) fn learn(&mut self, lid: Lid, sl: u8) {
        if self.levels.len() >= MAX_AHS && !self.levels.contains_key(&lid) {
            self.levels.clear();
        }
        self.levels.insert(lid, sl);
    }

    /// Whether another datagram can be sent.
    pub(super) fn has_room(&mut self) -> bool {
        self.sq.free() > 0 && self.in_flight < SENDS
    }

    /// Sends a datagram. One that cannot be sent counts as lost.
    pub(super) fn send(&mut self, engine: &mut Engine, mad: &Transmit) {
        let Some(ah) = self.ah(engine, mad.peer) else { return };
        let data = Data::Inline(InlineBytes::new(&mad.bytes));
        let dest = Dest::Ud { ah, qpn: Qpn::QP1, qkey: QKEY };
        let wr =
            SendWr { wr_id: SEND_ID, op: SendOp::Send, data, flags: SendFlags::SIGNALED, dest };
        if self.sq.post(wr).is_ok() {
            self.in_flight += 1;
        }
    }

    /// The address handle of a peer.
    fn ah(&mut self, engine: &mut Engine, peer: Peer) -> Option<AhId> {
        let av = if peer.is_subnet() {
            AddrVec {
                dlid: peer.remote.lid,
                sl: self.levels.get(&peer.remote.lid).copied().unwrap_or(0),
                src_path_bits: subnet::path_bits(engine, peer.local.lid),
                ..AddrVec::default()
            }
        } else {
            let sgid_index = entry_index(engine.gids(), peer.local.gid, peer.framing)?;
            AddrVec { dgid: peer.remote.gid, sgid_index, ..AddrVec::default() }
        };
        let key = (av.sgid_index, peer.remote, av.sl, av.src_path_bits);
        if let Some(&ah) = self.ahs.get(&key) {
            return Some(ah);
        }
        if self.ahs.len() >= MAX_AHS {
            if self.in_flight > 0 {
                return None;
            }
            for ah in std::mem::take(&mut self.ahs).into_values() {
                let _ = engine.destroy_ah(ah);
            }
        }
        let ah = engine.create_ah(self.pd, av).ok()?;
        self.ahs.insert(key, ah);
        Some(ah)
    }
}

/// Sender and receiver of a datagram, from the header in front of it (annex A17): that of RoCEv1 is
/// a GRH, which says that a BTH follows.
fn peer_of(header: &[u8]) -> Option<Peer> {
    let grh = GrhView::new_checked(header).ok()?;
    if let Ok((ip, _)) = Ipv4::parse(header.get(Grh::IPV4_AT..)?)
        && header[..Grh::IPV4_AT].iter().all(|&byte| byte == 0)
    {
        let (remote, local) = (Gid::from_ipv4(ip.src), Gid::from_ipv4(ip.dst));
        return Some(Peer::new(local, remote));
    }
    let framing = match grh.to_repr().next_header {
        GRH_NEXT_HEADER => Framing::RoceV1,
        _ => Framing::RoceV2,
    };
    Some(Peer { framing, ..Peer::new(grh.dgid(), grh.sgid()) })
}
