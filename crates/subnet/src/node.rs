//! A node: an adapter or a switch, with its ports.

use alloc::string::String;
use alloc::vec::Vec;

use feroce_wire::mad::{NodeDescription, NodeInfo, NodeType};

use crate::net::{NetNode, NodeKind};
use crate::port::{PKEYS, Port};
use crate::switch::Switch;
use crate::trap::Traps;

/// Revision that nodes name; as ibsim's do.
const REVISION: u32 = 0xa1;

/// An adapter or a switch.
#[derive(Debug)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) info: NodeInfo,
    pub(crate) description: NodeDescription,
    /// By number. The one with number 0 manages a switch; an adapter has none.
    pub(crate) ports: Vec<Port>,
    pub(crate) switch: Option<Switch>,
    pub(crate) traps: Traps,
    /// The part of the fabric that runs it, if that is another one.
    pub(crate) elsewhere: Option<usize>,
}

impl Node {
    pub(crate) fn new(net: &NetNode) -> Self {
        let (node_type, switch) = match net.kind {
            NodeKind::Adapter => (NodeType::CHANNEL_ADAPTER, None),
            NodeKind::Switch => (NodeType::SWITCH, Some(Switch::new(net.ports))),
        };
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type,
            num_ports: net.ports,
            system_image_guid: net.system_guid,
            node_guid: net.guid,
            partition_cap: PKEYS as u16,
            revision: REVISION,
            ..NodeInfo::default()
        };
        let guid = |number: u8| match net.kind {
            NodeKind::Adapter => net.guid.wrapping_add(u64::from(number)),
            NodeKind::Switch => net.guid,
        };
        let port = |number| Port::new(net.kind, number, net.ports, guid(number));
        Self {
            name: net.name.clone(),
            info,
            description: NodeDescription::new(&net.description),
            ports: (0..=net.ports).map(port).collect(),
            switch,
            traps: Traps::default(),
            elsewhere: None,
        }
    }

    /// Whether this subnet runs it, and not another part of the fabric.
    pub fn is_here(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of itself.
    pub fn description(&self) -> &NodeDescription {
        &self.description
    }

    /// Kind and GUIDs, without the port of arrival.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// What it is.
    pub fn kind(&self) -> NodeKind {
        if self.switch.is_some() { NodeKind::Switch } else { NodeKind::Adapter }
    }

    /// A port by its number. Port 0 exists on switches alone.
    pub fn port(&self, number: u8) -> Option<&Port> {
        if number == 0 && self.switch.is_none() {
            return None;
        }
        self.ports.get(usize::from(number))
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        if number == 0 && self.switch.is_none() {
            return None;
        }
        self.ports.get_mut(usize::from(number))
    }

    /// The forwarding tables of a switch.
    pub fn switch(&self) -> Option<&Switch> {
        self.switch.as_ref()
    }

    /// The port whose settings hold for a packet that arrived by a port: of a switch port 0.
    pub(crate) fn end_port(&self, arrived_by: u8) -> u8 {
        if self.switch.is_some() { 0 } else { arrived_by }
    }
}
