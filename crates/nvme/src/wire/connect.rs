//! The data of Connect: NVMe Base 6.3.

use super::bytes::{array, le16, put};
use super::nqn::Nqn;

/// Length of the data of Connect.
pub const CONNECT_DATA: usize = 1024;

/// The host lets the target choose a controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

const SUBSYSTEM: usize = 256;
const HOST: usize = 512;
const NAME: usize = 256;

/// The data of Connect: who connects to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// The host.
    pub host_id: [u8; 16],
    /// The controller, once there is one.
    pub controller: u16,
    /// The subsystem; none if the field holds no name.
    pub subsystem: Option<Nqn>,
    /// The name of the host; none if the field holds no name.
    pub host: Option<Nqn>,
}

impl ConnectData {
    /// From the data of the command; fewer bytes are none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..CONNECT_DATA)?;
        Some(Self {
            host_id: array(bytes, 0),
            controller: le16(bytes, 16),
            subsystem: Nqn::parse(&bytes[SUBSYSTEM..SUBSYSTEM + NAME]),
            host: Nqn::parse(&bytes[HOST..HOST + NAME]),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; CONNECT_DATA] {
        let mut out = [0; CONNECT_DATA];
        put(&mut out, 0, &self.host_id);
        put(&mut out, 16, &self.controller.to_le_bytes());
        let names = [(SUBSYSTEM, &self.subsystem), (HOST, &self.host)];
        for (at, name) in names {
            let name = name.as_ref().map(Nqn::as_str).unwrap_or_default();
            put(&mut out, at, name.as_bytes());
        }
        out
    }
}
