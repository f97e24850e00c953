//! A connection of a program: pieces of datagrams in both directions.

use std::collections::{BTreeMap, VecDeque};

use feroce_link::port::{PortSocket, Sent};
use feroce_subnet::{FileId, Port, PortRef, Subnet, UserMad};
use feroce_umad::{Joiner, pieces};

/// Number of a connection.
pub(super) type ConnId = u64;

/// How often the subnet manager has asked the clients of ports to register anew.
pub(super) type Reregistrations = BTreeMap<PortRef, u32>;

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// Its request was not answered yet.
    New,
    /// It carries datagrams of a port that is open.
    Open(FileId),
    /// It carries packets of a process.
    Attached,
    /// It holds a service for a process.
    Claim,
    /// It keeps a port in a multicast group.
    Member,
    /// It says what the adapter of a node is like.
    Watch(Watched),
}

/// An adapter that a program watches.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) node: usize,
    /// Its ports as the program knows them.
    known: Vec<Port>,
    /// And how often its clients were asked to register anew.
    reregistrations: u32,
}

impl Watched {
    pub(super) fn new(subnet: &Subnet, asked: &Reregistrations, node: usize) -> Self {
        let known = ports(subnet, node).cloned().collect();
        Self { node, known, reregistrations: count(asked, node) }
    }

    /// Whether the adapter is not as the program knows it.
    pub(super) fn is_stale(&self, subnet: &Subnet, asked: &Reregistrations) -> bool {
        if self.reregistrations != count(asked, self.node) {
            return true;
        }
        let mut both = self.known.iter().zip(ports(subnet, self.node));
        both.any(|(known, now)| {
            (known.info(), known.pkeys(), known.guids()) != (now.info(), now.pkeys(), now.guids())
        })
    }
}

fn count(asked: &Reregistrations, node: usize) -> u32 {
    asked.iter().filter(|(at, _)| at.node == node).map(|(_, count)| *count).sum()
}

fn ports(subnet: &Subnet, node: usize) -> impl Iterator<Item = &Port> {
    let node = subnet.nodes().get(node);
    node.into_iter().flat_map(|node| (1..=node.info().num_ports).filter_map(|n| node.port(n)))
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) socket: PortSocket,
    pub(super) role: Role,
    pub(super) joiner: Joiner,
    /// Pieces that the socket has no room for yet, and whether they are the last of a datagram.
    outgoing: VecDeque<(Vec<u8>, bool)>,
    /// The fabric waits until the socket has room.
    pub(super) is_full: bool,
}

impl Conn {
    pub(super) fn new(socket: PortSocket) -> Self {
        let (outgoing, joiner) = (VecDeque::new(), Joiner::default());
        Self { socket, role: Role::New, joiner, outgoing, is_full: false }
    }

    pub(super) fn queue(&mut self, mad: &UserMad) {
        let bytes = mad.to_bytes();
        let mut rest = pieces(&bytes).peekable();
        while let Some(piece) = rest.next() {
            self.outgoing.push_back((piece, rest.peek().is_none()));
        }
    }

    /// Sends what the socket has room for. Returns how many datagrams have left whole, or `None` if
    /// the program is gone.
    pub(super) fn flush(&mut self) -> Option<usize> {
        let mut whole = 0;
        while let Some((piece, is_last)) = self.outgoing.front() {
            match self.socket.send(piece) {
                Sent::Done => {
                    whole += usize::from(*is_last);
                    self.outgoing.pop_front();
                }
                Sent::Full => break,
                Sent::Gone => return None,
            }
        }
        Some(whole)
    }

    pub(super) fn has_more(&self) -> bool {
        !self.outgoing.is_empty()
    }
}
