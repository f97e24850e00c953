//! Objects of the software adapter: the engine behind its driver.

use std::sync::{Arc, Mutex};

use feroce_engine::{
    AddrVec, AhId, Counters, CqId, CreatedQp, DropCounters, ModifyQpError, QpAttr, QpInitAttr,
    QpState, SrqId, SrqInitAttr,
};
use feroce_link::Control;
use feroce_local::Member;
use feroce_mem::{Access, Iova, MwType, PdId, Region};
use feroce_wire::{Gid, Lkey, Qpn, Rkey};

use super::{Either, mixed};
use crate::Error;
use crate::attr::{DeviceAttr, PortAttr};
use crate::channel::ChannelSide;
use crate::cq::SoftCq;
use crate::device::Device;
use crate::driver::{AsyncQueue, ChannelQueue, Clock, Driver, Object};
use crate::mr::Keys;
use crate::pd::PdSide;
use crate::qp::{CreatedSides, SoftReceiver, SoftSender, Uses};
use crate::srq::SoftSrq;

/// The software adapter: the engine and its links, driven.
#[derive(Debug)]
pub(crate) struct SoftAdapter {
    pub(crate) driver: Arc<Driver>,
    /// Its registry slot among the processes that share its addresses.
    pub(crate) member: Option<Arc<Member>>,
    /// Registered memory is made shareable.
    pub(crate) converts: bool,
}

impl Drop for SoftAdapter {
    fn drop(&mut self) {
        self.driver.shut_down();
    }
}

impl SoftAdapter {
    pub(crate) fn is_cut_off(&self) -> bool {
        self.driver.is_cut_off()
    }

    pub(crate) fn take_leave(&self) {
        self.driver.take_leave();
    }

    pub(crate) fn listen(&self, events: &Arc<AsyncQueue>) {
        self.driver.control(|s, _| s.dispatch.listen(events));
    }

    pub(crate) fn attr(&self, device: &Device) -> DeviceAttr {
        self.driver.read(|s| DeviceAttr::of(device, s.engine.config()))
    }

    pub(crate) fn port(&self, device: &Device) -> PortAttr {
        self.driver.read(|s| {
            let (config, addresses) = (s.engine.config(), (s.engine.gids(), s.engine.lid()));
            PortAttr::of(device, config, s.is_up, addresses, s.engine.drops())
        })
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.driver.clock()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.driver.read(|s| s.engine.counters())
    }

    pub(crate) fn drops(&self) -> DropCounters {
        self.driver.read(|s| *s.engine.drops())
    }

    pub(crate) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        self.driver.read(|s| s.link.counters())
    }

    pub(crate) fn create_channel(&self) -> Result<Arc<ChannelQueue>, Error> {
        Ok(Arc::new(ChannelQueue::new()?))
    }

    pub(crate) fn implicit_channel(&self) -> Result<Arc<ChannelQueue>, Error> {
        Ok(Arc::new(ChannelQueue::without_descriptor()))
    }

    pub(crate) fn alloc_pd(&self) -> Result<SoftPd, Error> {
        let id = self.driver.control(|s, _| s.engine.alloc_pd())?;
        Ok(SoftPd { id, driver: Arc::clone(&self.driver) })
    }

    pub(crate) fn create_cq(
        &self,
        depth: u32,
        channel: &ChannelSide,
        events: &Arc<AsyncQueue>,
    ) -> Result<(CqId, SoftCq), Error> {
        let queue = channel.soft().ok_or_else(mixed)?;
        let (id, poller) = self.driver.control(|s, _| {
            let created = s.engine.create_cq(depth)?;
            s.dispatch.attach(created.0, Arc::clone(queue));
            s.dispatch.own(Object::Cq(created.0), events);
            Ok::<_, Error>(created)
        })?;
        Ok((id, SoftCq { id, poller: Mutex::new(poller), driver: Arc::clone(&self.driver) }))
    }

    /// Memory that other processes of the host can map, if that is of use and possible.
    pub(crate) fn alloc_region(&self, len: usize) -> Option<Arc<Region>> {
        self.member.as_ref().and_then(|member| member.alloc(len).ok())
    }

    /// Memory of the caller as a region that other processes of the host can map, if that is
    /// possible.
    ///
    /// # Safety
    /// As for [`Pd::raw_region`](crate::Pd::raw_region).
    pub(crate) unsafe fn share_region(&self, ptr: *mut u8, len: usize) -> Option<Arc<Region>> {
        let member = self.member.as_ref()?;
        // SAFETY: the caller makes the promise of `Pd::raw_region`, which is that of `map_shared`.
        let shareable = match unsafe { member.map_shared(ptr, len) } {
            // SAFETY: with `convert`, the caller also promises that no thread writes to the bytes.
            Err(_) if self.converts => unsafe { member.remap_shared(ptr, len) },
            adopted => adopted,
        };
        match shareable {
            Ok(region) => Some(region),
            Err(why) => {
                if self.converts {
                    tracing::info!("{len} bytes at {ptr:p} stay private: {why}");
                }
                None
            }
        }
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct SoftPd {
    id: PdId,
    driver: Arc<Driver>,
}

impl SoftPd {
    pub(crate) fn dealloc(&self) -> Result<(), Error> {
        Ok(self.driver.control(|s, _| s.engine.dealloc_pd(self.id))?)
    }

    pub(crate) fn register(
        &self,
        region: &Arc<Region>,
        (start, len): (usize, usize),
        iova: Iova,
        access: Access,
    ) -> Result<(SoftMr, Keys), Error> {
        let (key, addr) = self.driver.control(|s, _| {
            let region = Arc::clone(region);
            let key = s.engine.reg_mr(self.id, region, start, len, iova, access)?;
            Ok::<_, Error>((key, s.engine.query_mr(key).map_or(0, |info| info.iova)))
        })?;
        let keys = Keys { lkey: key, rkey: Rkey(key.0), addr };
        Ok((SoftMr { key, driver: Arc::clone(&self.driver) }, keys))
    }

    pub(crate) fn alloc_mw(&self, kind: MwType) -> Result<(SoftMw, Rkey), Error> {
        let rkey = self.driver.control(|s, _| s.engine.alloc_mw(self.id, kind))?;
        Ok((SoftMw { rkey, driver: Arc::clone(&self.driver) }, rkey))
    }

    pub(crate) fn create_ah(&self, av: &AddrVec) -> Result<SoftAh, Error> {
        let id = self.driver.control(|s, _| s.engine.create_ah(self.id, *av))?;
        Ok(SoftAh { id, driver: Arc::clone(&self.driver) })
    }

    pub(crate) fn create_srq(
        &self,
        attr: SrqInitAttr,
        events: &Arc<AsyncQueue>,
    ) -> Result<(SrqId, SoftSrq), Error> {
        let attr = SrqInitAttr { pd: self.id, ..attr };
        let (id, queue) = self.driver.control(|s, _| {
            let created = s.engine.create_srq(attr)?;
            s.dispatch.own(Object::Srq(created.0), events);
            Ok::<_, Error>(created)
        })?;
        Ok((id, SoftSrq { id, queue: Mutex::new(queue), driver: Arc::clone(&self.driver) }))
    }

    /// Creates a queue pair. The engine knows the queues that it uses by the names in `init`.
    pub(crate) fn create_qp(
        &self,
        init: QpInitAttr,
        _uses: &Uses,
        events: &Arc<AsyncQueue>,
    ) -> Result<CreatedSides, Error> {
        let init = QpInitAttr { pd: self.id, ..init };
        let CreatedQp { qpn, sq, rq } = self.driver.control(|s, _| {
            let created = s.engine.create_qp(init)?;
            s.dispatch.own(Object::Qp(created.qpn), events);
            Ok::<_, Error>(created)
        })?;
        let driver = || Arc::clone(&self.driver);
        Ok(CreatedSides {
            qpn,
            qp: Either::Soft(SoftQp { qpn, driver: driver() }),
            sender: Either::Soft(SoftSender::new(sq, qpn, driver())),
            receiver: rq.map(|queue| Either::Soft(SoftReceiver { queue, driver: driver() })),
        })
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct SoftMr {
    key: Lkey,
    driver: Arc<Driver>,
}

impl SoftMr {
    /// Changes the registration. The keys stay. Returns when no access that began before is left.
    pub(crate) fn rereg(
        &mut self,
        pd: Option<&PdSide>,
        memory: Option<&(Arc<Region>, Iova)>,
        access: Option<Access>,
    ) -> Result<Keys, Error> {
        let pd = pd.map(|pd| pd.soft().map(|pd| pd.id).ok_or_else(mixed)).transpose()?;
        let range = memory.map(|(region, iova)| (Arc::clone(region), 0, region.len(), *iova));
        let request = feroce_mem::Rereg { pd, range, access };
        let key = self.key;
        let (old, addr) = self.driver.control_until_quiet(|s, _| {
            let old = s.engine.rereg_mr(key, request);
            let addr = s.engine.query_mr(key).map_or(0, |info| info.iova);
            (old.map(|old| (old, addr)), s.engine.last_revocation(None))
        })?;
        old.wait(std::thread::yield_now);
        Ok(Keys { lkey: key, rkey: Rkey(key.0), addr })
    }

    /// Deregisters it. Returns when no access is left.
    pub(crate) fn dereg(&self) -> Result<(), Error> {
        let dereg = self.driver.control_until_quiet(|s, _| {
            (s.engine.dereg_mr(self.key), s.engine.last_revocation(None))
        })?;
        dereg.wait(std::thread::yield_now);
        Ok(())
    }
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct SoftMw {
    /// Its first key: the engine finds the window by the part that binding does not change.
    rkey: Rkey,
    driver: Arc<Driver>,
}

impl Drop for SoftMw {
    fn drop(&mut self) {
        // The window exists, but a binding may have given it another key.
        let _ = self.driver.control_until_quiet(|s, _| {
            let now = s.engine.current_mw(self.rkey).unwrap_or(self.rkey);
            (s.engine.dealloc_mw(now), s.engine.last_revocation(None))
        });
    }
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct SoftAh {
    id: AhId,
    driver: Arc<Driver>,
}

impl SoftAh {
    pub(crate) fn id(&self) -> AhId {
        self.id
    }
}

impl Drop for SoftAh {
    fn drop(&mut self) {
        // The handle exists: this object created it and only this destroys it.
        let _ = self.driver.control(|s, _| s.engine.destroy_ah(self.id));
    }
}

/// The control side of a queue pair.
#[derive(Debug)]
pub(crate) struct SoftQp {
    qpn: Qpn,
    driver: Arc<Driver>,
}

impl SoftQp {
    /// Remote access that only this backend has.
    pub(crate) fn more_access(&self) -> Access {
        Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT
    }

    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.driver.control_until_quiet(|s, now| {
            let peer = s.engine.peer_of(self.qpn);
            let modified = s.engine.modify_qp(now, self.qpn, attr);
            let ends_rights = matches!(attr.state, Some(QpState::Reset | QpState::Err))
                || attr.access.is_some()
                || attr.av.is_some();
            let peer = peer.filter(|_| ends_rights);
            (modified, peer.and_then(|peer| s.engine.last_revocation(Some(peer))))
        })
    }

    pub(crate) fn query(&self) -> Option<(QpAttr, QpInitAttr)> {
        self.driver.read(|s| s.engine.query_qp(self.qpn))
    }

    pub(crate) fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        self.driver.control(|s, _| {
            if s.engine.attach_mcast(self.qpn, group)? {
                s.link.control(Control::Join(group))?;
            }
            Ok(())
        })
    }

    pub(crate) fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        self.driver.control(|s, _| {
            if s.engine.detach_mcast(self.qpn, group)? {
                s.link.control(Control::Leave(group))?;
            }
            Ok(())
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.driver.control_until_quiet(|s, _| {
            let peer = s.engine.peer_of(self.qpn);
            let destroyed = s.engine.destroy_qp(self.qpn);
            if destroyed.is_ok() {
                s.dispatch.disown(Object::Qp(self.qpn));
            }
            let revoked = peer.and_then(|peer| s.engine.last_revocation(Some(peer)));
            (destroyed.map_err(Error::from), revoked)
        })
    }
}
