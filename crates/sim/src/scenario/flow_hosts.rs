//! Hosts that send flows: engines, and a queue pair at each end of a flow.

use std::collections::BTreeMap;

use feroce_engine::{
    AddrVec, Config, CqId, CqPoller, CreatedQp, Data, Engine, QpAttr, QpCap, QpInitAttr, QpType,
    RecvWr, Remote, SendOp, SendQueue, SendWr, Sge, SgeList, WcStatus,
};
use feroce_mem::{Access, PdId, Region};
use feroce_testkit::{Connection, Mr, init_attr};
use feroce_train::{GidEntry, Instant};
use feroce_wire::{Gid, Imm, Pmtu, Qpn};

use super::Flow;

/// Longest message that one request carries: most of what a request may.
const PIECE: u64 = 1 << 30;

/// Entries of the completion queue: flows that may complete before the host polls.
const CQES: u32 = 1 << 10;

/// An engine with memory that does not exist, because no byte of it is looked at.
#[derive(Debug)]
pub(super) struct FlowHost {
    pub(super) engine: Engine,
    pub(super) gid: Gid,
    pd: PdId,
    cq: CqId,
    poller: CqPoller,
    mr: Mr,
    /// Send queues of flows that are under way, and requests that are not complete.
    sending: BTreeMap<u64, Sending>,
}

/// Set in the number of a receive: it is one, and its flow is the rest.
const ARRIVAL: u64 = 1 << 63;

#[derive(Debug)]
struct Sending {
    /// The queue pair ends with its send queue.
    _sq: SendQueue,
    qpn: Qpn,
    pieces: u64,
    /// The host and the queue pair at the other end.
    peer: (u32, Qpn),
}

/// What a host learns about a flow.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// All its bytes have arrived here.
    Arrived(usize),
    /// It was sent from here and has ended.
    Ended(Ended),
}

/// A flow that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) flow: usize,
    pub(super) status: WcStatus,
    qpn: Qpn,
    peer: (u32, Qpn),
}

impl FlowHost {
    pub(super) fn new(gid: Gid, config: Config) -> Self {
        let mut engine = Engine::new(config);
        engine.set_gid(0, GidEntry::roce_v2(gid));
        while engine.poll_event().is_some() {}
        let pd = engine.alloc_pd().expect("a new engine has room");
        let (cq, poller) = engine.create_cq(CQES).expect("a new engine has room");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = Mr::register(&mut engine, pd, &Region::null(), (0, PIECE as usize), None, access);
        Self { engine, gid, pd, cq, poller, mr, sending: BTreeMap::new() }
    }

    fn create_qp(&mut self, max_send_wr: u32) -> CreatedQp {
        let cap =
            QpCap { max_send_wr, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInitAttr { cap, ..init_attr(QpType::Rc, self.pd, self.cq) };
        self.engine.create_qp(init).expect("fewer flows than queue pairs")
    }

    /// The next flow that has arrived or ended since the last call.
    pub(super) fn poll_news(&mut self) -> Option<News> {
        loop {
            let cqe = self.poller.poll()?;
            let is_success = cqe.status == WcStatus::Success;
            if cqe.wr_id & ARRIVAL != 0 {
                // Others are receives of a flow that was given up.
                if is_success {
                    return Some(News::Arrived((cqe.wr_id & !ARRIVAL) as usize));
                }
                continue;
            }
            // Requests behind one that failed complete as well.
            let Some(sending) = self.sending.get_mut(&cqe.wr_id) else { continue };
            sending.pieces -= 1;
            if sending.pieces == 0 || !is_success {
                let Sending { qpn, peer, .. } = self.sending.remove(&cqe.wr_id)?;
                let flow = cqe.wr_id as usize;
                return Some(News::Ended(Ended { flow, status: cqe.status, qpn, peer }));
            }
        }
    }
}

/// What all flows have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Payload of a full packet in the engine.
    pub(super) mtu: Pmtu,
    /// Bytes of the flow that such a packet stands for.
    pub(super) payload: u64,
    /// Transport timer.
    pub(super) timeout: u8,
    /// The receiver must learn that the flow has arrived.
    pub(super) tells_receiver: bool,
}

/// Starts a flow: a queue pair at each end, and a WRITE.
pub(super) fn start(
    hosts: &mut [FlowHost],
    now: Instant,
    (number, flow): (usize, &Flow),
    terms: Terms,
) {
    let Terms { mtu, payload, timeout, tells_receiver } = terms;
    let len = engine_len(flow.bytes, mtu.bytes() as u64, payload);
    let pieces = len.div_ceil(PIECE).max(1);
    let (src, dst) = (flow.src as usize, flow.dst as usize);
    let CreatedQp { qpn, mut sq, .. } = hosts[src].create_qp(pieces as u32);
    let CreatedQp { qpn: peer_qpn, rq, .. } = hosts[dst].create_qp(1);
    let with = QpAttr { timeout: Some(timeout), ..QpAttr::default() };
    for (at, own, peer, dest) in [(src, qpn, dst, peer_qpn), (dst, peer_qpn, src, qpn)] {
        let connection = Connection::new(hosts[peer].gid, dest, mtu);
        let av = AddrVec {
            // The path finds the flow by its label, which is 20 bits and not zero.
            flow_label: number as u32 % 0xf_ffff + 1,
            traffic_class: flow.priority << 5,
            sl: flow.priority,
            ..connection.av
        };
        Connection { av, with, ..connection }.bring_up(&mut hosts[at].engine, now, own);
    }
    if let Some(mut rq) = rq.filter(|_| tells_receiver) {
        let wr = RecvWr { wr_id: ARRIVAL | number as u64, sges: SgeList::default() };
        rq.post(wr).expect("the queue has room for one");
    }
    let remote = Remote { addr: 0, rkey: hosts[dst].mr.rkey() };
    let mut left = len;
    for i in 1..=pieces {
        let piece = left.min(PIECE);
        left -= piece;
        let sge = Sge { addr: 0, len: piece as u32, lkey: hosts[src].mr.lkey() };
        let op = match tells_receiver && i == pieces {
            true => SendOp::WriteImm(remote, Imm::default()),
            false => SendOp::Write(remote),
        };
        let wr = SendWr::new(number as u64, op, Data::Sges(SgeList::from(sge)));
        sq.post(wr).expect("the queue is as long as the list");
    }
    let peer = (flow.dst, peer_qpn);
    hosts[src].sending.insert(number as u64, Sending { _sq: sq, qpn, pieces, peer });
}

/// Destroys the queue pairs of a flow.
pub(super) fn end(hosts: &mut [FlowHost], src: u32, ended: &Ended) {
    let (dst, peer_qpn) = ended.peer;
    for (host, qpn) in [(src, ended.qpn), (dst, peer_qpn)] {
        let destroyed = hosts[host as usize].engine.destroy_qp(qpn);
        debug_assert!(destroyed.is_ok(), "a queue pair of a flow exists until the flow ends");
    }
}

/// Bytes that the engine sends for a flow: as many packets, the last as long, rounded up to four
/// bytes, because packets without payload bytes have no padding.
fn engine_len(bytes: u64, mtu: u64, model_payload: u64) -> u64 {
    let (full, rest) = (bytes / model_payload, bytes % model_payload);
    full * mtu + rest.min(mtu).next_multiple_of(4)
}
