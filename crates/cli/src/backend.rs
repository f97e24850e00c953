//! Whose devices commands use.

use std::net::IpAddr;

use anyhow::Context as _;
use feroce::{Backend, Device, Error, Settings};

/// The names of backends, for the command line.
pub(crate) const NAMES: [&str; 2] = Backend::NAMES;

/// What the user said on the command line goes before everything that settings say.
pub(crate) fn choose(name: &str) {
    // The command line takes no other names.
    if let Ok(backend) = name.parse::<Backend>() {
        backend.choose();
    }
}

/// Whether devices are those of the kernel's drivers. They have addresses of interfaces, and none
/// of the loopback.
pub(crate) fn is_kernels() -> Result<bool, Error> {
    Ok(Settings::load()?.backend == Backend::RdmaCore)
}

/// An address of the first device that has one: of IPv4, if there is one.
pub(crate) fn first_address() -> anyhow::Result<IpAddr> {
    let devices = Device::list()?;
    let mut gids: Vec<_> = devices.iter().flat_map(Device::gids).filter(|g| !g.is_zero()).collect();
    gids.sort_by_key(|gid| gid.as_ipv4().is_none());
    let first = gids.first().context("there is no device with an address")?;
    Ok(first.as_ipv4().map_or_else(|| first.0.into(), IpAddr::from))
}
