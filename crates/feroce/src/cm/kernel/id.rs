//! Ids of librdmacm.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use feroce_backend_rdma_core as rdma_core;
use feroce_cm::rdma::{BindError, EventKind};
use rdma_core::cm as hard;

use super::manager::KernelManager;
use crate::cm::CmError;
use crate::context::Context;
use crate::{Error, Qp};

/// Ids by number: events name them so.
static IDS: Mutex<BTreeMap<u64, Weak<Inner>>> = Mutex::new(BTreeMap::new());

fn ids() -> MutexGuard<'static, BTreeMap<u64, Weak<Inner>>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id of librdmacm, and the device that it uses.
#[derive(Clone, Debug)]
pub(crate) struct KernelId {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    id: hard::Id,
    context: OnceLock<Context>,
    manager: Mutex<Arc<KernelManager>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        ids().remove(&self.id.number());
    }
}

/// Calls that need no device go to librdmacm as they are.
impl Deref for KernelId {
    type Target = hard::Id;

    fn deref(&self) -> &hard::Id {
        &self.inner.id
    }
}

impl KernelId {
    /// Registers an id, whose device is one of the manager's.
    pub(super) fn new(id: hard::Id, manager: &Arc<KernelManager>) -> Self {
        let number = id.number();
        let manager = Mutex::new(Arc::clone(manager));
        let inner = Arc::new(Inner { id, context: OnceLock::new(), manager });
        ids().insert(number, Arc::downgrade(&inner));
        Self { inner }
    }

    /// The id with this number, unless it is dropped.
    pub(super) fn numbered(number: u64) -> Option<Self> {
        let inner = ids().get(&number).and_then(Weak::upgrade)?;
        Some(Self { inner })
    }

    pub(super) fn manager(&self) -> Arc<KernelManager> {
        Arc::clone(&self.inner.manager.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_manager(&self, manager: &Arc<KernelManager>) {
        let mut held = self.inner.manager.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::clone(manager);
    }

    pub(crate) fn context(&self) -> Option<&Context> {
        self.inner.context.get()
    }

    /// Remembers the device that the address belongs to; the first one counts.
    fn choose(&self, context: Context) {
        let context = self.inner.context.get_or_init(|| context);
        self.set_max_rd_atomic(context.attr().limits.max_rd_atomic);
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        self.inner.id.bind(addr).map_err(|e| self.refused(e, addr.ip()))?;
        if !addr.ip().is_unspecified() {
            self.choose(self.manager().context_for(addr.ip())?);
        }
        Ok(())
    }

    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        if self.local_addr().is_none() {
            self.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        self.inner.id.listen(backlog).map_err(|e| match self.local_addr() {
            Some(addr) => self.refused(e, addr.ip()),
            None => e.into(),
        })
    }

    /// The error of the software adapter for an address or port that cannot be had.
    fn refused(&self, e: rdma_core::Error, ip: IpAddr) -> Error {
        // EADDRNOTAVAIL has two meanings: no device has the address, or the port is taken there.
        let is_ours = || ip.is_unspecified() || self.manager().context_for(ip).is_ok();
        match e.errno() {
            Some(libc::EADDRINUSE) => CmError::Port(BindError::InUse).into(),
            Some(libc::EADDRNOTAVAIL) if is_ours() => CmError::Port(BindError::Overlaps).into(),
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => CmError::NoDevice(ip).into(),
            Some(libc::EINVAL) => CmError::WrongState.into(),
            _ => e.into(),
        }
    }

    pub(crate) fn use_qp(&self, qp: &Qp) -> Result<(), Error> {
        let kernel = qp.handle().side().kernel().ok_or(CmError::NoQp)?;
        Ok(self.inner.id.use_qp(&kernel.qp, qp.qpn(), qp.handle().srq().is_some())?)
    }

    pub(crate) fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(CmError::NotMulticast(group).into());
        }
        Ok(self.inner.id.join_multicast(group, send_only)?)
    }

    /// Does what an event asks for. If that fails, the event becomes the one that librdmacm would
    /// raise.
    pub(super) fn on_event(&self, event: &mut hard::Event) {
        self.inner.id.on_event(event);
        if !matches!(event.kind, EventKind::ConnectRequest | EventKind::AddrResolved) {
            return;
        }
        let (Some(name), None) = (&event.device, self.context()) else { return };
        match self.manager().named(name) {
            Ok(context) => self.choose(context),
            Err(e) => {
                tracing::warn!("{:?}: {e}", event.kind);
                if event.kind == EventKind::AddrResolved {
                    event.kind = EventKind::AddrError;
                }
                event.status = match e {
                    Error::Verbs { error, .. } => -error.raw_os_error().unwrap_or(libc::EIO),
                    _ => -libc::ENODEV,
                };
            }
        }
    }
}
