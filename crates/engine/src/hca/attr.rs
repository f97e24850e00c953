//! Attributes of a queue pair, which modify sets and query returns.

use bitflags::bitflags;
use feroce_mem::{Access, PdId};
use feroce_wire::{Gid, Lid, Pmtu, Psn, Qkey, Qpn};

use super::state::{QpState, QpType};
use crate::hca::id::{CqId, SrqId, XrcdId};
use crate::hca::queue::QpCap;

bitflags! {
    /// Which attributes a modification carries; bits as in `ibv_qp_attr_mask`.
    ///
    /// ```
    /// # use feroce_engine::{AttrMask, QpAttr};
    /// # use feroce_mem::Access;
    /// let attr = QpAttr::init(Access::REMOTE_READ);
    /// assert!(attr.mask().contains(AttrMask::STATE | AttrMask::ACCESS));
    /// ```
    #[doc(alias = "ibv_qp_attr_mask")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// Next state.
        const STATE = 1;
        /// State that the caller believes current.
        const CUR_STATE = 1 << 1;
        /// Report when the send queue has drained.
        const SQD_NOTIFY = 1 << 2;
        /// Remote operations allowed.
        const ACCESS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Queue key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Acknowledgement timeout.
        const TIMEOUT = 1 << 9;
        /// Retries without an answer.
        const RETRY_CNT = 1 << 10;
        /// Retries when the receiver is not ready.
        const RNR_RETRY = 1 << 11;
        /// First PSN to receive.
        const RQ_PSN = 1 << 12;
        /// Reads and atomics outstanding as requester.
        const MAX_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR timer that we ask the peer to wait.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// Reads and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// Queue pair of the peer.
        const DEST_QPN = 1 << 20;
    }
}

/// The way to a port: address vector.
///
/// ```
/// # use feroce_engine::AddrVec;
/// # use feroce_wire::Gid;
/// let av = AddrVec { dgid: Gid::from_ipv4([192, 0, 2, 7]), ..AddrVec::default() };
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddrVec {
    /// Address of the port, or of a multicast group.
    pub dgid: Gid,
    /// Which of our own addresses to use.
    pub sgid_index: u16,
    /// Flow label; also chooses the UDP source port if not zero.
    pub flow_label: u32,
    /// TTL or hop limit; zero means 64.
    pub hop_limit: u8,
    /// Traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Destination LID, on InfiniBand.
    pub dlid: Lid,
    /// Which of the LIDs of our own port to use, on InfiniBand: the bits that the LMC leaves to us.
    pub src_path_bits: u8,
}

/// Attributes to set, or as set. Only what is `Some` is touched.
///
/// ```
/// # use feroce_engine::{AddrVec, QpAttr, QpState};
/// # use feroce_mem::Access;
/// # use feroce_wire::{Pmtu, Psn, Qpn};
/// # let (av, peer, psn) = (AddrVec::default(), Qpn::new(17), Psn::new(0));
/// // The way to RTS, with a timeout of our own choosing.
/// let steps = [
///     QpAttr::init(Access::REMOTE_WRITE),
///     QpAttr::rtr(av, peer, psn, Pmtu::B1024),
///     QpAttr { timeout: Some(16), ..QpAttr::rts(psn) },
/// ];
/// assert_eq!(steps[2].state, Some(QpState::Rts));
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// Next state.
    pub state: Option<QpState>,
    /// State that the caller believes current; refused if it is not.
    pub cur_state: Option<QpState>,
    /// Report when the send queue has drained; in a query, whether it is draining still.
    #[doc(alias = "en_sqd_async_notify")]
    #[doc(alias = "sq_draining")]
    pub sqd_notify: Option<bool>,
    /// Remote operations allowed on this queue pair.
    pub access: Option<Access>,
    /// Index of the partition key.
    pub pkey_index: Option<u16>,
    /// Port; always 1.
    pub port: Option<u8>,
    /// Queue key.
    pub qkey: Option<Qkey>,
    /// The way to the peer.
    pub av: Option<AddrVec>,
    /// Path MTU.
    pub path_mtu: Option<Pmtu>,
    /// Acknowledgement timeout: 4.096 us * 2^timeout; 0 means for ever.
    pub timeout: Option<u8>,
    /// Retries without an answer, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// Retries when the receiver is not ready, 0 to 6; 7 means for ever.
    pub rnr_retry: Option<u8>,
    /// First PSN to receive.
    pub rq_psn: Option<Psn>,
    /// Reads and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer that we ask the peer to wait: code 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// Queue pair of the peer.
    pub dest_qpn: Option<Qpn>,
    /// Alternate path; not supported, refused when given.
    pub alt_path: Option<AddrVec>,
}

impl QpAttr {
    /// Which attributes are given.
    pub fn mask(&self) -> AttrMask {
        [
            (self.state.is_some(), AttrMask::STATE),
            (self.cur_state.is_some(), AttrMask::CUR_STATE),
            (self.sqd_notify.is_some(), AttrMask::SQD_NOTIFY),
            (self.access.is_some(), AttrMask::ACCESS),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port.is_some(), AttrMask::PORT),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.av.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_RD_ATOMIC),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
            (self.alt_path.is_some(), AttrMask::ALT_PATH),
        ]
        .into_iter()
        .filter_map(|(given, bit)| given.then_some(bit))
        .fold(AttrMask::empty(), |all, bit| all | bit)
    }

    /// RESET to INIT for a connected service.
    pub fn init(access: Access) -> Self {
        Self {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..Self::default()
        }
    }

    /// RESET to INIT for datagrams.
    pub fn init_ud(qkey: Qkey) -> Self {
        Self { access: None, qkey: Some(qkey), ..Self::init(Access::empty()) }
    }

    /// INIT to RTR for a reliable connection.
    pub fn rtr(av: AddrVec, dest_qpn: Qpn, rq_psn: Psn, path_mtu: Pmtu) -> Self {
        Self {
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Self::rtr_uc(av, dest_qpn, rq_psn, path_mtu)
        }
    }

    /// INIT to RTR for an unreliable connection or an XRC initiator.
    pub fn rtr_uc(av: AddrVec, dest_qpn: Qpn, rq_psn: Psn, path_mtu: Pmtu) -> Self {
        Self {
            state: Some(QpState::Rtr),
            av: Some(av),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            path_mtu: Some(path_mtu),
            ..Self::default()
        }
    }

    /// RTR to RTS for a reliable connection.
    pub fn rts(sq_psn: Psn) -> Self {
        Self {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..Self::rts_unreliable(sq_psn)
        }
    }

    /// RTR to RTS for an unreliable service.
    pub fn rts_unreliable(sq_psn: Psn) -> Self {
        Self { state: Some(QpState::Rts), sq_psn: Some(sq_psn), ..Self::default() }
    }

    /// Only a change of state.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

/// What a queue pair makes of a lost packet.
///
/// ```
/// # use feroce_engine::LossPolicy;
/// assert_eq!(LossPolicy::default(), LossPolicy::Retransmit);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LossPolicy {
    /// Retransmit.
    #[default]
    Retransmit,
    /// The network never loses a packet: the first sequence error is fatal to the queue pair.
    Fatal,
}

/// How a queue pair is made.
///
/// ```
/// # use feroce_engine::QpInitAttr;
/// fn sizes(made: &QpInitAttr) -> (u32, u32) {
///     (made.cap.max_send_wr, made.cap.max_recv_wr)
/// }
/// ```
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInitAttr {
    /// Service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Shared receive queue, instead of one of its own.
    pub srq: Option<SrqId>,
    /// Domain of an XRC target.
    pub xrcd: Option<XrcdId>,
    /// Sizes.
    pub cap: QpCap,
    /// Report every send, signalled or not.
    pub sq_sig_all: bool,
    /// What a lost packet means.
    pub loss: LossPolicy,
    /// Whether the congestion control of the engine's configuration applies.
    pub congestion_control: bool,
    /// Whether it gets what it sends to a multicast group that it is attached to.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub hears_itself: bool,
}
