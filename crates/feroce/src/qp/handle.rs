//! Control operations on a queue pair: everything except posting.

use std::sync::Arc;

use feroce_engine::{QpAttr, QpInitAttr, QpState, QpType};
use feroce_mem::Access;
use feroce_train::GidEntry;
use feroce_wire::{Gid, Psn, Qkey, Qpn};
use tracing::level_filters::LevelFilter;

use super::Endpoint;
use crate::backend::{QpSide, QueueSides, either};
use crate::cq::Cq;
use crate::life::Life;
use crate::pd::Pd;
use crate::srq::Srq;
use crate::xrc::Xrcd;
use crate::{Error, ModifyQpError};

/// The control side of a queue pair. Cheap to clone; the queue pair is destroyed when the last
/// handle and both ends of its queues are gone.
///
/// ```
/// # use feroce::{Device, QpCap};
/// # let context = Device::at(["127.0.0.30".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// let (handle, mut sender, receiver) = qp.split();
/// assert!(receiver.is_some());
/// handle.connect(&handle.endpoint()?)?; // to itself
/// sender.post([])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_qp")]
#[derive(Clone, Debug)]
pub struct QpHandle {
    inner: Arc<QpInner>,
}

#[derive(Debug)]
struct QpInner {
    qpn: Qpn,
    psn: Psn,
    qp_type: QpType,
    side: QpSide,
    pd: Pd,
    uses: Uses,
    life: Life,
}

/// The objects that a queue pair uses, held so that they outlive it.
#[derive(Debug)]
pub(crate) struct Uses {
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) xrcd: Option<Xrcd>,
}

impl Uses {
    /// The queues, for the backend.
    pub(super) fn queues(&self) -> QueueSides<'_> {
        QueueSides {
            send_cq: self.send_cq.side(),
            recv_cq: self.recv_cq.side(),
            srq: self.srq.as_ref().map(Srq::side),
        }
    }
}

impl QpInner {
    fn destroy(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, qp => qp.destroy()))
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // This fails if the queue pair is still attached to a multicast group. Then it stays in the
        // adapter, which is harmless.
        let _ = self.destroy();
    }
}

impl QpHandle {
    pub(super) fn new(
        qpn: Qpn,
        psn: Psn,
        qp_type: QpType,
        (side, pd): (QpSide, Pd),
        uses: Uses,
    ) -> Self {
        let life = Life::new();
        Self { inner: Arc::new(QpInner { qpn, psn, qp_type, side, pd, uses, life }) }
    }

    pub(crate) fn side(&self) -> &QpSide {
        &self.inner.side
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Cq {
        &self.inner.uses.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.uses.recv_cq
    }

    /// The shared queue that it takes receives from, if any.
    pub fn srq(&self) -> Option<&Srq> {
        self.inner.uses.srq.as_ref()
    }

    /// The domain of an XRC target.
    pub fn xrcd(&self) -> Option<&Xrcd> {
        self.inner.uses.xrcd.as_ref()
    }

    /// What a peer must know to connect, at the first address of the port: IPv4, where it has one.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.endpoint_at(self.inner.pd.context().port().first_gid())
    }

    /// What a peer must know to connect, at the address with this index.
    pub fn endpoint_at(&self, gid_index: u16) -> Result<Endpoint, Error> {
        let port = self.inner.pd.context().port();
        let entry = port.gids.get(usize::from(gid_index)).filter(|entry| !entry.is_empty());
        let gid = entry.ok_or(Error::NoAddress(gid_index))?.gid;
        let (qpn, psn) = (self.inner.qpn, self.inner.psn);
        Ok(Endpoint { gid, lid: port.lid, qpn, psn, mtu: port.active_mtu })
    }

    /// Connects to a peer with sensible attributes: every remote access allowed that memory
    /// regions allow, 16 reads outstanding, the default timers. [`QpHandle::modify`] sets them one
    /// by one.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        let port = self.inner.pd.context().port();
        let is_ipv4 = |gid: Gid| gid.as_ipv4().is_some();
        let same_family =
            |entry: &GidEntry| !entry.is_empty() && is_ipv4(entry.gid) == is_ipv4(peer.gid);
        let sgid_index = port.gids.iter().position(same_family).unwrap_or(0) as u16;
        let av = peer.path_from(sgid_index);
        let mtu = peer.mtu.min(port.active_mtu);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let access = access | either!(self.side(), qp => qp.more_access());
        self.modify(&QpAttr::init(access))?;
        let most = |attr: QpAttr| {
            let limit = self.inner.pd.context().attr().limits.max_rd_atomic;
            let within = |n: Option<u8>| n.map(|n| n.min(limit));
            let (theirs, ours) = (within(attr.max_dest_rd_atomic), within(attr.max_rd_atomic));
            QpAttr { max_dest_rd_atomic: theirs, max_rd_atomic: ours, ..attr }
        };
        let psn = self.inner.psn;
        let (full, short) = (
            most(QpAttr::rtr(av, peer.qpn, peer.psn, mtu)),
            QpAttr::rtr_uc(av, peer.qpn, peer.psn, mtu),
        );
        let (rtr, rts) = match self.inner.qp_type {
            QpType::Uc => (short, QpAttr::rts_unreliable(psn)),
            QpType::XrcIni => (short, most(QpAttr::rts(psn))),
            QpType::XrcTgt => (full, QpAttr { timeout: Some(14), ..QpAttr::rts_unreliable(psn) }),
            QpType::Rc | QpType::Ud => (full, most(QpAttr::rts(psn))),
        };
        self.modify(&rtr)?;
        self.modify(&rts)?;
        Ok(())
    }

    /// Makes a datagram queue pair ready to send and receive with this queue key.
    pub fn activate(&self, qkey: Qkey) -> Result<(), Error> {
        self.modify(&QpAttr::init_ud(qkey))?;
        self.modify(&QpAttr::to(QpState::Rtr))?;
        self.modify(&QpAttr::rts_unreliable(self.inner.psn))?;
        Ok(())
    }

    /// Changes attributes and state. A queue pair that goes back to RESET begins anew: those of its
    /// completions that the consumer has not polled are discarded.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let qpn = self.inner.qpn;
        let changed = either!(self.side(), qp => qp.modify(attr));
        tell(qpn, attr, &changed);
        changed?;
        if attr.state == Some(QpState::Reset) {
            self.send_cq().forget(qpn);
            self.recv_cq().forget(qpn);
        }
        Ok(())
    }

    /// Shows its attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Option<QpAttr> {
        self.query_all().map(|(attr, _)| attr)
    }

    /// Shows its attributes and how it was made.
    pub fn query_all(&self) -> Option<(QpAttr, QpInitAttr)> {
        either!(self.side(), qp => qp.query())
    }

    /// Attaches a datagram queue pair to a multicast group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        either!(self.side(), qp => qp.attach_mcast(group))
    }

    /// Detaches from a multicast group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        either!(self.side(), qp => qp.detach_mcast(group))
    }

    /// Destroys it now, or fails if it is still attached to a multicast group. Posted requests are
    /// discarded, and nothing can be posted any more.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(&self) -> Result<(), Error> {
        self.inner.destroy()
    }
}

/// Logs what a modification asked for, and what became of it.
fn tell(qpn: Qpn, attr: &QpAttr, changed: &Result<(), ModifyQpError>) {
    if tracing::Level::DEBUG > LevelFilter::current() {
        return;
    }
    let state = attr.state.map_or_else(|| "same state".to_owned(), |state| format!("{state:?}"));
    let peer = match (attr.dest_qpn, attr.av) {
        (Some(dest), Some(av)) => format!(", peer QP {dest} at {}", av.dgid.to_ip()),
        _ => String::new(),
    };
    match changed {
        Ok(()) => tracing::debug!("QP {qpn}: {state}{peer}"),
        Err(e) => tracing::debug!("QP {qpn}: {state}{peer}: refused: {e}"),
    }
}
