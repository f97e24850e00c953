//! Objects of the kernel's drivers: those of `backend-rdma-core`, with the clock and the event
//! queues of the open device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_backend_rdma_core::{self as rdma_core, Feature};
use feroce_engine::{
    AddrVec, Counters, CqId, Cqe, DropCounters, Event, Notify, QpAttr, QpInitAttr, SrqAttr, SrqId,
    SrqInitAttr,
};
use feroce_mem::{Access, Iova, MwType, Region};
use feroce_train::Instant;
use feroce_wire::{Gid, Qpn, Rkey};

use super::{ChannelSide, CreatedSides, Either, Keys, PdSide, QueueSides};
use crate::attr::{DeviceAttr, PortAttr};
use crate::device::Device;
use crate::driver::{AsyncQueue, Clock, Dispatch, Object};
use crate::{Error, ModifyQpError, Settings};

/// An open device.
#[derive(Debug)]
pub(crate) struct KernelAdapter {
    // Declared first, so that its thread ends before the table that it delivers to.
    adapter: Arc<rdma_core::Adapter>,
    dispatch: Arc<Mutex<Dispatch>>,
    clock: Clock,
}

impl KernelAdapter {
    pub(crate) fn open(device: &Device, settings: &Settings) -> Result<Arc<Self>, Error> {
        refuse_layers(settings)?;
        let dispatch = Arc::new(Mutex::new(Dispatch::default()));
        let table = Arc::clone(&dispatch);
        let deliver = move |event| {
            let table = table.lock().unwrap_or_else(PoisonError::into_inner);
            table.deliver(Event::Async(event));
            let wakes = Arc::clone(table.wakes());
            drop(table);
            wakes.run();
        };
        let directory = settings.rdma_core.as_deref();
        let adapter = rdma_core::Adapter::open(device.name(), directory, Box::new(deliver))?;
        Ok(Arc::new(Self { adapter, dispatch, clock: Clock::start() }))
    }

    fn dispatch(&self) -> MutexGuard<'_, Dispatch> {
        self.dispatch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object is destroyed, and its events with it. Wakers run after the lock is released.
    fn disown(&self, object: Object) {
        let mut dispatch = self.dispatch();
        dispatch.disown(object);
        let wakes = Arc::clone(dispatch.wakes());
        drop(dispatch);
        wakes.run();
    }

    /// A child process may use the device as its parent does.
    pub(crate) fn is_cut_off(&self) -> bool {
        false
    }

    /// The kernel ends the connections of a process that exits.
    pub(crate) fn prepare_exit(&self) {}

    pub(crate) fn listen(&self, events: &Arc<AsyncQueue>) {
        self.dispatch().listen(events);
    }

    pub(crate) fn attr(&self, device: &Device) -> DeviceAttr {
        DeviceAttr::of_kernel(device.name(), self.adapter.info())
    }

    pub(crate) fn port(&self, _device: &Device) -> PortAttr {
        PortAttr::of_kernel(&self.adapter.port())
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Drivers count in `/sys/class/infiniband`.
    pub(crate) fn counters(&self) -> Counters {
        Counters::default()
    }

    pub(crate) fn drops(&self) -> DropCounters {
        DropCounters::default()
    }

    pub(crate) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    pub(crate) fn create_channel(&self) -> Result<Arc<rdma_core::Channel>, Error> {
        Ok(Arc::new(rdma_core::Channel::create(&self.adapter)?))
    }

    pub(crate) fn implicit_channel(&self) -> Result<Arc<rdma_core::Channel>, Error> {
        self.create_channel()
    }

    pub(crate) fn alloc_pd(self: &Arc<Self>) -> Result<KernelPd, Error> {
        let pd = rdma_core::Pd::alloc(&self.adapter)?;
        Ok(KernelPd { pd, adapter: Arc::clone(self) })
    }

    pub(crate) fn create_cq(
        self: &Arc<Self>,
        depth: u32,
        channel: &ChannelSide,
        events: &Arc<AsyncQueue>,
    ) -> Result<(CqId, KernelCq), Error> {
        let channel = channel.kernel().ok_or(Error::OtherDevice)?;
        let (cq, id) = rdma_core::Cq::create(&self.adapter, depth, channel)?;
        self.dispatch().own(Object::Cq(id), events);
        Ok((id, KernelCq { id, cq, adapter: Arc::clone(self) }))
    }

    /// Drivers register any memory, so none is allocated in a special way.
    pub(crate) fn alloc_region(&self, _len: usize) -> Option<Arc<Region>> {
        None
    }

    /// # Safety
    /// As for [`Pd::raw_region`](crate::Pd::raw_region).
    pub(crate) unsafe fn share_region(&self, _ptr: *mut u8, _len: usize) -> Option<Arc<Region>> {
        None
    }
}

/// Packets of a hardware device do not pass through `feroce`, so no layer can see them.
fn refuse_layers(settings: &Settings) -> Result<(), Error> {
    let asked = [
        (settings.pcap.is_some(), Feature::Capture),
        (settings.trace.is_some(), Feature::Trace),
        (settings.fault.is_some(), Feature::Faults),
        (settings.tap.is_some(), Feature::Tap),
    ];
    match asked.into_iter().find(|(is_asked, _)| *is_asked) {
        Some((_, feature)) => Err(Error::Unsupported(feature)),
        None => Ok(()),
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct KernelPd {
    pd: rdma_core::Pd,
    adapter: Arc<KernelAdapter>,
}

impl KernelPd {
    pub(crate) fn dealloc(&self) -> Result<(), Error> {
        Ok(self.pd.dealloc()?)
    }

    pub(crate) fn register(
        &self,
        region: &Arc<Region>,
        part: (usize, usize),
        iova: Iova,
        access: Access,
    ) -> Result<(KernelMr, Keys), Error> {
        let (mr, keys) = rdma_core::Mr::register(&self.pd, region, part, iova, access)?;
        let rdma_core::Keys { lkey, rkey, addr } = keys;
        Ok((KernelMr { mr, addr }, Keys { lkey, rkey, addr }))
    }

    pub(crate) fn alloc_mw(&self, kind: MwType) -> Result<(rdma_core::Mw, Rkey), Error> {
        Ok(rdma_core::Mw::alloc(&self.pd, kind)?)
    }

    pub(crate) fn create_ah(&self, av: &AddrVec) -> Result<rdma_core::Ah, Error> {
        Ok(rdma_core::Ah::create(&self.pd, av)?)
    }

    pub(crate) fn create_srq(
        &self,
        attr: SrqInitAttr,
        events: &Arc<AsyncQueue>,
    ) -> Result<(SrqId, KernelSrq), Error> {
        if attr.xrc.is_some() {
            return Err(Error::Unsupported(Feature::Xrc));
        }
        let (srq, id) = rdma_core::Srq::create(&self.pd, attr.max_wr, attr.max_sge)?;
        self.adapter.dispatch().own(Object::Srq(id), events);
        Ok((id, KernelSrq { id, srq, adapter: Arc::clone(&self.adapter) }))
    }

    pub(crate) fn create_qp(
        &self,
        init: QpInitAttr,
        queues: &QueueSides<'_>,
        events: &Arc<AsyncQueue>,
    ) -> Result<CreatedSides, Error> {
        let (send, recv) = (queues.send_cq.kernel(), queues.recv_cq.kernel());
        let (send, recv) = send.zip(recv).ok_or(Error::OtherDevice)?;
        let srq = queues.srq.map(|srq| srq.kernel().ok_or(Error::OtherDevice)).transpose()?;
        let cqs = (&send.cq, &recv.cq);
        let (qp, qpn) = rdma_core::Qp::create(&self.pd, cqs, srq.map(|srq| &srq.srq), init)?;
        let qp = Arc::new(qp);
        self.adapter.dispatch().own(Object::Qp(qpn), events);
        Ok(CreatedSides {
            qpn,
            sender: Either::Kernel(rdma_core::SendEnd::new(&qp)),
            receiver: srq.is_none().then(|| Either::Kernel(rdma_core::RecvEnd::new(&qp))),
            qp: Either::Kernel(KernelQp { qpn, qp, adapter: Arc::clone(&self.adapter) }),
        })
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct KernelMr {
    mr: rdma_core::Mr,
    /// Address of the first byte, as work requests count.
    addr: u64,
}

impl KernelMr {
    /// Changes the registration; the driver may change the keys.
    pub(crate) fn rereg(
        &mut self,
        pd: Option<&PdSide>,
        memory: Option<&(Arc<Region>, Iova)>,
        access: Option<Access>,
    ) -> Result<Keys, Error> {
        let pd = pd.map(|pd| pd.kernel().map(|pd| &pd.pd).ok_or(Error::OtherDevice)).transpose()?;
        let rdma_core::Keys { lkey, rkey, addr } = self.mr.rereg(pd, memory, access)?;
        if memory.is_some() {
            self.addr = addr;
        }
        Ok(Keys { lkey, rkey, addr: self.addr })
    }

    pub(crate) fn dereg(&self) -> Result<(), Error> {
        Ok(self.mr.dereg()?)
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct KernelCq {
    id: CqId,
    cq: rdma_core::Cq,
    adapter: Arc<KernelAdapter>,
}

impl KernelCq {
    #[inline]
    pub(crate) fn poll_one(&self) -> Option<Cqe> {
        self.cq.poll_one(|| self.adapter.clock.now())
    }

    /// There is nothing to drive.
    pub(crate) fn look_one(&self) -> Option<Cqe> {
        self.poll_one()
    }

    /// The time of the device.
    pub(crate) fn now(&self) -> Instant {
        self.adapter.clock.now()
    }

    /// Polls for `longest_ns`.
    pub(crate) fn linger(&self, longest_ns: u64) -> Option<Cqe> {
        let until = self.adapter.clock.now().plus_nanos(longest_ns);
        loop {
            if let Some(cqe) = self.poll_one() {
                return Some(cqe);
            }
            if self.adapter.clock.now() >= until {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// The driver of the kernel makes progress by itself.
    #[inline]
    pub(crate) fn take_one(&self) -> Option<Cqe> {
        self.poll_one()
    }

    #[inline]
    pub(crate) fn poll_each(&self, most: usize, take: impl FnMut(Cqe)) -> usize {
        self.cq.poll_each(most, || self.adapter.clock.now(), take)
    }

    pub(crate) fn notify(&self, notify: Notify) {
        self.cq.notify(notify);
    }

    pub(crate) fn resize(&self, depth: u32) -> Result<(), Error> {
        Ok(self.cq.resize(depth)?)
    }

    /// Drivers remove the completions of a queue pair that is reset.
    pub(crate) fn forget(&self, _qpn: Qpn) {}

    pub(crate) fn depth(&self) -> usize {
        self.cq.depth()
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.cq.destroy()?;
        self.adapter.disown(Object::Cq(self.id));
        Ok(())
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct KernelSrq {
    id: SrqId,
    srq: rdma_core::Srq,
    adapter: Arc<KernelAdapter>,
}

impl KernelSrq {
    pub(crate) fn post(
        &self,
        wrs: impl IntoIterator<Item = feroce_engine::RecvWr>,
    ) -> Result<(), rdma_core::PostError> {
        self.srq.post(wrs)
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.srq.set_limit(limit)?)
    }

    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), Error> {
        Ok(self.srq.resize(max_wr)?)
    }

    pub(crate) fn query(&self) -> Option<SrqAttr> {
        self.srq.query()
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.srq.destroy()?;
        self.adapter.disown(Object::Srq(self.id));
        Ok(())
    }
}

/// The control side of a queue pair.
#[derive(Debug)]
pub(crate) struct KernelQp {
    qpn: Qpn,
    pub(crate) qp: Arc<rdma_core::Qp>,
    adapter: Arc<KernelAdapter>,
}

impl KernelQp {
    /// Most drivers refuse access flags that they do not know.
    pub(crate) fn more_access(&self) -> Access {
        Access::empty()
    }

    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        Ok(self.qp.modify(attr)?)
    }

    pub(crate) fn query(&self) -> Option<(QpAttr, QpInitAttr)> {
        self.qp.query()
    }

    pub(crate) fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.qp.attach_mcast(group)?)
    }

    pub(crate) fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.qp.detach_mcast(group)?)
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.qp.destroy()?;
        self.adapter.disown(Object::Qp(self.qpn));
        Ok(())
    }
}
