//! Which devices there are for connections.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_cm::rdma::gid_of;

use super::channel::Channel;
use crate::cm::{CmError, Opener};
use crate::context::Context;
use crate::device::Device;
use crate::{Error, Settings};

/// Knows the devices that ids may use.
#[derive(Debug)]
pub(crate) struct Manager {
    contexts: Mutex<Vec<Context>>,
    /// How devices are opened when an address needs them; they are not, if `None`.
    opener: Option<Opener>,
}

impl Manager {
    pub(crate) fn new(contexts: Vec<Context>, opener: Option<Opener>) -> Self {
        Self { contexts: Mutex::new(contexts), opener }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn event_channel(self: &Arc<Self>) -> Result<Arc<Channel>, Error> {
        Ok(Arc::new(Channel::create(self, &Settings::load()?)?))
    }

    pub(crate) fn contexts(&self) -> Vec<Context> {
        self.lock().clone()
    }

    pub(crate) fn context_for(&self, ip: IpAddr) -> Result<Context, Error> {
        let gid = gid_of(ip);
        self.find(|device| device.gids().contains(&gid))
    }

    /// The device with this name.
    pub(super) fn named(&self, name: &str) -> Result<Context, Error> {
        self.find(|device| device.name() == name)
    }

    /// The first open device that is wanted, or another that is opened for it.
    fn find(&self, is_wanted: impl Fn(&Device) -> bool) -> Result<Context, Error> {
        // Held while a device is opened, so that nobody opens it twice.
        let mut contexts = self.lock();
        if let Some(context) = contexts.iter().find(|context| is_wanted(context.device())) {
            return Ok(context.clone());
        }
        let no_device = CmError::Address("no device of this manager has the address");
        let Some(open) = self.opener else { return Err(no_device.into()) };
        let device = Device::list()?.into_iter().find(|device| is_wanted(device));
        let context = open(&device.ok_or(no_device)?)?;
        contexts.push(context.clone());
        Ok(context)
    }
}
