//! Queue pairs, and how they come from RESET to RTS.

use feroce_engine::{
    AddrVec, CqId, Engine, LossPolicy, ModifyQpError, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    RecvQueue, SendQueue,
};
use feroce_mem::PdId;
use feroce_train::Instant;
use feroce_wire::{Gid, Pmtu, Psn, Qkey, Qpn};

use crate::ALL;

/// The Q_Key of datagram queue pairs.
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// A queue pair with the consumer's ends of its queues.
#[derive(Debug)]
pub struct TestQp {
    /// Its number.
    pub qpn: Qpn,
    /// Send queue.
    pub sq: SendQueue,
    /// Receive queue, unless it uses a shared one or has none.
    pub rq: Option<RecvQueue>,
    /// The first PSN that it sends.
    pub first_psn: Psn,
}

/// A queue pair with deep queues whose sends and receives complete on `cq`.
pub fn init_attr(qp_type: QpType, pd: PdId, cq: CqId) -> QpInitAttr {
    QpInitAttr {
        qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        xrcd: None,
        cap: QpCap {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 32,
            max_recv_sge: 32,
            max_inline: 256,
        },
        sq_sig_all: false,
        loss: LossPolicy::Retransmit,
        congestion_control: true,
        hears_itself: true,
    }
}

/// What a queue pair is connected to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Path to the peer.
    pub av: AddrVec,
    /// Queue pair of the peer.
    pub dest: Qpn,
    /// First PSN of the peer.
    pub rq_psn: Psn,
    /// First PSN of this queue pair.
    pub sq_psn: Psn,
    /// Path MTU.
    pub mtu: Pmtu,
    /// Q_Key, for datagrams.
    pub qkey: Qkey,
    /// Rights, timers and limits that replace the defaults where the transition takes them.
    pub with: QpAttr,
}

impl Connection {
    /// A connection to queue pair `dest` at `dgid`; PSNs start at 0.
    pub fn new(dgid: Gid, dest: Qpn, mtu: Pmtu) -> Self {
        Self {
            av: AddrVec { dgid, ..AddrVec::default() },
            dest,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            mtu,
            qkey: QKEY,
            with: QpAttr::default(),
        }
    }

    /// The attributes that move a queue pair to `to` from the state before it.
    pub fn attr(&self, qp_type: QpType, to: QpState) -> QpAttr {
        let Self { av, dest, rq_psn, sq_psn, mtu, with, .. } = *self;
        match (qp_type, to) {
            (QpType::Ud, QpState::Init) => QpAttr::init_ud(self.qkey),
            (_, QpState::Init) => QpAttr::init(with.access.unwrap_or(ALL)),
            (QpType::Rc | QpType::XrcTgt, QpState::Rtr) => {
                let rtr = QpAttr::rtr(av, dest, rq_psn, mtu);
                QpAttr {
                    max_dest_rd_atomic: with.max_dest_rd_atomic.or(rtr.max_dest_rd_atomic),
                    min_rnr_timer: with.min_rnr_timer.or(rtr.min_rnr_timer),
                    ..rtr
                }
            }
            (QpType::Uc | QpType::XrcIni, QpState::Rtr) => QpAttr::rtr_uc(av, dest, rq_psn, mtu),
            (QpType::Rc | QpType::XrcIni, QpState::Rts) => {
                let rts = QpAttr::rts(sq_psn);
                QpAttr {
                    timeout: with.timeout.or(rts.timeout),
                    retry_cnt: with.retry_cnt.or(rts.retry_cnt),
                    rnr_retry: with.rnr_retry.or(rts.rnr_retry),
                    max_rd_atomic: with.max_rd_atomic.or(rts.max_rd_atomic),
                    ..rts
                }
            }
            (QpType::XrcTgt, QpState::Rts) => {
                let timeout = with.timeout.or_else(|| QpAttr::rts(sq_psn).timeout);
                QpAttr { timeout, ..QpAttr::rts_unreliable(sq_psn) }
            }
            (_, QpState::Rts) => QpAttr::rts_unreliable(sq_psn),
            _ => QpAttr::to(to),
        }
    }

    /// Moves a queue pair to `to` from the state before it.
    pub fn step(
        &self,
        engine: &mut Engine,
        now: Instant,
        qpn: Qpn,
        to: QpState,
    ) -> Result<(), ModifyQpError> {
        let (_, init) = engine.query_qp(qpn).unwrap();
        engine.modify_qp(now, qpn, &self.attr(init.qp_type, to))
    }

    /// Takes a queue pair from RESET to RTS.
    pub fn bring_up(&self, engine: &mut Engine, now: Instant, qpn: Qpn) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(engine, now, qpn, to).expect("a legal transition");
        }
    }
}
