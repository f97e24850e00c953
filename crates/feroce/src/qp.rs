//! Queue pairs.

use feroce_engine::{
    AddrVec, CreatedQp, LossPolicy, ModifyQpError, PostError, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, RecvQueue, RecvWr, SendQueue, SendWr,
};
use feroce_mem::Access;
use feroce_wire::{Gid, Pmtu, Psn, Qkey, Qpn};

use crate::cq::Cq;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::{Error, sys};

/// What a peer must know to connect to a queue pair. Exchange it by any means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Address of the port.
    pub gid: Gid,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// First PSN that it will send.
    pub psn: Psn,
    /// Greatest path MTU that its port takes.
    pub mtu: Pmtu,
}

/// How a queue pair will be made.
#[derive(Debug)]
pub struct QpBuilder {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    init: QpInitAttr,
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd, qp_type: QpType, send_cq: &Cq, recv_cq: &Cq, cap: QpCap) -> Self {
        let init = QpInitAttr {
            qp_type,
            pd: pd.id(),
            send_cq: send_cq.id(),
            recv_cq: recv_cq.id(),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
            loss: LossPolicy::Retransmit,
            congestion_control: true,
        };
        let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
        Self { pd: pd.clone(), send_cq, recv_cq, srq: None, init }
    }

    /// Takes receives from a shared queue.
    #[must_use]
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.init.srq = Some(srq.id());
        self.srq = Some(srq.clone());
        self
    }

    /// Reports every send, signalled or not.
    #[must_use]
    pub fn signal_all(mut self) -> Self {
        self.init.sq_sig_all = true;
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
        let init = self.init;
        let CreatedQp { qpn, sq, rq } =
            self.pd.context().driver().control(|s, _| s.engine.create_qp(init))?;
        let psn = Psn::new(sys::random_u64()? as u32);
        Ok(Qp {
            qpn,
            sq,
            rq,
            psn,
            qp_type: init.qp_type,
            pd: self.pd,
            queues: (self.send_cq, self.recv_cq, self.srq),
        })
    }
}

/// A queue pair.
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
    qpn: Qpn,
    sq: SendQueue,
    rq: Option<RecvQueue>,
    psn: Psn,
    qp_type: QpType,
    pd: Pd,
    /// Held so that they outlive the queue pair.
    queues: (Cq, Cq, Option<Srq>),
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.sq.state()
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Cq {
        &self.queues.0
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Cq {
        &self.queues.1
    }

    /// What a peer must know to connect, at the first address of the port.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.endpoint_at(0)
    }

    /// What a peer must know to connect, at the address with this index.
    pub fn endpoint_at(&self, gid_index: u16) -> Result<Endpoint, Error> {
        let port = self.pd.context().port();
        let gid = port.gids.get(usize::from(gid_index)).copied();
        let gid = gid.ok_or_else(|| Error::NoDevice(format!("GID index {gid_index}")))?;
        Ok(Endpoint { gid, qpn: self.qpn, psn: self.psn, mtu: port.active_mtu })
    }

    /// Connects to a peer with sensible attributes: every remote access allowed that memory
    /// regions allow, 16 reads outstanding, the default timers. [`Qp::modify`] sets them one by
    /// one.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        let own = self.pd.context().port().gids;
        let same_family = |gid: &Gid| gid.as_ipv4().is_some() == peer.gid.as_ipv4().is_some();
        let sgid_index = own.iter().position(same_family).unwrap_or(0) as u16;
        let av = AddrVec { dgid: peer.gid, sgid_index, ..AddrVec::default() };
        let mtu = peer.mtu.min(self.pd.context().port().active_mtu);
        let access = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        self.modify(&QpAttr::init(access))?;
        if self.qp_type == QpType::Uc {
            self.modify(&QpAttr::rtr_uc(av, peer.qpn, peer.psn, mtu))?;
            self.modify(&QpAttr::rts_unreliable(self.psn))?;
        } else {
            self.modify(&QpAttr::rtr(av, peer.qpn, peer.psn, mtu))?;
            self.modify(&QpAttr::rts(self.psn))?;
        }
        Ok(())
    }

    /// Makes a datagram queue pair ready to send and receive with this queue key.
    pub fn activate(&mut self, qkey: Qkey) -> Result<(), Error> {
        self.modify(&QpAttr::init_ud(qkey))?;
        self.modify(&QpAttr::to(QpState::Rtr))?;
        self.modify(&QpAttr::rts_unreliable(self.psn))?;
        Ok(())
    }

    /// Changes attributes and state.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let qpn = self.qpn;
        self.pd.context().driver().control(|s, now| s.engine.modify_qp(now, qpn, attr))
    }

    /// Shows its attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Option<QpAttr> {
        let qpn = self.qpn;
        self.pd.context().driver().control(|s, _| s.engine.query_qp(qpn)).map(|(attr, _)| attr)
    }

    /// Posts sends, in order, until one is refused; those before it are sent.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let posted = wrs.into_iter().try_for_each(|wr| self.sq.stage(wr));
        self.sq.ring();
        self.pd.context().driver().kick();
        posted
    }

    /// Posts receives, in order, until one is refused.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let Some(rq) = self.rq.as_mut() else { return Err(PostError::OpNotSupported) };
        let posted = wrs.into_iter().try_for_each(|wr| rq.stage(wr));
        if rq.publish() {
            self.pd.context().driver().kick();
        }
        posted
    }

    /// Attaches a datagram queue pair to a multicast group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, group: Gid) -> Result<(), Error> {
        let qpn = self.qpn;
        self.pd.context().driver().control(|s, _| {
            if s.engine.attach_mcast(qpn, group)? {
                s.link.join(group)?;
            }
            Ok(())
        })
    }

    /// Detaches from a multicast group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<(), Error> {
        let qpn = self.qpn;
        self.pd.context().driver().control(|s, _| {
            if s.engine.detach_mcast(qpn, group)? {
                s.link.leave(group)?;
            }
            Ok(())
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let qpn = self.qpn;
        // Busy if it is still in a multicast group, which then keeps it; harmless.
        let _ = self.pd.context().driver().control(|s, _| s.engine.destroy_qp(qpn));
    }
}
