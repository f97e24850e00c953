//! What a fabric says of the adapter of a host.

use std::net::IpAddr;

use feroce_wire::mad::{NodeInfo, PortInfo};
use feroce_wire::{Gid, Pkey};

use crate::bytes::{Bytes, put_address, put_text};

/// A port of the adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterPort {
    /// State and settings, as the subnet manager sees them.
    pub info: PortInfo,
    /// GUID.
    pub guid: u64,
    /// The P_Key table.
    pub pkeys: Vec<Pkey>,
    /// The GIDs.
    pub gids: Vec<Gid>,
    /// The file that a subnet manager holds open, so that the port says that one runs behind it.
    pub issm: String,
    /// Packets and words of four bytes: sent, received.
    pub traffic: [[u64; 2]; 2],
    /// How often the subnet manager has asked clients to register anew.
    pub reregistrations: u32,
    /// The IP address by which connection management finds the port.
    pub address: Option<IpAddr>,
}

/// The adapter of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// What it says of itself.
    pub description: String,
    /// GUIDs and kind.
    pub info: NodeInfo,
    /// Its ports, from port 1.
    pub ports: Vec<AdapterPort>,
}

impl AdapterPort {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.info.to_bytes());
        out.extend(self.guid.to_ne_bytes());
        out.extend((self.pkeys.len() as u16).to_ne_bytes());
        self.pkeys.iter().for_each(|key| out.extend(key.0.to_ne_bytes()));
        out.extend((self.gids.len() as u16).to_ne_bytes());
        self.gids.iter().for_each(|gid| out.extend(gid.0));
        put_text(out, &self.issm);
        self.traffic.as_flattened().iter().for_each(|count| out.extend(count.to_ne_bytes()));
        out.extend(self.reregistrations.to_ne_bytes());
        out.push(u8::from(self.address.is_some()));
        self.address.into_iter().for_each(|address| put_address(out, address));
    }

    fn take(bytes: &mut Bytes<'_>) -> Option<Self> {
        let (info, _) = PortInfo::parse(bytes.slice(PortInfo::LEN)?).ok()?;
        let guid = bytes.long()?;
        let pkeys = (0..bytes.short()?).map(|_| bytes.short().map(Pkey)).collect::<Option<_>>()?;
        let gids = (0..bytes.short()?).map(|_| bytes.take().map(Gid)).collect::<Option<_>>()?;
        let issm = bytes.text()?;
        let traffic = [[bytes.long()?, bytes.long()?], [bytes.long()?, bytes.long()?]];
        let reregistrations = bytes.word()?;
        let address = match bytes.byte()? {
            0 => None,
            _ => Some(bytes.address()?),
        };
        Some(Self { info, guid, pkeys, gids, issm, traffic, reregistrations, address })
    }
}

impl Adapter {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_text(out, &self.description);
        out.extend(self.info.to_bytes());
        out.push(self.ports.len() as u8);
        self.ports.iter().for_each(|port| port.put(out));
    }

    pub(crate) fn take(bytes: &mut Bytes<'_>) -> Option<Self> {
        let description = bytes.text()?;
        let (info, _) = NodeInfo::parse(bytes.slice(NodeInfo::LEN)?).ok()?;
        let ports = (0..bytes.byte()?).map(|_| AdapterPort::take(bytes)).collect::<Option<_>>()?;
        Some(Self { description, info, ports })
    }
}
