//! The file format of ibsim, which is what ibnetdiscover prints.
//!
//! ```text
//! switchguid=0x200000            # properties of the node below
//! Switch  8 "Leaf1"   # "a description"
//! [1]     "Host1"[1]  w=4
//! ```
//!
//! One property is ours: `address=10.91.0.1` is the IP address of the first port of the adapter
//! below, by which connection management finds it. A line `part=east` begins a part of a fabric
//! that runs in several processes: the nodes below are in it, up to the next such line.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::net::{MAX_PART, Net, NetError, NetErrorKind, NetLink, NetNode, NodeKind};
use crate::packet::PortRef;

/// The most ports of a node: port 255 means all ports.
const MAX_PORTS: u8 = 254;

/// A link as its line says; nodes may be defined further down.
struct LinkLine<'a> {
    line: usize,
    from: PortRef,
    to: &'a str,
    to_port: u8,
    width: u8,
}

#[derive(Default)]
struct Reader<'a> {
    net: Net,
    links: Vec<LinkLine<'a>>,
    /// Lines of nodes, by index.
    lines: Vec<usize>,
    /// Properties of the next node.
    guid: u64,
    system_guid: u64,
    address: Option<IpAddr>,
    /// The part that the nodes below are in.
    part: usize,
}

impl Net {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let mut reader = Reader::default();
        for (line, text) in (1..).zip(text.lines()) {
            reader.line(line, text).map_err(|kind| NetError { line, kind })?;
        }
        if reader.net.nodes.is_empty() {
            return Err(NetError { line: text.lines().count().max(1), kind: NetErrorKind::Empty });
        }
        reader.net.number();
        reader.check_nodes()?;
        reader.connect()
    }
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: usize, text: &'a str) -> Result<(), NetErrorKind> {
        let (text, comment) = match text.split_once('#') {
            Some((text, comment)) => (text.trim(), comment),
            None => (text.trim(), ""),
        };
        if text.is_empty() {
            return Ok(());
        }
        if text.starts_with('[') {
            return self.link(line, text);
        }
        let end = text.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let kind = match word {
            "Switch" => NodeKind::Switch,
            "Hca" | "Ca" => NodeKind::Adapter,
            _ => return self.property(word, rest),
        };
        self.node(line, kind, rest, comment)
    }

    fn property(&mut self, word: &str, rest: &str) -> Result<(), NetErrorKind> {
        let value = match rest.trim_start().strip_prefix('=') {
            Some(value) => value.trim(),
            None => return Err(NetErrorKind::Unknown(word.to_owned())),
        };
        if word == "address" {
            let usable = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
            let address = value.parse().ok().filter(usable);
            let address = address.ok_or_else(|| NetErrorKind::Address(value.to_owned()))?;
            self.address = Some(address);
            return Ok(());
        }
        if word == "part" {
            return self.begin_part(value);
        }
        // ibnetdiscover adds the GUID of the port in parentheses.
        let digits = value.split('(').next().unwrap_or_default().trim();
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let number = u64::from_str_radix(digits, 16);
        let number = number.map_err(|_| NetErrorKind::Property(word.to_owned()))?;
        match word {
            "switchguid" | "caguid" | "nodeguid" => self.guid = number,
            "sysimgguid" => self.system_guid = number,
            "vendid" | "devid" => {}
            _ => return Err(NetErrorKind::Unknown(word.to_owned())),
        }
        Ok(())
    }

    /// The nodes below are in a part; it may have begun further up.
    fn begin_part(&mut self, name: &str) -> Result<(), NetErrorKind> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > MAX_PART || !name.chars().all(fits) {
            return Err(NetErrorKind::Part(name.to_owned()));
        }
        if self.net.parts.is_empty() && !self.net.nodes.is_empty() {
            return Err(NetErrorKind::LatePart);
        }
        let known = self.net.parts.iter().position(|part| part == name);
        self.part = known.unwrap_or(self.net.parts.len());
        if known.is_none() {
            self.net.parts.push(name.to_owned());
        }
        Ok(())
    }

    fn node(
        &mut self,
        line: usize,
        kind: NodeKind,
        rest: &str,
        comment: &str,
    ) -> Result<(), NetErrorKind> {
        let (ports, rest) = rest.split_once('"').ok_or(NetErrorKind::Node)?;
        let (name, _) = rest.split_once('"').ok_or(NetErrorKind::Node)?;
        let ports = ports.trim();
        let count = ports.parse().ok().filter(|count| (1..=MAX_PORTS).contains(count));
        let ports = count.ok_or_else(|| NetErrorKind::Ports(ports.to_owned()))?;
        if name.is_empty() {
            return Err(NetErrorKind::Node);
        }
        let address = self.address.take();
        if kind == NodeKind::Switch && address.is_some() {
            return Err(NetErrorKind::SwitchAddress);
        }
        let described = comment.split('"').nth(1).filter(|text| !text.is_empty());
        self.net.nodes.push(NetNode {
            name: name.to_owned(),
            description: described.unwrap_or(name).to_owned(),
            kind,
            ports,
            guid: core::mem::take(&mut self.guid),
            system_guid: core::mem::take(&mut self.system_guid),
            address,
            part: self.part,
        });
        self.lines.push(line);
        Ok(())
    }

    fn link(&mut self, line: usize, text: &'a str) -> Result<(), NetErrorKind> {
        let node = self.net.nodes.len().checked_sub(1).ok_or(NetErrorKind::Stray)?;
        let (port, rest) = port_number(text).ok_or(NetErrorKind::Link)?;
        // ibnetdiscover adds GUIDs in parentheses.
        let (_, rest) = rest.split_once('"').ok_or(NetErrorKind::Link)?;
        let (to, rest) = rest.split_once('"').ok_or(NetErrorKind::Link)?;
        let (to_port, rest) = port_number(rest.trim_start()).ok_or(NetErrorKind::Link)?;
        let width = match rest.split_whitespace().find_map(|word| word.strip_prefix("w=")) {
            None => 4,
            Some(width) => match width.parse() {
                Ok(lanes @ (1 | 4 | 8 | 12)) => lanes,
                _ => return Err(NetErrorKind::Width(width.to_owned())),
            },
        };
        self.links.push(LinkLine { line, from: PortRef { node, port }, to, to_port, width });
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), NetError> {
        let (mut names, mut guids) = (BTreeMap::new(), BTreeMap::new());
        let mut addresses = BTreeMap::new();
        for (node, &line) in self.net.nodes.iter().zip(&self.lines) {
            let name: &String = &node.name;
            if names.insert(name, ()).is_some() {
                return Err(NetError { line, kind: NetErrorKind::SameName(name.clone()) });
            }
            if guids.insert(node.guid, ()).is_some() {
                return Err(NetError { line, kind: NetErrorKind::SameGuid(node.guid) });
            }
            if let Some(ip) = node.address
                && addresses.insert(ip, ()).is_some()
            {
                return Err(NetError { line, kind: NetErrorKind::SameAddress(ip) });
            }
        }
        Ok(())
    }

    /// Joins the two lines of each link. One of them is enough.
    fn connect(mut self) -> Result<Net, NetError> {
        let by_name: BTreeMap<&str, usize> =
            (0..).zip(&self.net.nodes).map(|(i, node)| (node.name.as_str(), i)).collect();
        let mut peers: BTreeMap<PortRef, PortRef> = BTreeMap::new();
        let mut links = Vec::new();
        for LinkLine { line, from, to, to_port, width } in &self.links {
            let error = |kind| NetError { line: *line, kind };
            let name = |port: PortRef| self.net.nodes[port.node].name.clone();
            let node = by_name.get(to).ok_or_else(|| error(NetErrorKind::NoNode((*to).into())))?;
            let to = PortRef { node: *node, port: *to_port };
            for end in [*from, to] {
                if end.port == 0 || end.port > self.net.nodes[end.node].ports {
                    return Err(error(NetErrorKind::NoPort(name(end), end.port)));
                }
            }
            if *from == to {
                return Err(error(NetErrorKind::Loop(name(to), to.port)));
            }
            match (peers.get(from), peers.get(&to)) {
                (None, None) => {
                    peers.insert(*from, to);
                    peers.insert(to, *from);
                    links.push(NetLink { ends: [*from, to], width: *width });
                }
                (Some(peer), Some(_)) if *peer == to => {}
                (Some(_), _) => return Err(error(NetErrorKind::Twice(name(*from), from.port))),
                (None, _) => return Err(error(NetErrorKind::Twice(name(to), to.port))),
            }
        }
        self.net.links = links;
        Ok(self.net)
    }
}

/// The number in brackets at the start of `text`, and what follows.
fn port_number(text: &str) -> Option<(u8, &str)> {
    let (number, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((number.trim().parse().ok()?, rest))
}
