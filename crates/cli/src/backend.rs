//! The backend whose devices commands use.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use feroce::{Backend, Device, Error, Lid, LinkLayer, PortAttr, Settings};

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
    let is_host = settings.fabric.is_some() || settings.subnet.is_some();
    Ok(settings.backend == Backend::RdmaCore || is_host)
}

/// Whether this process runs on a host of an InfiniBand fabric, whose adapter is its only device.
/// Addresses of the machine lead to no device then.
pub(crate) fn is_in_subnet() -> Result<bool, Error> {
    Ok(Settings::load()?.subnet.is_some())
}

/// Whether an end of a TCP connection at this address uses the first device: the loopback says
/// nothing of the devices of the kernel's drivers, nor of that of a host of a fabric.
pub(crate) fn is_first_used(at: IpAddr) -> Result<bool, Error> {
    Ok(is_in_subnet()? || at.is_loopback() && are_given()?)
}

/// The local identifier of a port: 0 on Ethernet. Fails on InfiniBand if it has none yet.
pub(crate) fn lid(port: &PortAttr) -> anyhow::Result<Lid> {
    ensure!(
        port.link_layer == LinkLayer::Ethernet || port.lid != Lid(0),
        "the port has no LID yet: start a subnet manager, as `feroce fabric run -n HOST -- opensm`"
    );
    Ok(port.lid)
}

/// An address of a device: the first IPv4 address, or else the first address.
pub(crate) fn first_address() -> anyhow::Result<IpAddr> {
    let devices = Device::list()?;
    let mut gids: Vec<_> = devices.iter().flat_map(Device::gids).filter(|g| !g.is_zero()).collect();
    gids.sort_by_key(|gid| gid.as_ipv4().is_none());
    let first = gids.first().context("there is no device with an address")?;
    Ok(first.as_ipv4().map_or_else(|| first.0.into(), IpAddr::from))
}
