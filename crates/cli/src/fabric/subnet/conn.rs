//! A connection of a program: pieces of datagrams in both directions.

use std::collections::{BTreeMap, VecDeque};

use feroce_link::port::{PortSocket, Received, Sent};
use feroce_local::{Offered, PortRings};
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
    Attached(Packets),
    /// It holds a service for a process.
    Claim,
    /// It keeps a port in a multicast group.
    Member,
    /// It says what the adapter of a node is like.
    Watch(Watched),
}

impl Role {
    /// A process that is attached to a port from now on.
    pub(super) const ATTACHED: Self = Self::Attached(Packets::Unknown);
}

/// How packets go to a process and come from it.
#[derive(Debug)]
pub(super) enum Packets {
    /// The process has yet to say, and waits for the answer: until then there are none.
    Unknown,
    /// Through the socket.
    Socket,
    /// Through rings; the socket wakes who sleeps.
    Rings(PortRings),
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
    /// The process has ended, and what it has sent before may still be in its rings.
    pub(super) is_gone: bool,
}

impl Conn {
    pub(super) fn new(socket: PortSocket) -> Self {
        let (outgoing, joiner) = (VecDeque::new(), Joiner::default());
        Self { socket, role: Role::New, joiner, outgoing, is_full: false, is_gone: false }
    }

    /// Receives a message.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let Role::Attached(packets) = &mut self.role else { return self.socket.receive(buffer) };
        match packets {
            Packets::Unknown if self.is_gone => Received::Gone,
            Packets::Unknown => Received::Nothing,
            Packets::Socket => self.socket.receive(buffer),
            Packets::Rings(rings) => match rings.receive(&self.socket, buffer) {
                Received::Nothing if self.is_gone => Received::Gone,
                received => received,
            },
        }
    }

    /// Sends a message of `len` bytes, which `write` writes to where it is sent from: that may be
    /// `buffer`.
    pub(super) fn send_with(
        &mut self,
        len: usize,
        buffer: &mut Vec<u8>,
        write: impl Fn(&mut [u8]),
    ) -> Sent {
        match &mut self.role {
            Role::Attached(Packets::Rings(rings)) => {
                return rings.send_with(&self.socket, len, write);
            }
            Role::Attached(Packets::Unknown) => return Sent::Full,
            _ => {}
        }
        buffer.resize(len, 0);
        write(buffer);
        self.socket.send(buffer)
    }

    /// The socket of a process is readable, which carries no packets: the process has offered
    /// rings, has rung, or has ended. Returns false if it has ended.
    pub(super) fn hear(&mut self) -> bool {
        self.is_gone = match &mut self.role {
            Role::Attached(packets @ Packets::Unknown) => match PortRings::accept(&self.socket) {
                Offered::Rings(rings) => {
                    *packets = Packets::Rings(rings);
                    false
                }
                Offered::None => {
                    *packets = Packets::Socket;
                    false
                }
                Offered::Nothing => false,
                Offered::Gone => true,
            },
            _ => !PortRings::hear(&self.socket),
        };
        !self.is_gone
    }

    /// Whether packets go through the socket, and the kernel tells when there is room for some.
    pub(super) fn is_socket(&self) -> bool {
        !matches!(self.role, Role::Attached(Packets::Unknown | Packets::Rings(_)))
    }

    /// Whether there is a message in the rings, or the end of the process to be noticed.
    pub(super) fn has_mail(&mut self) -> bool {
        self.is_gone || self.rings().is_some_and(|rings| !rings.is_empty())
    }

    /// The rings, if packets come through some.
    pub(super) fn rings(&mut self) -> Option<&mut PortRings> {
        match &mut self.role {
            Role::Attached(Packets::Rings(rings)) => Some(rings),
            _ => None,
        }
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
