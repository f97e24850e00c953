//! Control: making, changing and destroying objects.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use feroce_mem::{Access, Dereg, DeregError, Iova, MrInfo, MwType, PdId, RegError, Region, Rereg};
use feroce_ring::{Consumer, Doorbell, Producer, try_spsc};
use feroce_train::{Instant, LinkLayer};
use feroce_wire::{Gid, Lkey, Qpn, Rkey};

use super::Engine;
use super::transport::Transport;
use crate::hca::attr::{AddrVec, QpAttr, QpInitAttr};
use crate::hca::config::TransportKind;
use crate::hca::cq::{Cq, CqPoller};
use crate::hca::error::{CreateError, DestroyError, ModifyQpError, ResizeError};
use crate::hca::event::AsyncEvent;
use crate::hca::id::{AhId, CqId, SrqId, XrcdId};
use crate::hca::qp::{QpCommon, RecvSource};
use crate::hca::queue::{QpShared, RecvQueue, SendQueue, SrqQueue};
use crate::hca::shared::Ah;
use crate::hca::srq::{Srq, SrqAttr, SrqInitAttr};
use crate::hca::state::QpType;
use crate::hca::wr::{MAX_SGE, RecvWr, SendWr};

/// A queue pair that was just created, with the consumer's ends of its queues.
#[derive(Debug)]
pub struct CreatedQp {
    /// Its number.
    pub qpn: Qpn,
    /// Where sends are posted.
    pub sq: SendQueue,
    /// Where receives are posted; `None` if they come from a shared queue or not at all.
    pub rq: Option<RecvQueue>,
}

/// The rings of a queue pair, which are as large as the consumer wants them.
struct Queues {
    send: (Producer<SendWr>, Consumer<SendWr>),
    /// Missing if receives come from a shared queue or not at all.
    receive: Option<(Producer<RecvWr>, Consumer<RecvWr>)>,
}

impl Queues {
    fn new(init: &QpInitAttr) -> Result<Self, CreateError> {
        let (cap, has_sq) = (init.cap, init.qp_type.has_sq());
        let has_rq = init.qp_type.has_rq() && init.srq.is_none() && init.xrcd.is_none();
        let send = if has_sq { cap.max_send_wr as usize } else { 0 };
        let receive = has_rq.then_some(cap.max_recv_wr as usize);
        let receive = receive.map(|depth| try_spsc(depth).ok_or(CreateError::OutOfMemory));
        let send = try_spsc(send).ok_or(CreateError::OutOfMemory)?;
        Ok(Self { send, receive: receive.transpose()? })
    }
}

/// Protection domains and memory.
impl Engine {
    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&mut self) -> Result<PdId, CreateError> {
        self.alloc_pd_as(None)
    }

    /// Makes a protection domain, with the handle that it has in another shard if there is one.
    pub fn alloc_pd_as(&mut self, name: Option<PdId>) -> Result<PdId, CreateError> {
        if self.port.hca.pds.len() >= self.port.hca.config.limits.max_pd as usize {
            return Err(CreateError::TooMany);
        }
        self.port.hca.pds.insert(name.map(|pd| pd.0), 0).map(PdId)
    }

    /// Whether [`Engine::dealloc_pd`] can destroy a protection domain.
    pub fn may_dealloc_pd(&self, pd: PdId) -> Result<(), DestroyError> {
        let users = *self.port.hca.pds.get(pd.0).ok_or(DestroyError::Unknown)?;
        let is_used = users != 0 || self.port.hca.mrs.pd_in_use(pd);
        if is_used { Err(DestroyError::Busy) } else { Ok(()) }
    }

    /// Destroys a protection domain that nothing uses.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DestroyError> {
        self.may_dealloc_pd(pd)?;
        self.port.hca.pds.remove(pd.0);
        Ok(())
    }

    fn check_pd(&self, pd: PdId) -> Result<(), CreateError> {
        let known = self.port.hca.pds.contains(pd.0);
        known.then_some(()).ok_or(CreateError::Unknown("protection domain"))
    }

    fn check_owner(&self, pd: PdId) -> Result<(), RegError> {
        self.check_pd(pd).map_err(|_| RegError::UnknownPd)
    }

    fn use_pd(&mut self, pd: PdId) {
        if let Some(users) = self.port.hca.pds.get_mut(pd.0) {
            *users += 1;
        }
    }

    fn unuse_pd(&mut self, pd: PdId) {
        if let Some(users) = self.port.hca.pds.get_mut(pd.0) {
            *users -= 1;
        }
    }

    /// Registers `len` bytes at `offset` of a region. Local and remote key are the same number.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        region: Arc<Region>,
        offset: usize,
        len: usize,
        iova: Iova,
        access: Access,
    ) -> Result<Lkey, RegError> {
        self.check_owner(pd)?;
        self.port.hca.mrs.reg(pd, region, offset, len, iova, access)
    }

    /// Registers what a key names in another shard, under the same key.
    pub fn copy_mr(&mut self, other: &Self, key: Lkey) -> Result<(), RegError> {
        self.port.hca.mrs.copy_reg(&other.port.hca.mrs, key)
    }

    /// Changes a registration. Accesses that began before are over when the result is quiet.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg_mr(&mut self, key: Lkey, change: Rereg) -> Result<Dereg, RegError> {
        change.pd.map_or(Ok(()), |pd| self.check_owner(pd))?;
        self.revoke_remote_payload_of(key);
        self.port.hca.mrs.rereg(key, change)
    }

    /// Ends a registration. The memory may be freed when the result is quiet.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg_mr(&mut self, key: Lkey) -> Result<Dereg, DeregError> {
        self.revoke_remote_payload_of(key);
        self.port.hca.mrs.dereg(key)
    }

    /// Peer processes may no longer fetch from memory under a key.
    fn revoke_remote_payload_of(&mut self, key: Lkey) {
        self.port.hca.revoke_answers();
        self.qps
            .iter_mut()
            .filter_map(Transport::ib)
            .for_each(|qp| qp.revoke_remote_payload_of(&self.port, key));
    }

    /// Makes a key for fast registration of parts of a region.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_mr(&mut self, pd: PdId, region: Arc<Region>) -> Result<Lkey, RegError> {
        self.check_owner(pd)?;
        self.port.hca.mrs.alloc_mr(pd, region)
    }

    /// The memory that a key names.
    pub fn query_mr(&self, key: Lkey) -> Option<MrInfo> {
        self.port.hca.mrs.lookup(key)
    }

    /// Makes a memory window.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwType) -> Result<Rkey, RegError> {
        self.check_owner(pd)?;
        self.port.hca.mrs.alloc_mw(pd, kind)
    }

    /// The key that a memory window has now, given any key that it has had.
    pub fn current_mw(&self, rkey: Rkey) -> Option<Rkey> {
        self.port.hca.mrs.current_mw(rkey)
    }

    /// Destroys a memory window.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc_mw(&mut self, rkey: Rkey) -> Result<(), DeregError> {
        self.port.hca.revoke_answers();
        self.port.hca.mrs.dealloc_mw(rkey)
    }
}

/// Completion queues, shared receive queues, XRC domains.
impl Engine {
    /// Makes a completion queue of `depth` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&mut self, depth: u32) -> Result<(CqId, CqPoller), CreateError> {
        self.create_cq_as(None, depth)
    }

    /// Makes a completion queue, with the handle that it has in another shard if there is one.
    pub fn create_cq_as(
        &mut self,
        name: Option<CqId>,
        depth: u32,
    ) -> Result<(CqId, CqPoller), CreateError> {
        let limits = &self.port.hca.config.limits;
        if depth == 0 || depth > limits.max_cqe {
            return Err(CreateError::BeyondLimits("number of completion queue entries"));
        }
        if self.port.hca.cqs.len() >= limits.max_cq as usize {
            return Err(CreateError::TooMany);
        }
        let (cq, poller) = Cq::new(depth as usize).ok_or(CreateError::OutOfMemory)?;
        Ok((self.port.hca.cqs.insert(name.map(|cq| cq.0), cq).map(CqId)?, poller))
    }

    /// Changes the depth of a completion queue. `poller` is the consumer's end of it.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize_cq(
        &mut self,
        id: CqId,
        poller: &mut CqPoller,
        depth: u32,
    ) -> Result<(), ResizeError> {
        if depth == 0 || depth > self.port.hca.config.limits.max_cqe {
            return Err(ResizeError::BeyondLimits);
        }
        let cq = self.port.hca.cqs.get_mut(id.0).ok_or(ResizeError::Unknown)?;
        cq.resize(poller, depth as usize)
    }

    /// Forgets the completions of a queue pair that wait. `poller` is the consumer's end of the
    /// queue.
    pub fn forget_completions(&mut self, id: CqId, poller: &mut CqPoller, qpn: Qpn) {
        self.port.hca.forget_completions(id, poller, qpn);
    }

    /// Whether [`Engine::destroy_cq`] can destroy a completion queue.
    pub fn may_destroy_cq(&self, id: CqId) -> Result<(), DestroyError> {
        let cq = self.port.hca.cqs.get(id.0).ok_or(DestroyError::Unknown)?;
        if cq.users != 0 { Err(DestroyError::Busy) } else { Ok(()) }
    }

    /// Destroys a completion queue that nothing uses.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy_cq(&mut self, id: CqId) -> Result<(), DestroyError> {
        self.may_destroy_cq(id)?;
        self.port.hca.cqs.remove(id.0);
        self.port.forget_cq(id);
        Ok(())
    }

    fn check_cq(&self, id: CqId) -> Result<(), CreateError> {
        match self.port.hca.cqs.get(id.0) {
            None => Err(CreateError::Unknown("completion queue")),
            Some(cq) if cq.overrun => Err(CreateError::Invalid("the completion queue overran")),
            Some(_) => Ok(()),
        }
    }

    fn count_cq(&mut self, id: CqId, up: bool) {
        if let Some(cq) = self.port.hca.cqs.get_mut(id.0) {
            cq.users = if up { cq.users + 1 } else { cq.users - 1 };
        }
    }

    /// A completion queue overran: its queue pairs cannot report any more.
    pub(super) fn stop_users_of(&mut self, cq: CqId) {
        let now = self.now;
        for qp in self.qps.iter_mut() {
            let common = qp.common();
            if common.init.send_cq == cq || common.init.recv_cq == cq {
                self.port.hca.event(AsyncEvent::QpFatal(common.qpn));
                qp.enter_error(&mut self.port, now);
            }
        }
        let is_user = |(_, srq): &(u32, &Srq)| srq.attr.xrc.is_some_and(|(_, used)| used == cq);
        let ids = self.port.hca.srqs.iter().filter(is_user).map(|(i, _)| SrqId(i));
        for id in ids.collect::<Vec<_>>() {
            self.port.hca.event(AsyncEvent::SrqError(id));
        }
    }

    /// Makes a shared receive queue.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&mut self, attr: SrqInitAttr) -> Result<(SrqId, SrqQueue), CreateError> {
        self.check_pd(attr.pd)?;
        let limits = &self.port.hca.config.limits;
        if attr.max_wr > limits.max_srq_wr || attr.max_wr == 0 {
            return Err(CreateError::BeyondLimits("number of receives"));
        }
        if attr.max_sge > limits.max_sge {
            return Err(CreateError::BeyondLimits("number of SGEs"));
        }
        if attr.limit > attr.max_wr {
            return Err(CreateError::BeyondLimits("limit"));
        }
        if self.port.hca.srqs.len() >= limits.max_srq as usize {
            return Err(CreateError::TooMany);
        }
        if let Some((xrcd, cq)) = attr.xrc {
            self.check_xrcd(xrcd)?;
            self.check_cq(cq)?;
        }
        let (srq, queue) = Srq::new(attr).ok_or(CreateError::OutOfMemory)?;
        let id = self.port.hca.srqs.insert(None, srq).map(SrqId)?;
        if let Some((xrcd, cq)) = attr.xrc {
            self.count_xrcd(xrcd, true);
            self.count_cq(cq, true);
        }
        self.use_pd(attr.pd);
        Ok((id, queue))
    }

    /// Arms the limit of a shared receive queue; 0 disarms it.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_srq_limit(&mut self, id: SrqId, limit: u32) -> Result<(), ResizeError> {
        let srq = self.port.hca.srqs.get_mut(id.0).ok_or(ResizeError::Unknown)?;
        if limit > srq.attr.max_wr {
            return Err(ResizeError::BeyondLimits);
        }
        srq.attr.limit = limit;
        if limit != 0 && srq.waiting() < limit as usize {
            srq.attr.limit = 0;
            self.port.hca.event(AsyncEvent::SrqLimitReached(id));
        }
        Ok(())
    }

    /// Changes how many receives a shared receive queue holds. `queue` is the consumer's end.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize_srq(
        &mut self,
        id: SrqId,
        queue: &mut SrqQueue,
        max_wr: u32,
    ) -> Result<(), ResizeError> {
        if max_wr == 0 || max_wr > self.port.hca.config.limits.max_srq_wr {
            return Err(ResizeError::BeyondLimits);
        }
        let srq = self.port.hca.srqs.get_mut(id.0).ok_or(ResizeError::Unknown)?;
        if max_wr < srq.attr.limit {
            return Err(ResizeError::BeyondLimits);
        }
        srq.resize(queue, max_wr)
    }

    /// Shows a shared receive queue.
    #[doc(alias = "ibv_query_srq")]
    pub fn query_srq(&self, id: SrqId) -> Option<SrqAttr> {
        let SrqInitAttr { max_wr, max_sge, limit, .. } = self.port.hca.srqs.get(id.0)?.attr;
        Some(SrqAttr { max_wr, max_sge, limit })
    }

    /// Destroys a shared receive queue that no queue pair uses.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), DestroyError> {
        let srq = self.port.hca.srqs.get(id.0).ok_or(DestroyError::Unknown)?;
        if srq.users != 0 {
            return Err(DestroyError::Busy);
        }
        // XRC targets find it by number and are not counted as users.
        self.qps.iter_mut().for_each(|qp| qp.forget_receive_of(id));
        let srq = self.port.hca.srqs.remove(id.0).ok_or(DestroyError::Unknown)?;
        self.unuse_pd(srq.attr.pd);
        if let Some((xrcd, cq)) = srq.attr.xrc {
            self.count_xrcd(xrcd, false);
            self.count_cq(cq, false);
        }
        Ok(())
    }

    /// Makes an XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn alloc_xrcd(&mut self) -> Result<XrcdId, CreateError> {
        if self.port.hca.xrcds.len() >= self.port.hca.config.limits.max_pd as usize {
            return Err(CreateError::TooMany);
        }
        self.port.hca.xrcds.insert(None, 0).map(XrcdId)
    }

    /// Destroys an XRC domain that nothing uses.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn dealloc_xrcd(&mut self, id: XrcdId) -> Result<(), DestroyError> {
        let users = *self.port.hca.xrcds.get(id.0).ok_or(DestroyError::Unknown)?;
        if users != 0 {
            return Err(DestroyError::Busy);
        }
        self.port.hca.xrcds.remove(id.0);
        Ok(())
    }

    fn check_xrcd(&self, id: XrcdId) -> Result<(), CreateError> {
        let known = self.port.hca.xrcds.contains(id.0);
        known.then_some(()).ok_or(CreateError::Unknown("XRC domain"))
    }

    fn count_xrcd(&mut self, id: XrcdId, up: bool) {
        if let Some(users) = self.port.hca.xrcds.get_mut(id.0) {
            *users = if up { *users + 1 } else { *users - 1 };
        }
    }
}

/// Address handles and multicast.
impl Engine {
    /// Makes an address handle.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&mut self, pd: PdId, av: AddrVec) -> Result<AhId, CreateError> {
        self.check_pd(pd)?;
        if self.port.hca.config.transport == TransportKind::Iwarp {
            return Err(CreateError::Unsupported("iWARP has no datagrams"));
        }
        let no_source = CreateError::Invalid("no address at that index of the GID table");
        let path = self.port.hca.path(&av, 0).ok_or(no_source)?;
        if !path.has_destination() {
            return Err(CreateError::Invalid(match path.framing.link_layer() {
                LinkLayer::Ethernet => "the destination address is zero",
                LinkLayer::InfiniBand => "the destination LID is zero",
            }));
        }
        if self.port.hca.ahs.len() >= self.port.hca.config.limits.max_ah as usize {
            return Err(CreateError::TooMany);
        }
        let id = self.port.hca.ahs.insert(None, Ah { pd, av }).map(AhId)?;
        self.use_pd(pd);
        Ok(id)
    }

    /// Shows an address handle.
    pub fn query_ah(&self, id: AhId) -> Option<AddrVec> {
        self.port.hca.ahs.get(id.0).map(|ah| ah.av)
    }

    /// Destroys an address handle. Datagrams that still wait to use it fail.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy_ah(&mut self, id: AhId) -> Result<(), DestroyError> {
        let ah = self.port.hca.ahs.remove(id.0).ok_or(DestroyError::Unknown)?;
        self.unuse_pd(ah.pd);
        Ok(())
    }

    /// Attaches a datagram queue pair to a multicast group. True: the port must join the group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<bool, CreateError> {
        let qp = self.qps.peek(qpn).ok_or(CreateError::Unknown("queue pair"))?;
        if qp.common().init.qp_type != QpType::Ud {
            return Err(CreateError::Invalid("only datagram queue pairs take multicast"));
        }
        if !group.is_multicast() {
            return Err(CreateError::Invalid("not a multicast address"));
        }
        let limits = self.port.hca.config.limits;
        let (groups, members) = (limits.max_mcast_grp, limits.max_mcast_qp_attach);
        self.port.groups.attach(group, qpn, groups, members)
    }

    /// Detaches from a multicast group. True: the port must leave the group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<bool, DestroyError> {
        self.port.groups.detach(group, qpn)
    }
}

/// Queue pairs.
impl Engine {
    /// Makes a queue pair in RESET.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&mut self, init: QpInitAttr) -> Result<CreatedQp, CreateError> {
        self.check_qp_init(&init)?;
        if self.qps.len() >= self.port.hca.config.limits.max_qp {
            return Err(CreateError::TooMany);
        }
        let queues = Queues::new(&init)?;
        let slot = self.qps.next_slot().ok_or(CreateError::TooMany)?;
        let bell = self.bells.try_bell(slot).ok_or(CreateError::OutOfMemory)?;
        let qpn = self.qps.reserve(slot)?;
        Ok(self.install_qp((slot, qpn), init, queues, bell))
    }

    /// Makes the general services queue pair, QP1, which connection management uses.
    pub fn create_gsi(&mut self, init: QpInitAttr) -> Result<CreatedQp, CreateError> {
        self.check_qp_init(&init)?;
        if init.qp_type != QpType::Ud {
            return Err(CreateError::Invalid("QP1 is a datagram queue pair"));
        }
        if self.qps.peek(Qpn::QP1).is_some() {
            return Err(CreateError::TooMany);
        }
        let queues = Queues::new(&init)?;
        let bell = self.bells.try_bell(0).ok_or(CreateError::OutOfMemory)?;
        Ok(self.install_qp((0, Qpn::QP1), init, queues, bell))
    }

    fn install_qp(
        &mut self,
        (slot, qpn): (u32, Qpn),
        init: QpInitAttr,
        queues: Queues,
        bell: Arc<Doorbell>,
    ) -> CreatedQp {
        let shared = Arc::new(QpShared::new(bell));
        let transport = self.port.hca.config.transport;
        let (sq, sq_ring) = queues.send;
        let speaks = (transport, self.port.hca.config.iwarp_extensions);
        let sq = SendQueue::new(sq, Arc::clone(&shared), speaks, init.qp_type, &init.cap);
        let (rq, source) = match (queues.receive, init.srq, init.xrcd) {
            (Some((rq, ring)), ..) => (Some(rq), RecvSource::Own(ring)),
            (None, Some(srq), _) => (None, RecvSource::Srq(srq)),
            (None, None, Some(xrcd)) => (None, RecvSource::Xrc(xrcd)),
            (None, None, None) => (None, RecvSource::None),
        };
        let rq = rq.map(|rq| RecvQueue::new(rq, Arc::clone(&shared), init.cap.max_recv_sge));
        self.count_users(&init, true);
        let common = QpCommon::new((slot, qpn), init, shared, sq_ring, source);
        self.qps.put(slot, Box::new(Transport::new(transport, common)));
        CreatedQp { qpn, sq, rq }
    }

    fn check_qp_init(&self, init: &QpInitAttr) -> Result<(), CreateError> {
        self.check_pd(init.pd)?;
        self.check_cq(init.send_cq)?;
        self.check_cq(init.recv_cq)?;
        let (limits, cap) = (&self.port.hca.config.limits, &init.cap);
        if cap.max_send_wr > limits.max_qp_wr || cap.max_recv_wr > limits.max_qp_wr {
            return Err(CreateError::BeyondLimits("number of work requests"));
        }
        let most_sge = limits.max_sge.min(MAX_SGE as u32);
        if cap.max_send_sge > most_sge || cap.max_recv_sge > most_sge {
            return Err(CreateError::BeyondLimits("number of SGEs"));
        }
        if cap.max_inline > limits.max_inline {
            return Err(CreateError::BeyondLimits("inline data"));
        }
        if let Some(srq) = init.srq {
            let srq = self.port.hca.srqs.get(srq.0);
            let srq = srq.ok_or(CreateError::Unknown("shared receive queue"))?;
            if !init.qp_type.has_rq() || srq.attr.xrc.is_some() {
                return Err(CreateError::Invalid("this QP type cannot use this SRQ"));
            }
        }
        if self.port.hca.config.transport == TransportKind::Iwarp && init.qp_type != QpType::Rc {
            return Err(CreateError::Unsupported("iWARP has reliable connections only"));
        }
        match (init.qp_type, init.xrcd) {
            (QpType::XrcTgt, None) => Err(CreateError::Invalid("an XRC target needs a domain")),
            (QpType::XrcTgt, Some(xrcd)) => self.check_xrcd(xrcd),
            (_, Some(_)) => Err(CreateError::Invalid("only XRC targets have a domain")),
            (_, None) => Ok(()),
        }
    }

    /// Counts a queue pair as a user of what it refers to.
    fn count_users(&mut self, init: &QpInitAttr, up: bool) {
        if up {
            self.use_pd(init.pd)
        } else {
            self.unuse_pd(init.pd)
        }
        self.count_cq(init.send_cq, up);
        self.count_cq(init.recv_cq, up);
        if let Some(srq) = init.srq.and_then(|id| self.port.hca.srqs.get_mut(id.0)) {
            srq.users = if up { srq.users + 1 } else { srq.users - 1 };
        }
        if let Some(xrcd) = init.xrcd {
            self.count_xrcd(xrcd, up);
        }
    }

    /// Changes attributes and state of a queue pair. Nothing changes if anything is wrong.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        self.now = now;
        let qp = self.qps.get(qpn).ok_or(ModifyQpError::Unknown)?;
        let result = qp.modify(&mut self.port, now, attr);
        self.finish();
        result
    }

    /// Shows the attributes of a queue pair and how it was made.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpAttr, QpInitAttr)> {
        self.qps.peek(qpn).map(|qp| (qp.query(), qp.common().init))
    }

    /// Destroys a queue pair. What was posted is forgotten without completions.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        if self.port.groups.has(qpn) {
            return Err(DestroyError::Busy);
        }
        let mut qp = self.qps.remove(qpn).ok_or(DestroyError::Unknown)?;
        qp.reset(&mut self.port);
        self.port.hca.departed.add(&qp.common().counters);
        self.count_users(&qp.common().init, false);
        Ok(())
    }
}
