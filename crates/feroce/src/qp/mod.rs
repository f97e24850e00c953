//! Queue pairs.

mod ends;
mod handle;

use feroce_engine::{
    AddrVec, LossPolicy, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendWr,
};
use feroce_mem::PdId;
use feroce_wire::{Gid, Lid, Pmtu, Psn, Qkey, Qpn};

use crate::backend::{CreatedSides, either};
use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::xrc::Xrcd;
use crate::{Error, ModifyQpError, PostError, RequestError, sys};

pub use ends::{Receiver, Sender};
pub use handle::QpHandle;
use handle::Uses;

/// What a peer must know to connect to a queue pair. Exchange it by any means.
///
/// ```
/// # use feroce::{Device, Endpoint, QpCap};
/// # let context = Device::at(["127.0.0.37".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// let Endpoint { gid, lid, qpn, psn, mtu } = qp.endpoint()?;
/// let message = format!("{gid} {} {} {} {}", lid.0, qpn.get(), psn.get(), mtu.bytes());
/// // ... which the peer takes apart, and connects to.
/// # qp.connect(&Endpoint { gid, lid, qpn, psn, mtu })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Address of the port.
    pub gid: Gid,
    /// Local identifier of the port, on InfiniBand; 0 elsewhere.
    pub lid: Lid,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// First PSN that it will send.
    pub psn: Psn,
    /// Greatest path MTU that its port takes.
    pub mtu: Pmtu,
}

impl Endpoint {
    /// The way to it from our address with this index. Packets to a port that has a LID get no GRH,
    /// because the port is in our subnet.
    pub fn path_from(&self, sgid_index: u16) -> AddrVec {
        let dgid = if self.lid == Lid(0) { self.gid } else { Gid::ZERO };
        AddrVec { dgid, sgid_index, dlid: self.lid, ..AddrVec::default() }
    }
}

/// How a queue pair will be made.
///
/// ```
/// # use feroce::{Device, QpCap, QpState};
/// # let context = Device::at(["127.0.0.38".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let srq = pd.create_srq(64, 1)?;
/// let qp = pd.rc_qp(&cq, &cq, QpCap::new(128, 0)).srq(&srq).signal_all().create()?;
/// assert_eq!(qp.state(), QpState::Reset);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_create_qp")]
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Debug)]
pub struct QpBuilder {
    pd: Pd,
    uses: Uses,
    init: QpInitAttr,
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd, qp_type: QpType, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> Self {
        let init = QpInitAttr {
            qp_type,
            pd: PdId::default(),
            send_cq: send_cq.id(),
            recv_cq: recv_cq.id(),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
            loss: LossPolicy::Retransmit,
            congestion_control: true,
            hears_itself: true,
        };
        let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
        Self { pd: pd.clone(), uses: Uses { send_cq, recv_cq, srq: None, xrcd: None }, init }
    }

    /// Takes receives from a shared queue.
    #[must_use]
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.init.srq = Some(srq.id());
        self.uses.srq = Some(srq.clone());
        self
    }

    /// Makes it a target in an XRC domain.
    pub(crate) fn xrcd(mut self, xrcd: &Xrcd) -> Self {
        self.init.xrcd = Some(xrcd.id());
        self.uses.xrcd = Some(xrcd.clone());
        self
    }

    /// Reports every send, signalled or not.
    #[must_use]
    pub fn signal_all(mut self) -> Self {
        self.init.sq_sig_all = true;
        self
    }

    /// Does not take what it sends itself to a multicast group that it is in.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    #[must_use]
    pub fn without_own_multicasts(mut self) -> Self {
        self.init.hears_itself = false;
        self
    }

    /// Says what a lost packet means.
    #[must_use]
    pub fn loss(mut self, loss: LossPolicy) -> Self {
        self.init.loss = loss;
        self
    }

    /// Makes the queue pair, in RESET.
    pub fn create(self) -> Result<Qp, Error> {
        let (psn, qp_type) = (Psn::new(sys::random_u64()? as u32), self.init.qp_type);
        let events = self.pd.context().events();
        let created = {
            let queues = self.uses.queues();
            either!(self.pd.side(), pd => pd.create_qp(self.init, &queues, events)?)
        };
        let CreatedSides { qpn, qp, sender, receiver } = created;
        let handle = QpHandle::new(qpn, psn, qp_type, (qp, self.pd), self.uses);
        let sender = Sender::new(sender, handle.clone());
        let receiver = receiver.map(|receiver| Receiver::new(receiver, handle.clone()));
        Ok(Qp { handle, sender, receiver })
    }
}

impl Pd {
    /// Describes a reliable connection.
    #[doc(alias = "ibv_create_qp")]
    pub fn rc_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Rc, send_cq, recv_cq, cap)
    }

    /// Describes an unreliable connection.
    pub fn uc_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Uc, send_cq, recv_cq, cap)
    }

    /// Describes a datagram queue pair.
    pub fn ud_qp(&self, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::Ud, send_cq, recv_cq, cap)
    }

    /// Describes the sending end of an extended reliable connection. Its peer is made by
    /// [`Xrcd::target_qp`].
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_qp(&self, send_cq: &Cq, cap: QpCap) -> QpBuilder {
        QpBuilder::new(self, QpType::XrcIni, send_cq, send_cq, cap)
    }
}

impl Xrcd {
    /// Describes the receiving end of an extended reliable connection. Nothing can be posted to
    /// it; what arrives goes to the shared receive queue that the sender names.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn target_qp(&self) -> QpBuilder {
        let (pd, cq) = self.stand_in();
        QpBuilder::new(pd, QpType::XrcTgt, cq, cq, QpCap::default()).xrcd(self)
    }
}

/// A queue pair. [`Qp::split`] takes it apart for threads that send, receive and control it.
///
/// ```
/// # use feroce::{Device, QpCap};
/// # let context = Device::at(["127.0.0.29".parse()?]).open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// qp.connect(&qp.endpoint()?)?; // to itself
/// assert_eq!(qp.state(), feroce::QpState::Rts);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_qp")]
#[derive(Debug)]
pub struct Qp {
    handle: QpHandle,
    sender: Sender,
    receiver: Option<Receiver>,
}

impl Qp {
    /// Its handle, for callers that control the queue pair but do not post.
    pub fn handle(&self) -> &QpHandle {
        &self.handle
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn()
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.handle.qp_type()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.sender.state()
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Cq {
        self.handle.send_cq()
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Cq {
        self.handle.recv_cq()
    }

    /// What a peer must know to connect, at the first address of the port.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.handle.endpoint()
    }

    /// What a peer must know to connect, at the address with this index.
    pub fn endpoint_at(&self, gid_index: u16) -> Result<Endpoint, Error> {
        self.handle.endpoint_at(gid_index)
    }

    /// Connects to a peer with sensible attributes; see [`QpHandle::connect`].
    pub fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        self.handle.connect(peer)
    }

    /// Makes a datagram queue pair ready to send and receive with this queue key.
    pub fn activate(&mut self, qkey: Qkey) -> Result<(), Error> {
        self.handle.activate(qkey)
    }

    /// Changes attributes and state.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.handle.modify(attr)
    }

    /// Shows its attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Option<QpAttr> {
        self.handle.query()
    }

    /// Posts sends, in order, until one is refused; those before it are sent.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        self.sender.post(wrs)
    }

    /// Posts one send. Where there is but one, this is a little faster than [`Qp::post_send`].
    pub fn post_one(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.sender.post_one(wr)
    }

    /// How many more sends the queue takes now; see [`Sender::free`].
    pub fn free_sends(&mut self) -> Option<usize> {
        self.sender.free()
    }

    /// Posts receives, in order, until one is refused.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        match &mut self.receiver {
            Some(receiver) => receiver.post(wrs),
            None => Err(RequestError::OpNotSupported.into()),
        }
    }

    /// Attaches a datagram queue pair to a multicast group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, group: Gid) -> Result<(), Error> {
        self.handle.attach_mcast(group)
    }

    /// Detaches from a multicast group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<(), Error> {
        self.handle.detach_mcast(group)
    }

    /// Its parts: control, the end where sends are posted, and the one for receives unless they
    /// come from a shared queue.
    pub fn split(self) -> (QpHandle, Sender, Option<Receiver>) {
        (self.handle, self.sender, self.receiver)
    }
}
