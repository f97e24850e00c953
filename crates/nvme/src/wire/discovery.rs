//! The discovery log page: NVMe Base 5.16.1.23.

use std::net::{IpAddr, SocketAddr};

use super::bytes::{byte, le16, le64, put, put_text, text};

/// Length of an entry, and of the header before the first.
pub const DISCOVERY_ENTRY: usize = 1024;

/// The transport RDMA.
const RDMA: u8 = 1;
/// A subsystem with namespaces.
const NVM_SUBSYSTEM: u8 = 2;

/// Family of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Another one.
    Other(u8),
}

impl AddressFamily {
    fn of(number: u8) -> Self {
        match number {
            1 => Self::V4,
            2 => Self::V6,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::V4 => 1,
            Self::V6 => 2,
            Self::Other(other) => other,
        }
    }
}

/// A subsystem and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// Transport: 1 is RDMA.
    pub transport: u8,
    /// Family of the address.
    pub family: AddressFamily,
    /// Type: 2 is a subsystem with namespaces, 3 the discovery subsystem itself.
    pub subtype: u8,
    /// The port of the subsystem, as the target counts.
    pub port: u16,
    /// Controller; 0xffff if the target chooses one.
    pub controller: u16,
    /// Greatest size of the admin queue.
    pub admin_size: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Address.
    pub address: String,
    /// Service: the number of a port.
    pub service: String,
}

/// The discovery log page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiscoveryLog {
    /// Changes when the page does.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<DiscoveryEntry>,
}

impl DiscoveryEntry {
    /// A subsystem that is reached over RDMA.
    pub fn rdma(subsystem: &str, at: SocketAddr, admin_size: u16) -> Self {
        let family = match at.ip() {
            IpAddr::V4(_) => AddressFamily::V4,
            IpAddr::V6(_) => AddressFamily::V6,
        };
        Self {
            transport: RDMA,
            family,
            subtype: NVM_SUBSYSTEM,
            port: 1,
            controller: 0xffff,
            admin_size,
            subsystem: subsystem.to_owned(),
            address: at.ip().to_string(),
            service: at.port().to_string(),
        }
    }

    /// Whether it is a subsystem with disks, and not one to discover others.
    pub fn has_disks(&self) -> bool {
        self.subtype == NVM_SUBSYSTEM
    }

    /// Where it is, if it is reached over RDMA at an IP address.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        if self.transport != RDMA {
            return None;
        }
        Some(SocketAddr::new(self.address.parse().ok()?, self.service.parse().ok()?))
    }

    fn parse(bytes: &[u8]) -> Self {
        Self {
            transport: byte(bytes, 0),
            family: AddressFamily::of(byte(bytes, 1)),
            subtype: byte(bytes, 2),
            port: le16(bytes, 4),
            controller: le16(bytes, 6),
            admin_size: le16(bytes, 8),
            service: text(bytes, 32, 32),
            subsystem: text(bytes, 256, 256),
            address: text(bytes, 512, 256),
        }
    }

    fn emit(&self, out: &mut [u8]) {
        put(out, 0, &[self.transport, self.family.number(), self.subtype]);
        put(out, 4, &self.port.to_le_bytes());
        put(out, 6, &self.controller.to_le_bytes());
        put(out, 8, &self.admin_size.to_le_bytes());
        put_text(out, 32, 32, &self.service, 0);
        put_text(out, 256, 256, &self.subsystem, 0);
        put_text(out, 512, 256, &self.address, 0);
        // Reliable connected queue pairs, the provider is not specified, and the RDMA CM connects.
        put(out, 768, &[1, 1, 1]);
    }
}

impl DiscoveryLog {
    /// How many entries the header announces.
    pub fn count(bytes: &[u8]) -> u64 {
        le64(bytes, 8)
    }

    /// From the bytes of the page: the entries that the header announces and that are there.
    pub fn parse(bytes: &[u8]) -> Self {
        let entries = bytes.get(DISCOVERY_ENTRY..).unwrap_or_default();
        let count = usize::try_from(Self::count(bytes)).unwrap_or(usize::MAX);
        let entries = entries.chunks_exact(DISCOVERY_ENTRY).take(count);
        Self { generation: le64(bytes, 0), entries: entries.map(DiscoveryEntry::parse).collect() }
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![0; DISCOVERY_ENTRY * (1 + self.entries.len())];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &(self.entries.len() as u64).to_le_bytes());
        let places = out[DISCOVERY_ENTRY..].chunks_exact_mut(DISCOVERY_ENTRY);
        for (entry, place) in self.entries.iter().zip(places) {
            entry.emit(place);
        }
        out
    }
}
