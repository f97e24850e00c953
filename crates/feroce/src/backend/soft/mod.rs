//! Objects of the software adapter: the engine behind its driver.

mod attr;
mod cq;
mod ends;
mod mr;
mod qp;
mod rings;
mod srq;

use std::sync::{Arc, Mutex};

use feroce_backend_rdma_core::Feature;
use feroce_engine::iwarp::HandshakeConfig;
use feroce_engine::{
    AddrVec, AhId, Counters, CqId, CreateError, CreatedQp, DropCounters, QpCounters, QpInitAttr,
    SrqId, SrqInitAttr,
};
use feroce_local::Registry;
use feroce_mem::{Access, Iova, MwType, PdId, Region};
use feroce_train::Framing;
use feroce_wire::Rkey;

use super::{ChannelSide, CreatedSides, Either, Keys, QueueSides};
use crate::Error;
use crate::attr::{DeviceAttr, PortAttr};
use crate::device::Device;
use crate::driver::{AsyncQueue, ChannelQueue, Clock, Driver, Object, Shards, add_counters};
use crate::fabric_port::FabricPort;
use crate::summary::Summary;

pub(crate) use attr::{device_attr, port_attr};
pub(crate) use cq::SoftCq;
pub(crate) use ends::{SoftReceiver, SoftSender};
pub(crate) use mr::{SoftMr, SoftMw};
pub(crate) use qp::SoftQp;
pub(crate) use srq::SoftSrq;

/// The software adapter: the engine and its links, driven.
#[derive(Debug)]
pub(crate) struct SoftAdapter {
    /// The first shard.
    pub(crate) driver: Arc<Driver>,
    pub(crate) shards: Arc<Shards>,
    /// Its registry slot among the processes that share its addresses.
    pub(crate) registry: Option<Arc<Registry>>,
    /// Its place in a fabric.
    pub(crate) fabric: Option<FabricPort>,
    /// What it asks for in handshakes, if it speaks iWARP.
    pub(crate) iwarp: Option<HandshakeConfig>,
    /// The framing of connections that its connection manager makes.
    pub(crate) cm_framing: Framing,
    /// Registered memory is made shareable.
    pub(crate) converts: bool,
    /// The name to print what it did under, at its end.
    pub(crate) summary: Option<Summary>,
}

impl Drop for SoftAdapter {
    fn drop(&mut self) {
        self.shards.iter().for_each(|driver| driver.shut_down());
        self.print_summary();
    }
}

impl SoftAdapter {
    pub(crate) fn is_cut_off(&self) -> bool {
        self.driver.is_cut_off()
    }

    pub(crate) fn prepare_exit(&self) {
        self.shards.iter().for_each(|driver| driver.prepare_exit());
        self.print_summary();
    }

    fn print_summary(&self) {
        if let Some(summary) = self.summary.as_ref().filter(|_| !self.is_cut_off()) {
            let mut totals = QpCounters::default();
            self.shards.iter().for_each(|d| totals.add(&d.read(|s| s.engine.report()).totals));
            summary.print(&totals, &self.counters(), &self.drops(), &self.link_counters());
        }
    }

    /// What tells the numbers of this process from those of others at its addresses, if there may
    /// be others.
    pub(crate) fn prefix(&self) -> Option<u8> {
        let of_registry = self.registry.as_ref().map(|registry| registry.prefix());
        of_registry.or_else(|| self.fabric.as_ref().map(FabricPort::prefix))
    }

    pub(crate) fn listen(&self, events: &Arc<AsyncQueue>) {
        self.driver.control(|s, _| s.dispatch.listen(events));
    }

    pub(crate) fn attr(&self, device: &Device) -> DeviceAttr {
        let shards = u8::try_from(self.shards.len()).unwrap_or(u8::MAX);
        self.driver.read(|s| device_attr(device, s.engine.config(), shards))
    }

    pub(crate) fn port(&self, device: &Device) -> PortAttr {
        self.driver.read(|s| {
            let drops = s.engine.drops();
            if let Some(port) = &s.subnet {
                let (bad_pkeys, bad_qkeys) = (drops.drop_bad_pkey, drops.drop_bad_qkey);
                return PortAttr { bad_pkeys, bad_qkeys, ..port.attr() };
            }
            let (config, addresses) = (s.engine.config(), (s.engine.gids(), s.engine.lid()));
            port_attr(device, config, s.is_up, addresses, drops)
        })
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.driver.clock()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.shards.iter().for_each(|driver| all.add(&driver.read(|s| s.engine.counters())));
        all
    }

    pub(crate) fn drops(&self) -> DropCounters {
        let mut all = DropCounters::default();
        self.shards.iter().for_each(|driver| all.add(&driver.read(|s| *s.engine.drops())));
        all
    }

    pub(crate) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.driver.link_counters();
        for shard in self.shards.iter().skip(1) {
            add_counters(&mut all, shard.link_counters());
        }
        all
    }

    pub(crate) fn create_channel(&self) -> Result<Arc<ChannelQueue>, Error> {
        Ok(Arc::new(ChannelQueue::new()?))
    }

    pub(crate) fn implicit_channel(&self) -> Result<Arc<ChannelQueue>, Error> {
        Ok(Arc::new(ChannelQueue::without_descriptor()))
    }

    pub(crate) fn alloc_pd(&self) -> Result<SoftPd, Error> {
        let id = self.shards.create(|s, others| {
            let id = s.engine.alloc_pd()?;
            let copied = others.iter_mut().try_for_each(|other| {
                other.engine.alloc_pd_as(Some(id))?;
                Ok::<_, CreateError>(())
            });
            if copied.is_err() {
                let all = std::iter::once(s).chain(others.iter_mut().map(|other| &mut **other));
                for state in all {
                    let _ = state.engine.dealloc_pd(id);
                }
            }
            copied.map(|()| id)
        })?;
        Ok(SoftPd { id, shards: Arc::clone(&self.shards) })
    }

    pub(crate) fn create_cq(
        &self,
        depth: u32,
        channel: &ChannelSide,
        events: &Arc<AsyncQueue>,
    ) -> Result<(CqId, SoftCq), Error> {
        let queue = channel.soft().ok_or(Error::OtherDevice)?;
        if self.shards.len() > 1 {
            return SoftCq::create_in_all(&self.shards, depth, queue, events);
        }
        let (id, poller) = self.driver.create(|s| {
            let created = s.engine.create_cq(depth)?;
            s.dispatch.attach(created.0, Arc::clone(queue));
            s.dispatch.own(Object::Cq(created.0), events);
            Ok::<_, Error>(created)
        })?;
        Ok((id, SoftCq::new(id, poller, Arc::clone(&self.driver))))
    }

    /// Memory that other processes of the host can map, if that is of use and possible.
    pub(crate) fn alloc_region(&self, len: usize) -> Option<Arc<Region>> {
        self.registry.as_ref().and_then(|registry| registry.alloc(len).ok())
    }

    /// Memory of the caller as a region that other processes of the host can map, if that is
    /// possible.
    ///
    /// # Safety
    /// As for [`Pd::raw_region`](crate::Pd::raw_region).
    pub(crate) unsafe fn share_region(&self, ptr: *mut u8, len: usize) -> Option<Arc<Region>> {
        let registry = self.registry.as_ref()?;
        // SAFETY: the caller makes the promise of `Pd::raw_region`, which is that of `map_shared`.
        let shareable = match unsafe { registry.map_shared(ptr, len) } {
            // SAFETY: with `convert`, the caller also promises that no thread writes to the bytes.
            Err(_) if self.converts => unsafe { registry.remap_shared(ptr, len) },
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
    shards: Arc<Shards>,
}

impl SoftPd {
    pub(crate) fn dealloc(&self) -> Result<(), Error> {
        Ok(self.shards.control(|s, others| {
            others.iter().try_for_each(|other| other.engine.may_dealloc_pd(self.id))?;
            s.engine.dealloc_pd(self.id)?;
            others.iter_mut().try_for_each(|other| other.engine.dealloc_pd(self.id))
        })?)
    }

    pub(crate) fn register(
        &self,
        region: &Arc<Region>,
        (start, len): (usize, usize),
        iova: Iova,
        access: Access,
    ) -> Result<(SoftMr, Keys), Error> {
        let (key, addr) = self.shards.create(|s, others| {
            let region = Arc::clone(region);
            let key = s.engine.reg_mr(self.id, region, start, len, iova, access)?;
            let mut copies = others.iter_mut();
            if let Err(e) = copies.try_for_each(|other| other.engine.copy_mr(&s.engine, key)) {
                // No access has begun yet, so there is nothing to wait for.
                drop(s.engine.dereg_mr(key));
                others.iter_mut().for_each(|other| drop(other.engine.dereg_mr(key)));
                return Err(e.into());
            }
            Ok::<_, Error>((key, s.engine.query_mr(key).map_or(0, |info| info.iova)))
        })?;
        let keys = Keys { lkey: key, rkey: Rkey(key.0), addr };
        Ok((SoftMr { key, shards: Arc::clone(&self.shards) }, keys))
    }

    pub(crate) fn alloc_mw(&self, kind: MwType) -> Result<(SoftMw, Rkey), Error> {
        if self.shards.len() > 1 {
            return Err(Error::Unsupported(Feature::MemoryWindows));
        }
        let driver = self.shards.first();
        let rkey = driver.create(|s| s.engine.alloc_mw(self.id, kind))?;
        Ok((SoftMw { rkey, driver: Arc::clone(driver) }, rkey))
    }

    pub(crate) fn create_ah(&self, av: &AddrVec) -> Result<SoftAh, Error> {
        let driver = self.shards.first();
        let id = driver.create(|s| s.engine.create_ah(self.id, *av))?;
        Ok(SoftAh { id, driver: Arc::clone(driver) })
    }

    pub(crate) fn create_srq(
        &self,
        attr: SrqInitAttr,
        events: &Arc<AsyncQueue>,
    ) -> Result<(SrqId, SoftSrq), Error> {
        let attr = SrqInitAttr { pd: self.id, ..attr };
        let driver = self.shards.first();
        let (id, queue) = driver.create(|s| {
            let created = s.engine.create_srq(attr)?;
            s.dispatch.own(Object::Srq(created.0), events);
            Ok::<_, Error>(created)
        })?;
        Ok((id, SoftSrq { id, queue: Mutex::new(queue), driver: Arc::clone(driver) }))
    }

    /// Creates a queue pair. The engine knows the queues that it uses by the names in `init`.
    pub(crate) fn create_qp(
        &self,
        init: QpInitAttr,
        queues: &QueueSides<'_>,
        events: &Arc<AsyncQueue>,
    ) -> Result<CreatedSides, Error> {
        let init = QpInitAttr { pd: self.id, ..init };
        let (shard, home) = self.shards.place(&init);
        let cqs = [queues.send_cq, queues.recv_cq];
        cqs.into_iter().filter_map(Either::soft).for_each(|cq| cq.add_home(shard));
        let CreatedQp { qpn, sq, rq } = home.create(|s| {
            let created = s.engine.create_qp(init)?;
            s.dispatch.own(Object::Qp(created.qpn), events);
            Ok::<_, Error>(created)
        })?;
        let driver = || Arc::clone(home);
        Ok(CreatedSides {
            qpn,
            qp: Either::Soft(SoftQp { qpn, driver: driver() }),
            sender: Either::Soft(SoftSender::new(sq, qpn, driver())),
            receiver: rq.map(|queue| Either::Soft(SoftReceiver { queue, driver: driver() })),
        })
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
