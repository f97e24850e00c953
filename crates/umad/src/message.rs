//! Requests of programs, and what the fabric answers.

use std::net::IpAddr;

use feroce_wire::Gid;

use crate::adapter::Adapter;
use crate::bytes::{Bytes, put_address, put_text};

/// The first bytes of a request. The number at the end counts the versions of the format.
const MAGIC: [u8; 16] = *b"feroce subnet  4";

/// What a program registers for, as it told the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registration {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub version: u8,
    /// Version of multi-packet transfers.
    pub rmpp_version: u8,
    /// The program cuts and joins segments itself.
    pub has_own_rmpp: bool,
    /// Organisation.
    pub oui: [u8; 3],
    /// A bit for each method.
    pub methods: u128,
}

/// What a connection is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Say what the adapter of a host is like.
    Describe {
        /// The host.
        host: String,
    },
    /// Send and receive datagrams at a port of a host, for as long as the connection lasts.
    Open {
        /// The host.
        host: String,
        /// The port, from 1.
        port: u8,
    },
    /// Register an agent of an open port.
    Register {
        /// The number of the open port.
        file: u32,
        /// What for.
        registration: Registration,
    },
    /// Give an agent up.
    Unregister {
        /// The number of the open port.
        file: u32,
        /// The agent.
        agent: u32,
    },
    /// Send and receive packets of queue pairs at a port of a host, for as long as the connection
    /// lasts.
    Attach {
        /// The host.
        host: String,
        /// The port, from 1.
        port: u8,
    },
    /// Say what the adapter of a host is like now, and again whenever that changes, for as long as
    /// the connection lasts.
    Watch {
        /// The host.
        host: String,
    },
    /// Pass the requests for a service at a port to the process with this number, for as long as
    /// the connection lasts.
    Claim {
        /// The host.
        host: String,
        /// The port, from 1.
        port: u8,
        /// The number of the process at the port.
        slot: u8,
        /// The service.
        service: u64,
    },
    /// Note that a process takes part in a multicast group at a port, for as long as the connection
    /// lasts. The fabric has the port leave the group when the last connection has ended.
    Join {
        /// The host.
        host: String,
        /// The port, from 1.
        port: u8,
        /// The group.
        group: Gid,
        /// How it takes part, as in a member record.
        join_state: u8,
    },
    /// Say which port has an IP address.
    Resolve {
        /// The address.
        address: IpAddr,
    },
}

/// What the fabric answers to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The adapter.
    Adapter(Adapter),
    /// It was done; the number of the open port or of the agent.
    Done(u32),
    /// It was not done; a number of the C library says why.
    Refused(u32),
    /// The connection carries packets from now on.
    Attached(Attached),
    /// The port with the address has this GID.
    Port(Gid),
}

/// What a program learns when it is attached to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The number of this process at the port, 1 to 255: the upper eight bits of its queue pair
    /// numbers.
    pub slot: u8,
    /// Rate of the link in bits per second.
    pub rate_bps: u64,
    /// Bytes on the link that may be under way.
    pub credit: u32,
    /// Bytes of a train at most.
    pub train: u32,
}

impl Request {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        match self {
            Self::Describe { host } => {
                out.push(0);
                put_text(&mut out, host);
            }
            Self::Open { host, port } => {
                out.extend([1, *port]);
                put_text(&mut out, host);
            }
            Self::Register { file, registration: new } => {
                out.push(2);
                out.extend(file.to_ne_bytes());
                out.extend([new.class, new.version, new.rmpp_version, u8::from(new.has_own_rmpp)]);
                out.extend(new.oui);
                out.extend(new.methods.to_ne_bytes());
            }
            Self::Unregister { file, agent } => {
                out.push(3);
                out.extend(file.to_ne_bytes());
                out.extend(agent.to_ne_bytes());
            }
            Self::Attach { host, port } => {
                out.extend([4, *port]);
                put_text(&mut out, host);
            }
            Self::Watch { host } => {
                out.push(5);
                put_text(&mut out, host);
            }
            Self::Claim { host, port, slot, service } => {
                out.extend([6, *port, *slot]);
                out.extend(service.to_ne_bytes());
                put_text(&mut out, host);
            }
            Self::Join { host, port, group, join_state } => {
                out.extend([8, *port, *join_state]);
                out.extend(group.0);
                put_text(&mut out, host);
            }
            Self::Resolve { address } => {
                out.push(7);
                put_address(&mut out, *address);
            }
        }
        out
    }

    /// Reads one; `None` if it is none, or of another version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        if bytes.take()? != MAGIC {
            return None;
        }
        let request = match bytes.byte()? {
            0 => Self::Describe { host: bytes.text()? },
            1 => Self::Open { port: bytes.byte()?, host: bytes.text()? },
            2 => {
                let file = bytes.word()?;
                let [class, version, rmpp_version, own] = bytes.take()?;
                let (oui, methods) = (bytes.take()?, u128::from_ne_bytes(bytes.take()?));
                let has_own_rmpp = own != 0;
                let registration =
                    Registration { class, version, rmpp_version, has_own_rmpp, oui, methods };
                Self::Register { file, registration }
            }
            3 => Self::Unregister { file: bytes.word()?, agent: bytes.word()? },
            4 => Self::Attach { port: bytes.byte()?, host: bytes.text()? },
            5 => Self::Watch { host: bytes.text()? },
            6 => {
                let ([port, slot], service) = (bytes.take()?, bytes.long()?);
                Self::Claim { host: bytes.text()?, port, slot, service }
            }
            8 => {
                let ([port, join_state], group) = (bytes.take()?, Gid(bytes.take()?));
                Self::Join { host: bytes.text()?, port, group, join_state }
            }
            7 => Self::Resolve { address: bytes.address()? },
            _ => return None,
        };
        bytes.end(request)
    }
}

impl Answer {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Adapter(adapter) => {
                out.push(0);
                adapter.put(&mut out);
            }
            Self::Done(number) => {
                out.push(1);
                out.extend(number.to_ne_bytes());
            }
            Self::Refused(errno) => {
                out.push(2);
                out.extend(errno.to_ne_bytes());
            }
            Self::Attached(Attached { slot, rate_bps, credit, train }) => {
                out.extend([3, *slot]);
                out.extend(rate_bps.to_ne_bytes());
                out.extend(credit.to_ne_bytes());
                out.extend(train.to_ne_bytes());
            }
            Self::Port(gid) => {
                out.push(4);
                out.extend(gid.0);
            }
        }
        out
    }

    /// Reads one; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let answer = match bytes.byte()? {
            0 => Self::Adapter(Adapter::take(&mut bytes)?),
            1 => Self::Done(bytes.word()?),
            2 => Self::Refused(bytes.word()?),
            3 => Self::Attached(Attached {
                slot: bytes.byte()?,
                rate_bps: bytes.long()?,
                credit: bytes.word()?,
                train: bytes.word()?,
            }),
            4 => Self::Port(Gid(bytes.take()?)),
            _ => return None,
        };
        bytes.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::mad::{NodeInfo, PortInfo};
    use feroce_wire::{Lid, Pkey};

    use super::*;
    use crate::AdapterPort;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let registration = Registration {
            class: 0x32,
            version: 1,
            rmpp_version: 1,
            has_own_rmpp: true,
            oui: [0, 0x14, 5],
            methods: 1 << 127 | 6,
        };
        let host = || "Host 1".to_owned();
        for request in [
            Request::Describe { host: host() },
            Request::Open { host: host(), port: 2 },
            Request::Register { file: 7, registration },
            Request::Unregister { file: 7, agent: 31 },
            Request::Attach { host: host(), port: 1 },
            Request::Watch { host: host() },
            Request::Claim { host: host(), port: 1, slot: 9, service: 0x0106_1234 },
            Request::Resolve { address: IpAddr::from([10, 91, 0, 1]) },
            Request::Join { host: host(), port: 1, group: Gid([0xff; 16]), join_state: 8 },
            Request::Resolve { address: IpAddr::from([7; 16]) },
        ] {
            let bytes = request.emit();
            assert_eq!(Request::parse(&bytes), Some(request));
            for cut in 0..bytes.len() {
                assert_eq!(Request::parse(&bytes[..cut]), None, "{cut}");
            }
        }
        assert_eq!(Request::parse(b"feroce subnet  2\x00\x00\x00"), None);
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let port = AdapterPort {
            info: PortInfo { lid: Lid(7), lmc: 2, ..PortInfo::default() },
            guid: 0x10_0001,
            pkeys: vec![Pkey::DEFAULT, Pkey(0x8001)],
            gids: vec![Gid([9; 16])],
            issm: "/run/issm".to_owned(),
            traffic: [[1, 2], [3, 4]],
            reregistrations: 5,
            address: Some(IpAddr::from([10, 91, 0, 1])),
        };
        let adapter = Adapter {
            description: "Host1".to_owned(),
            info: NodeInfo { num_ports: 2, ..NodeInfo::default() },
            ports: vec![port.clone(), AdapterPort { address: None, ..port }],
        };
        let attached = Attached { slot: 9, rate_bps: 10_000_000_000, credit: 5, train: 6 };
        for answer in [
            Answer::Adapter(adapter),
            Answer::Done(3),
            Answer::Refused(1),
            Answer::Attached(attached),
            Answer::Port(Gid([3; 16])),
        ] {
            let bytes = answer.emit();
            assert_eq!(Answer::parse(&bytes), Some(answer));
            for cut in 0..bytes.len() {
                assert_eq!(Answer::parse(&bytes[..cut]), None, "{cut}");
            }
        }
    }
}
