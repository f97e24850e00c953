//! The devices that connections may use.

use std::net::IpAddr;
use std::sync::Arc;

use feroce_cm::rdma::PortSpace;

use super::channel::EventChannel;
use super::id::CmId;
use super::kernel::KernelManager;
use super::soft::SoftManager;
use super::timing::Timing;
use crate::backend::{Either, either};
use crate::context::Context;
use crate::device::Device;
use crate::{Backend, Error, Settings};

/// Finds devices for addresses, and keeps them open. Cheap to clone.
///
/// ```
/// let manager = feroce::cm::Manager::new();
/// let context = manager.context_for("127.0.0.51".parse()?)?;
/// assert_eq!(context.port().gids.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Manager {
    side: Either<SoftManager, Arc<KernelManager>>,
}

impl Manager {
    /// Opens devices as addresses need them.
    #[expect(clippy::new_without_default, reason = "it is not a value that is like another")]
    pub fn new() -> Self {
        Self::opening(Device::open)
    }

    /// Opens devices as addresses need them, with the caller's function: a program that keeps a
    /// table of open devices can return them from there.
    ///
    /// ```
    /// let manager = feroce::cm::Manager::opening(|device| device.open());
    /// assert!(manager.contexts().is_empty());
    /// ```
    pub fn opening(open: fn(&Device) -> Result<Context, Error>) -> Self {
        let is_hard = Settings::load().is_ok_and(|s| s.backend == Backend::RdmaCore);
        let side = if is_hard {
            Either::Kernel(Arc::new(KernelManager::new(Vec::new(), Some(open))))
        } else {
            // Opening a device reports invalid settings.
            Either::Soft(SoftManager::opening(open))
        };
        Self { side }
    }

    /// Uses these devices and no others.
    pub fn with(contexts: impl IntoIterator<Item = Context>) -> Result<Self, Error> {
        Self::with_timing(contexts, Timing::default())
    }

    /// Uses these devices and no others, and waits for peers as long as `timing` says. If several
    /// managers share a device, the first decides. On devices of the kernel's drivers the kernel
    /// decides, and `timing` has no effect.
    pub fn with_timing(
        contexts: impl IntoIterator<Item = Context>,
        timing: Timing,
    ) -> Result<Self, Error> {
        let contexts: Vec<Context> = contexts.into_iter().collect();
        let is_hard = |context: &Context| context.adapter().kernel().is_some();
        let side = if !contexts.is_empty() && contexts.iter().all(is_hard) {
            Either::Kernel(Arc::new(KernelManager::new(contexts, None)))
        } else {
            Either::Soft(SoftManager::with_timing(contexts, timing)?)
        };
        Ok(Self { side })
    }

    /// Creates an event channel.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn event_channel(&self) -> Result<EventChannel, Error> {
        either!(&self.side, manager => Ok(manager.event_channel()?.into()))
    }

    /// Creates an id with a channel of its own, for programs that wait for one event at a time.
    pub fn create_id(&self, space: PortSpace) -> Result<CmId, Error> {
        self.event_channel()?.create_id(space)
    }

    /// The device with this address, opened if need be.
    pub fn context_for(&self, ip: IpAddr) -> Result<Context, Error> {
        either!(&self.side, manager => manager.context_for(ip))
    }

    /// The devices that are open.
    #[doc(alias = "rdma_get_devices")]
    pub fn contexts(&self) -> Vec<Context> {
        either!(&self.side, manager => manager.contexts())
    }
}
