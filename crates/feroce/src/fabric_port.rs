//! Devices whose packets pass a fabric of switches instead of a network.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use feroce_engine::{Config, CongestionConfig};
use feroce_link::port::Welcome;
use feroce_link::{Logger, PortClaim, PortConfig, PortLink};
use feroce_wire::Gid;
use feroce_wire::cm::ServiceId;

use crate::device::Device;
use crate::driver::Clock;
use crate::subnet_port::{self, SubnetPlace};
use crate::{Error, Settings};

/// Bytes that a packet over IPv4 takes on an Ethernet link beside those from the BTH to the
/// padding: preamble 8, Ethernet 14, IPv4 20, UDP 8, ICRC 4, frame check sequence 4, gap 12.
const PACKET_OVERHEAD: u32 = 70;

/// The place of this process in a fabric.
#[derive(Debug)]
pub(crate) struct FabricPort {
    /// Which fabric it is.
    kind: Kind,
    /// The number of this process at its address.
    slot: u8,
}

#[derive(Debug)]
enum Kind {
    /// One of Ethernet, and where it listens.
    Ethernet(PathBuf),
    /// One of InfiniBand.
    Subnet(SubnetPlace),
}

impl FabricPort {
    /// Joins the fabric that the settings name, if they do.
    pub(crate) fn join(
        device: &Device,
        settings: &Settings,
        clock: &Clock,
        log: &Logger,
    ) -> io::Result<Option<(Self, PortLink)>> {
        if let Some(host) = subnet_port::host(settings) {
            let what = format!(
                "this process is {} of an InfiniBand fabric, which has its adapter and no device \
                 at {}",
                host.name,
                device.name()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let Some(socket) = settings.fabric.clone() else { return Ok(None) };
        let &[address] = device.gids() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a host of a fabric has one address: set `address` to it, or use `feroce fabric \
                 run`",
            ));
        };
        let (ecn, origin_ns, log) = (settings.ecn, clock.origin_ns(), log.clone());
        let address = Some(address);
        let config = PortConfig { socket: socket.clone(), address, ecn, origin_ns, log };
        let link = PortLink::connect(config)?;
        Ok(Some((Self { kind: Kind::Ethernet(socket), slot: link.welcome().slot }, link)))
    }

    /// The number of this process at its address: its queue pair numbers and communication ids
    /// begin with it.
    pub(crate) fn prefix(&self) -> u8 {
        self.slot
    }

    /// Has the fabric send the requests for a service at an address to this process.
    pub(crate) fn claim(&self, address: Gid, service: ServiceId) -> io::Result<FabricClaim> {
        let (slot, service) = (self.slot, service.0);
        match &self.kind {
            Kind::Ethernet(socket) => {
                PortClaim::new(socket, address, slot, service).map(FabricClaim::Ethernet)
            }
            Kind::Subnet(place) => {
                place.host.claim(subnet_port::PORT, slot, service).map(FabricClaim::Subnet)
            }
        }
    }

    /// The place in an InfiniBand fabric, if it is one.
    pub(crate) fn subnet(&self) -> Option<&SubnetPlace> {
        match &self.kind {
            Kind::Ethernet(_) => None,
            Kind::Subnet(place) => Some(place),
        }
    }

    /// The place of the process with this number at its port of an InfiniBand fabric.
    pub(crate) fn in_subnet(slot: u8, place: SubnetPlace) -> Self {
        Self { kind: Kind::Subnet(place), slot }
    }
}

/// A service whose requests the fabric sends to this process.
#[derive(Debug)]
#[expect(dead_code, reason = "claims are held until they are dropped, and not read")]
pub(crate) enum FabricClaim {
    Ethernet(PortClaim),
    Subnet(feroce_umad::Claim),
}

/// The address of the host of a fabric that this process runs on, if the user's settings say so.
pub(crate) fn own_address(is_ipv4: bool) -> Result<Option<IpAddr>, Error> {
    let settings = Settings::load()?;
    let mut addresses = settings.addresses.iter().flatten().copied();
    let own = addresses.find(|address| address.is_ipv4() == is_ipv4);
    Ok(own.filter(|_| settings.fabric.is_some()))
}

/// Fits the engine to the link of the host: congestion control starts at its rate, and its steps
/// have the proportions to it that those of the DCQCN paper have to 40 Gb/s.
pub(crate) fn fit(config: &mut Config, welcome: &Welcome) {
    config.packet_overhead = PACKET_OVERHEAD;
    let rate = welcome.rate_bps;
    match &mut config.congestion {
        CongestionConfig::Dcqcn(dcqcn) => {
            dcqcn.line_rate_bps = rate;
            dcqcn.min_rate_bps = rate / 1000;
            dcqcn.rate_ai_bps = rate / 1000;
            dcqcn.rate_hai_bps = rate / 100;
        }
        CongestionConfig::ConnectX(connectx) => connectx.line_rate_bps = rate,
        _ => {}
    }
}
