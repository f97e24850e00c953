//! The devices that connections may use.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce_cm::rdma::gid_of;

use crate::Error;
use crate::cm::{CmError, Opener};
use crate::context::Context;
use crate::device::Device;

/// The devices that ids may use.
#[derive(Debug)]
pub(crate) struct KernelManager {
    contexts: Mutex<Vec<Context>>,
    /// Opens devices when an address needs them; `None` if the caller gave the devices.
    opener: Option<Opener>,
}

impl KernelManager {
    pub(crate) fn new(contexts: Vec<Context>, opener: Option<Opener>) -> Self {
        Self { contexts: Mutex::new(contexts), opener }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contexts(&self) -> Vec<Context> {
        self.lock().clone()
    }

    pub(crate) fn context_for(&self, ip: IpAddr) -> Result<Context, Error> {
        let gid = gid_of(ip);
        self.find(|device| device.gids().contains(&gid), || CmError::NoDevice(ip).into())
    }

    /// The device with this name.
    pub(super) fn named(&self, name: &str) -> Result<Context, Error> {
        self.find(|device| device.name() == name, || Error::NoDevice(name.to_owned()))
    }

    /// The first open device that fits; otherwise one that fits is opened. If none fits, the error
    /// is that of `missing`.
    fn find(
        &self,
        is_wanted: impl Fn(&Device) -> bool,
        missing: impl Fn() -> Error,
    ) -> Result<Context, Error> {
        // Held while a device is opened, so that no other thread opens it as well.
        let mut contexts = self.lock();
        if let Some(context) = contexts.iter().find(|context| is_wanted(context.device())) {
            return Ok(context.clone());
        }
        let open = self.opener.ok_or_else(&missing)?;
        let device = Device::list()?.into_iter().find(|device| is_wanted(device));
        let context = open(&device.ok_or_else(missing)?)?;
        contexts.push(context.clone());
        Ok(context)
    }
}
