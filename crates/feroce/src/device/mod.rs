//! Devices: one per network interface with an address.

pub(crate) mod interface_monitor;
pub(crate) mod monitor;

use std::net::IpAddr;
use std::sync::Arc;

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::TransportKind;
use feroce_link::EtherLink;
use feroce_umad::Adapter;
use feroce_wire::{Gid, Pmtu};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::attr::{PortAttr, PortState};
use crate::{Backend, Error, Settings, subnet_port, sys};

/// What a device stands on.
///
/// ```
/// use feroce::{Device, DeviceKind};
///
/// // The interfaces that reach other machines.
/// let devices = Device::list()?;
/// let outside = devices.iter().filter(|d| d.kind() == DeviceKind::Interface);
/// # Ok::<(), feroce::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// A network interface.
    Interface,
    /// The loopback interface.
    Loopback,
    /// Addresses chosen by hand.
    Addresses,
    /// A driver of the kernel, by way of rdma-core.
    Kernel,
    /// The adapter of a host of an InfiniBand fabric.
    Subnet,
}

/// A device that can be opened.
///
/// ```
/// for device in feroce::Device::list()? {
///     println!("{} {:?}", device.name(), device.gids());
/// }
/// # Ok::<(), feroce::Error>(())
/// ```
#[doc(alias = "ibv_device")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    name: String,
    kind: DeviceKind,
    interface: Option<(String, u32)>,
    gids: Vec<Gid>,
    mtu: u32,
    speed_mbit: Option<u32>,
    is_up: bool,
    /// The number that names it, if it has one that is not made from its addresses.
    guid: Option<u64>,
    /// Of a host of an InfiniBand fabric: the adapter when the device was listed.
    adapter: Option<Arc<Adapter>>,
}

impl Device {
    /// Every interface that is up and has an address, as `feroce0`, `feroce1` and so on; loopback
    /// comes last. The user's settings may ask for other names, and for devices on addresses; or
    /// for another backend, which has devices of its own.
    #[doc(alias = "ibv_get_device_list")]
    pub fn list() -> Result<Vec<Self>, Error> {
        Self::list_with(&Settings::load()?)
    }

    /// The same with these settings.
    pub fn list_with(settings: &Settings) -> Result<Vec<Self>, Error> {
        if settings.backend == Backend::RdmaCore {
            return Self::of_kernel(settings);
        }
        // A host of an InfiniBand fabric has its adapter, and no other.
        if let Some(host) = subnet_port::host(settings) {
            let name = settings.device_name.as_deref().unwrap_or("feroce0");
            return Ok(Vec::from([Self::of_adapter(name, host.describe()?)]));
        }
        let mut devices = match settings.addresses.as_slice() {
            [] => Self::of_interfaces()?,
            chosen => chosen.iter().map(|addresses| Self::at(addresses.iter().copied())).collect(),
        };
        let first = settings.device_name.as_deref().unwrap_or("feroce0");
        for (i, device) in devices.iter_mut().enumerate() {
            device.name = nth_name(first, i);
        }
        Ok(devices)
    }

    fn of_interfaces() -> Result<Vec<Self>, Error> {
        let mut devices: Vec<Self> = Vec::new();
        for entry in getifaddrs()? {
            let Some(gid) = entry.address.as_ref().and_then(gid_of) else { continue };
            if !entry.flags.contains(InterfaceFlags::IFF_UP) {
                continue;
            }
            let at = devices.iter().position(|d| {
                d.interface.as_ref().is_some_and(|(name, _)| *name == entry.interface_name)
            });
            let device = match at {
                Some(at) => &mut devices[at],
                None => {
                    devices.push(Self::of_interface(&entry.interface_name, entry.flags)?);
                    let last = devices.len() - 1;
                    &mut devices[last]
                }
            };
            device.gids.push(gid);
        }
        devices.sort_by_key(|d| d.kind == DeviceKind::Loopback);
        devices.iter_mut().for_each(|d| d.gids.sort_by_key(|gid| gid_rank(*gid)));
        Ok(devices)
    }

    fn of_interface(name: &str, flags: InterfaceFlags) -> Result<Self, Error> {
        let index = nix::net::if_::if_nametoindex(name)?;
        let is_loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
        Ok(Self {
            name: String::new(),
            kind: if is_loopback { DeviceKind::Loopback } else { DeviceKind::Interface },
            interface: Some((name.to_owned(), index)),
            gids: Vec::new(),
            mtu: sys::interface_mtu(name)?,
            speed_mbit: sys::interface_speed_mbit(name),
            is_up: flags.contains(InterfaceFlags::IFF_RUNNING),
            guid: None,
            adapter: None,
        })
    }

    /// The devices of the kernel's drivers.
    pub(crate) fn of_kernel(settings: &Settings) -> Result<Vec<Self>, Error> {
        let listed = rdma_core::list(settings.rdma_core.as_deref())?;
        Ok(listed.iter().map(Self::of_listed).collect())
    }

    fn of_listed(listed: &rdma_core::Listed) -> Self {
        let port = PortAttr::of_kernel(&listed.port);
        let mut interfaces = listed.interfaces.iter();
        let interface =
            interfaces.find_map(|&index| Some((sys::interface_name(index).ok()?, index)));
        let on = interface.as_ref().map(|(name, _)| name.as_str());
        // A device without interface has the MTU of its packets.
        let mtu = on.and_then(|name| sys::interface_mtu(name).ok());
        Self {
            name: listed.name.clone(),
            kind: DeviceKind::Kernel,
            mtu: mtu.unwrap_or_else(|| port.active_mtu.bytes() as u32),
            speed_mbit: on.and_then(sys::interface_speed_mbit),
            is_up: port.state == PortState::Active,
            guid: Some(listed.guid),
            adapter: None,
            gids: port.gids.iter().map(|entry| entry.gid).collect(),
            interface,
        }
    }

    /// The device of an adapter of a host of an InfiniBand fabric: its first port.
    fn of_adapter(name: &str, adapter: Adapter) -> Self {
        let port = adapter.ports.first().map(PortAttr::of_subnet);
        let bytes = |port: &PortAttr| port.active_mtu.bytes() as u32;
        Self {
            name: name.to_owned(),
            kind: DeviceKind::Subnet,
            interface: None,
            gids: port.iter().flat_map(|port| &port.gids).map(|entry| entry.gid).collect(),
            mtu: port.as_ref().map_or(0, bytes),
            speed_mbit: adapter.ports.first().map(subnet_port::speed_mbit),
            is_up: port.is_some_and(|port| port.state == PortState::Active),
            guid: Some(adapter.info.node_guid),
            adapter: Some(Arc::new(adapter)),
        }
    }

    /// The adapter of a host of an InfiniBand fabric, when the device was listed.
    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_deref()
    }

    /// The device of a host in a simulated world.
    #[cfg(feature = "sim")]
    pub(crate) fn in_world(name: &str, gid: Gid) -> Self {
        Self {
            name: name.to_owned(),
            kind: DeviceKind::Addresses,
            interface: None,
            gids: vec![gid],
            mtu: 9000,
            speed_mbit: None,
            is_up: true,
            guid: None,
            adapter: None,
        }
    }

    /// A device on addresses of this machine, whatever interface they are on: two of them on
    /// `127.0.0.1` and `127.0.0.2` make a network of two hosts on any machine.
    pub fn at(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let gids: Vec<Gid> = addresses.into_iter().map(gid_of_ip).collect();
        let name = gids.first().map_or_else(String::new, |gid| format!("feroce@{}", gid.to_ip()));
        // Loopback carries the largest packets there are; others are bounded by path discovery.
        let mtu = if gids.iter().all(|g| is_loopback(*g)) { 65536 } else { 1500 };
        let kind = DeviceKind::Addresses;
        let (interface, speed_mbit, guid, adapter) = (None, None, None, None);
        Self { name, kind, interface, gids, mtu, speed_mbit, is_up: true, guid, adapter }
    }

    /// The device with this name, as [`Device::list`] gives it, or of the interface with it.
    pub fn named(name: &str) -> Result<Self, Error> {
        Self::list()?
            .into_iter()
            .find(|d| d.name == name || d.interface_name() == Some(name))
            .ok_or_else(|| Error::NoDevice(name.to_owned()))
    }

    /// Its name.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface it stands on.
    pub fn interface_name(&self) -> Option<&str> {
        self.interface.as_ref().map(|(name, _)| name.as_str())
    }

    /// Why it has no GIDs of RoCEv1, if it is opened with these settings; `None` if it has some.
    pub fn without_rocev1(&self, settings: &Settings) -> Option<String> {
        self.rocev1(settings).err()
    }

    /// The interface for RoCEv1, or why there is none.
    pub(crate) fn rocev1(&self, settings: &Settings) -> Result<(String, u32), String> {
        let absent = |why: &str| Err(why.to_owned());
        if !settings.rocev1 {
            return absent("the setting `rocev1` is off");
        }
        if settings.engine.transport == TransportKind::Iwarp {
            return absent("the device speaks iWARP");
        }
        if settings.fabric.is_some() {
            return absent("the fabric carries RoCEv2");
        }
        match (self.kind, &self.interface) {
            (DeviceKind::Interface, Some(interface)) => match EtherLink::check(interface.1) {
                Ok(()) => Ok(interface.clone()),
                Err(e) => Err(e.to_string()),
            },
            (DeviceKind::Kernel, _) => absent("the driver of the kernel has the GIDs that it has"),
            _ => absent("only the device of an Ethernet interface has them"),
        }
    }

    /// Name and index of the interface it stands on.
    pub(crate) fn interface(&self) -> Option<&(String, u32)> {
        self.interface.as_ref()
    }

    /// Index of the interface it stands on.
    pub fn interface_index(&self) -> Option<u32> {
        self.interface.as_ref().map(|(_, index)| *index)
    }

    /// What it stands on.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Its addresses: IPv4 first, then IPv6, link-local last. Those of one of the kernel's drivers
    /// are in the order of the driver, and one that is zero is a hole.
    #[doc(alias = "ibv_query_gid")]
    pub fn gids(&self) -> &[Gid] {
        &self.gids
    }

    /// Whether the interface can carry packets.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The greatest path MTU that the interface carries without fragmentation.
    pub fn path_mtu(&self) -> Pmtu {
        if self.kind == DeviceKind::Subnet {
            return Pmtu::at_most(self.mtu as usize).unwrap_or(Pmtu::B256);
        }
        path_mtu_of(self.mtu)
    }

    /// MTU of the interface.
    pub fn interface_mtu(&self) -> u32 {
        self.mtu
    }

    /// Speed of the interface in Mb/s, if it has one; virtual interfaces may not.
    pub fn speed_mbit(&self) -> Option<u32> {
        self.speed_mbit
    }

    /// A number that names the device for ever: made from its first address.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        if let Some(guid) = self.guid {
            return guid;
        }
        let gid = self.gids.first().copied().unwrap_or_default().0;
        let fold = gid.chunks(8).fold(0xfe_0ce0_u64, |all, part| {
            let part = part.iter().fold(0, |n, &b| n << 8 | u64::from(b));
            (all ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        // Locally administered.
        fold | 0x0200_0000_0000_0000
    }

    /// The number that names the machine or the chassis that the device is a part of.
    pub(crate) fn system_guid(&self) -> u64 {
        self.adapter().map_or_else(|| self.guid(), |adapter| adapter.info.system_image_guid)
    }
}

/// Name of the `n`-th device after one called `first`: behind `mlx5_0` comes `mlx5_1`, behind
/// `rdma` comes `rdma1`.
fn nth_name(first: &str, n: usize) -> String {
    let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
    match first[stem.len()..].parse::<usize>() {
        _ if n == 0 => first.to_owned(),
        Ok(number) => format!("{stem}{}", number.saturating_add(n)),
        Err(_) => format!("{first}{n}"),
    }
}

/// The greatest path MTU whose packets an interface with this MTU carries.
fn path_mtu_of(interface_mtu: u32) -> Pmtu {
    // IPv6 and UDP headers, BTH with the longest extension headers, ICRC.
    const OVERHEAD: u32 = 40 + 8 + 12 + 32 + 4;
    Pmtu::at_most(interface_mtu.saturating_sub(OVERHEAD) as usize).unwrap_or(Pmtu::B256)
}

fn gid_of(addr: &nix::sys::socket::SockaddrStorage) -> Option<Gid> {
    match (addr.as_sockaddr_in(), addr.as_sockaddr_in6()) {
        (Some(v4), _) => Some(Gid::from_ipv4(v4.ip().octets())),
        (_, Some(v6)) => Some(Gid(v6.ip().octets())),
        _ => None,
    }
}

fn gid_of_ip(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}

fn is_loopback(gid: Gid) -> bool {
    match gid.as_ipv4() {
        Some([first, ..]) => first == 127,
        None => std::net::Ipv6Addr::from(gid.0).is_loopback(),
    }
}

/// IPv4 first, then global IPv6, then link-local.
fn gid_rank(gid: Gid) -> u8 {
    match gid.as_ipv4() {
        Some(_) => 0,
        None if std::net::Ipv6Addr::from(gid.0).is_unicast_link_local() => 2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_on() {
        let names = |first| [0, 1, 2].map(|n| nth_name(first, n));
        assert_eq!(names("feroce0"), ["feroce0", "feroce1", "feroce2"]);
        assert_eq!(names("mlx5_9"), ["mlx5_9", "mlx5_10", "mlx5_11"]);
        assert_eq!(names("rdma"), ["rdma", "rdma1", "rdma2"]);
    }
}
