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

/// Whether devices are those of the kernel's drivers, or that of a host of a fabric: then there is
/// none at a loopback address of our choice.
pub(crate) fn are_given() -> Result<bool, Error> {
    let settings = Settings::load()?;
    Ok(settings.backend == Backend::RdmaCore || settings.fabric.is_some())
}

/// An address of a device: the first IPv4 address, or else the first address.
pub(crate) fn first_address() -> anyhow::Result<IpAddr> {
    let devices = Device::list()?;
    let mut gids: Vec<_> = devices.iter().flat_map(Device::gids).filter(|g| !g.is_zero()).collect();
    gids.sort_by_key(|gid| gid.as_ipv4().is_none());
    let first = gids.first().context("there is no device with an address")?;
    Ok(first.as_ipv4().map_or_else(|| first.0.into(), IpAddr::from))
}
