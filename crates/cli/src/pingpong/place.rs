//! Where an end of a pingpong runs: which device, and which of its addresses.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, bail, ensure};
use feroce::{AddrVec, Context, Device, Error, Gid, Lid, LinkLayer};

use super::exchange::Address;
use crate::backend;

/// The options of the user that choose the device and address.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// Device by name.
    pub(super) device: Option<String>,
    /// Device by address.
    pub(super) address: Option<IpAddr>,
    /// Index of the address among those of the device.
    pub(super) gid_index: Option<u16>,
}

impl Choice {
    /// Whether the device is known before the peer is.
    pub(super) fn names_device(&self) -> bool {
        self.device.is_some() || self.address.is_some()
    }
}

/// An open device and the address to use.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) context: Context,
    pub(super) gid_index: u16,
    /// Zero if packets are to have no GRH: on InfiniBand, unless the user chose a GID.
    pub(super) gid: Gid,
    /// Local identifier; 0 on Ethernet.
    pub(super) lid: Lid,
}

impl Place {
    /// The device that the user named.
    pub(super) fn chosen(choice: &Choice) -> anyhow::Result<Self> {
        let (device, wanted) = match (&choice.device, choice.address) {
            (Some(name), wanted) => (Device::named(name)?, wanted),
            (None, Some(address)) => (device_of(address)?, Some(address)),
            (None, None) => {
                let first = Device::list()?.into_iter().next();
                (first.context("there is no device")?, None)
            }
        };
        Self::open(&device, choice.gid_index, wanted.map(gid_of))
    }

    /// For a server without a device option: the device at whose address the client connected.
    pub(super) fn of_server(choice: &Choice, own: IpAddr) -> anyhow::Result<Self> {
        if backend::is_first_used(own)? {
            return Self::chosen(choice);
        }
        // IPv6 has one loopback address; two ends need two.
        let own = if own == Ipv6Addr::LOCALHOST { Ipv4Addr::LOCALHOST.into() } else { own };
        Self::open(&device_of(own)?, choice.gid_index, Some(gid_of(own)))
    }

    /// For a client without a device option: the device that routes to the server. If the server is
    /// on this machine, a separate loopback address, because the server uses the other one.
    pub(super) fn of_client(choice: &Choice, own: IpAddr, peer: IpAddr) -> anyhow::Result<Self> {
        if backend::is_first_used(own)? {
            return Self::chosen(choice);
        }
        if !(peer.is_loopback() || own == peer) {
            return Self::open(&device_of(own)?, choice.gid_index, Some(gid_of(own)));
        }
        Self::on_loopback(choice, 2)
    }

    /// The first free address of the loopback from 127.0.0.`first` on.
    pub(super) fn on_loopback(choice: &Choice, first: u8) -> anyhow::Result<Self> {
        for last in first..=250 {
            let own = IpAddr::from([127, 0, 0, last]);
            match Device::at([own]).open() {
                Ok(context) => return Self::of(context, choice.gid_index, Some(gid_of(own))),
                Err(Error::Io(e)) if e.kind() == ErrorKind::AddrInUse => {}
                Err(e) => return Err(describe_open(e, &own.to_string())),
            }
        }
        bail!("no loopback address up to 127.0.0.250 is free: give --address")
    }

    fn open(device: &Device, gid_index: Option<u16>, wanted: Option<Gid>) -> anyhow::Result<Self> {
        let context = device.open().map_err(|e| describe_open(e, device.name()))?;
        Self::of(context, gid_index, wanted)
    }

    /// Chooses the address: the index given, else the address wanted, else the first, which is
    /// IPv4 where there is one.
    fn of(context: Context, gid_index: Option<u16>, wanted: Option<Gid>) -> anyhow::Result<Self> {
        let port = context.port();
        let lid = backend::lid(&port)?;
        let is_global = port.link_layer == LinkLayer::Ethernet || gid_index.is_some();
        let gid_index = match (gid_index, wanted) {
            (Some(index), _) => index,
            (None, Some(wanted)) => port.gid_index(wanted).with_context(|| {
                format!("{} does not have the address {wanted}", context.device().name())
            })?,
            (None, None) => port.first_gid(),
        };
        let entry = port.gids.get(usize::from(gid_index)).filter(|entry| !entry.is_empty());
        let entry = entry.with_context(|| {
            let name = context.device().name();
            format!("{name} has no GID with index {gid_index}: `feroce devinfo -v` shows its table")
        })?;
        let gid = if is_global { entry.gid } else { Gid::ZERO };
        Ok(Self { gid, lid, context, gid_index })
    }

    /// The way to the peer. Fails if packets from this address cannot reach it.
    pub(super) fn way_to(&self, peer: &Address) -> anyhow::Result<AddrVec> {
        let sgid_index = self.gid_index;
        if self.lid == Lid(0) {
            self.check_gid(peer.gid)?;
            return Ok(AddrVec { dgid: peer.gid, sgid_index, ..AddrVec::default() });
        }
        ensure!(peer.lid != 0, "the peer gave no LID: it is not in an InfiniBand subnet");
        let dgid = if self.gid.is_zero() { Gid::ZERO } else { peer.gid };
        Ok(AddrVec { dgid, sgid_index, dlid: Lid(peer.lid), ..AddrVec::default() })
    }

    fn check_gid(&self, peer: Gid) -> anyhow::Result<()> {
        ensure!(
            !peer.is_zero(),
            "the peer gave no GID, and RoCE has no other address: start it with `-g INDEX`"
        );
        let family = |gid: Gid| if gid.as_ipv4().is_some() { "IPv4" } else { "IPv6" };
        ensure!(
            family(peer) == family(self.gid),
            "our address {} is {}, that of the peer {} is {}: choose another with -g",
            self.gid.to_ip(),
            family(self.gid),
            peer.to_ip(),
            family(peer)
        );
        Ok(())
    }
}

/// The device that has an address: that of its interface, or one for the address alone on the
/// loopback, where every address of 127.0.0.0/8 is ours.
fn device_of(address: IpAddr) -> anyhow::Result<Device> {
    if address.is_loopback() {
        return Ok(Device::at([address]));
    }
    let gid = gid_of(address);
    let device = Device::list()?.into_iter().find(|d| d.gids().contains(&gid));
    device.with_context(|| format!("no interface of this machine has the address {address}"))
}

fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

fn describe_open(e: Error, name: &str) -> anyhow::Error {
    let hint = match &e {
        Error::Io(io) if io.kind() == ErrorKind::AddrInUse => "; --address chooses another",
        _ => "",
    };
    anyhow::Error::new(e).context(format!("cannot open {name}{hint}"))
}
