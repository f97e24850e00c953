//! The backend whose devices commands use.

use std::net::IpAddr;

use anyhow::Context as _;
use feroce::{Backend, Device, Error, Settings};

/// The names of backends, for the command line.
pub(crate) const NAMES: [&str; 2] = Backend::NAMES;

/// Chooses the backend from the command line, which overrides the settings.
pub(crate) fn choose(name: &str) {
    // The argument parser accepts no other names.
    if let Ok(backend) = name.parse::<Backend>() {
        backend.choose();
    }
}

/// Whether devices are those of the kernel's drivers. These have addresses of interfaces, but no
/// loopback addresses.
pub(crate) fn is_kernels() -> Result<bool, Error> {
    Ok(Settings::load()?.backend == Backend::RdmaCore)
}

/// An address of a device: the first IPv4 address, or else the first address.
pub(crate) fn first_address() -> anyhow::Result<IpAddr> {
    let devices = Device::list()?;
    let mut gids: Vec<_> = devices.iter().flat_map(Device::gids).filter(|g| !g.is_zero()).collect();
    gids.sort_by_key(|gid| gid.as_ipv4().is_none());
    let first = gids.first().context("there is no device with an address")?;
    Ok(first.as_ipv4().map_or_else(|| first.0.into(), IpAddr::from))
}
