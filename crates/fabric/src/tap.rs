//! Ports that are watched, and what has passed them.

use alloc::vec::Vec;

use crate::Time;
use crate::packet::Packet;
use crate::port::PortId;
use crate::topology::NodeId;

/// A packet that passed a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed<B> {
    /// When it began to leave, or when all of it had arrived.
    pub at: Time,
    /// The node of the port.
    pub node: NodeId,
    /// The index of the port there.
    pub port: usize,
    /// Whether it left.
    pub is_sent: bool,
    /// The packet.
    pub packet: Packet<B>,
}

/// How a body is copied.
pub(crate) type Copying<B> = fn(&B) -> B;

/// Ports that are watched, and what has passed them.
#[derive(Debug)]
pub(crate) struct Taps<B> {
    pub(crate) ports: Vec<PortId>,
    /// Copies a packet: only bodies that can be copied can be watched.
    pub(crate) copy: Option<Copying<B>>,
    pub(crate) passed: Vec<Passed<B>>,
}

impl<B> Default for Taps<B> {
    fn default() -> Self {
        Self { ports: Vec::new(), copy: None, passed: Vec::new() }
    }
}
