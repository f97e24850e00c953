//! A network as a file describes it: nodes and the links between their ports.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use crate::packet::PortRef;

/// GUID of the first adapter without one of its own; as in ibsim, so that the same file gives the
/// same subnet.
const FIRST_ADAPTER: u64 = 0x10_0000;
/// GUID of the first switch without one of its own.
const FIRST_SWITCH: u64 = 0x20_0000;

/// Most letters of the name of a part.
pub(crate) const MAX_PART: usize = 32;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A channel adapter: programs run behind its ports.
    Adapter,
    /// A switch.
    Switch,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetNode {
    /// Its name in the file.
    pub name: String,
    /// What it says of itself.
    pub description: String,
    /// Kind.
    pub kind: NodeKind,
    /// Ports, without port 0 of a switch.
    pub ports: u8,
    /// GUID of the node. Ports of an adapter have the ones that follow.
    pub guid: u64,
    /// GUID of the system that it is part of.
    pub system_guid: u64,
    /// IP address of the first port of an adapter, if the file says one.
    pub address: Option<IpAddr>,
    /// The part of the fabric that runs it: an index into [`Net::parts`]; 0 if there are none.
    pub part: usize,
}

/// A link between two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetLink {
    /// Its ends.
    pub ends: [PortRef; 2],
    /// Lanes: 1, 4, 8 or 12.
    pub width: u8,
}

/// Nodes and links.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Net {
    /// The nodes, in the order of the file.
    pub nodes: Vec<NetNode>,
    /// The links.
    pub links: Vec<NetLink>,
    /// The names of the parts that run in processes of their own; empty: one process runs all.
    pub parts: Vec<String>,
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NetErrorKind {
    /// Neither a node, a link nor a property.
    Unknown(String),
    /// A node line that is not `Switch PORTS "NAME"` or `Hca PORTS "NAME"`.
    Node,
    /// Not between 1 and 254 ports.
    Ports(String),
    /// A property without a number.
    Property(String),
    /// An address that is none.
    Address(String),
    /// Two nodes with one address.
    SameAddress(IpAddr),
    /// A switch with an address.
    SwitchAddress,
    /// A part without a usable name.
    Part(String),
    /// The first part begins below a node, which is in none.
    LatePart,
    /// A link line that is not `[PORT] "NAME"[PORT]`.
    Link,
    /// A link before any node.
    Stray,
    /// Two nodes with one name.
    SameName(String),
    /// Two nodes with one GUID.
    SameGuid(u64),
    /// A link names a node that the file does not have.
    NoNode(String),
    /// A link names a port that the node does not have.
    NoPort(String, u8),
    /// A port is connected twice, to different ports.
    Twice(String, u8),
    /// A port is connected with itself.
    Loop(String, u8),
    /// A width that links do not have.
    Width(String),
    /// The file has no node.
    Empty,
}

impl fmt::Display for NetErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => write!(
                f,
                "`{word}` begins neither a node (Switch, Hca), a link ([1] ...) nor a property"
            ),
            Self::Node => f.write_str("a node is written `Switch 8 \"Name\"` or `Hca 1 \"Name\"`"),
            Self::Ports(text) => write!(f, "a node has 1 to 254 ports, not `{text}`"),
            Self::Property(name) => write!(f, "the value of `{name}` is no hexadecimal number"),
            Self::Address(text) => {
                write!(f, "`{text}` is no IP address of a port: write `address=10.91.0.1`")
            }
            Self::SameAddress(ip) => write!(f, "another node has the address {ip}"),
            Self::SwitchAddress => f.write_str("ports of adapters have addresses, switches none"),
            Self::Part(text) => write!(
                f,
                "`{text}` is no name of a part: at most {MAX_PART} letters, digits and `_-.`"
            ),
            Self::LatePart => {
                f.write_str("the nodes above are in no part: begin the file with `part=NAME`")
            }
            Self::Link => f.write_str("a link is written `[1] \"Name\"[2]`"),
            Self::Stray => f.write_str("a link belongs to the node above it, and there is none"),
            Self::SameName(name) => write!(f, "another node has the name \"{name}\""),
            Self::SameGuid(guid) => write!(f, "another node has the GUID {guid:#x}"),
            Self::NoNode(name) => write!(f, "no node has the name \"{name}\""),
            Self::NoPort(name, port) => write!(f, "node \"{name}\" has no port {port}"),
            Self::Twice(name, port) => {
                write!(f, "port {port} of \"{name}\" is already connected to another port")
            }
            Self::Loop(name, port) => {
                write!(f, "port {port} of \"{name}\" is connected with itself")
            }
            Self::Width(text) => write!(f, "a link has 1, 4, 8 or 12 lanes, not `{text}`"),
            Self::Empty => f.write_str("the file describes no node"),
        }
    }
}

/// An error and the line that has it, from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetError {
    /// The line.
    pub line: usize,
    /// What is wrong with it.
    pub kind: NetErrorKind,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.kind)
    }
}

impl core::error::Error for NetError {}

impl Net {
    /// The node that has a name, in the file or in its description.
    pub fn find(&self, name: &str) -> Option<usize> {
        let by_name = self.nodes.iter().position(|node| node.name == name);
        by_name.or_else(|| self.nodes.iter().position(|node| node.description == name))
    }

    /// A number that two processes compare to see whether they have read the same nodes and links.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        for node in &self.nodes {
            let switch = u64::from(node.kind == NodeKind::Switch);
            let numbers = [switch, node.ports.into(), node.guid, node.system_guid];
            numbers.into_iter().for_each(|number| digest.add(&number.to_be_bytes()));
            digest.add(node.name.as_bytes());
            digest.add(node.description.as_bytes());
            digest.add(self.parts.get(node.part).map_or(&[][..], |name| name.as_bytes()));
            match node.address {
                Some(IpAddr::V4(ip)) => digest.add(&ip.octets()),
                Some(IpAddr::V6(ip)) => digest.add(&ip.octets()),
                None => digest.add(&[]),
            }
        }
        for NetLink { ends, width } in &self.links {
            for PortRef { node, port } in ends {
                digest.add(&(*node as u64).to_be_bytes());
                digest.add(&[*port, *width]);
            }
        }
        digest.0
    }

    /// Gives a GUID to nodes that have none: adapters and switches are counted apart.
    pub(crate) fn number(&mut self) {
        let (mut adapter, mut switch) = (FIRST_ADAPTER, FIRST_SWITCH);
        for node in &mut self.nodes {
            let next = match node.kind {
                NodeKind::Adapter => &mut adapter,
                NodeKind::Switch => &mut switch,
            };
            if node.guid == 0 {
                node.guid = *next;
                // The ports of an adapter take a number each.
                *next += match node.kind {
                    NodeKind::Adapter => 1 + u64::from(node.ports),
                    NodeKind::Switch => 1,
                };
            }
            if node.system_guid == 0 {
                node.system_guid = node.guid;
            }
        }
    }
}

/// FNV-1a of fields, each with its length.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, field: &[u8]) {
        for byte in (field.len() as u64).to_be_bytes().iter().chain(field) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
