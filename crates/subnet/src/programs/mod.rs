//! Programs behind the ports of adapters: who sends management datagrams, and who gets them.
//!
//! A program opens a port ([`Programs::open`]), registers agents for the classes that it speaks
//! ([`Programs::register`]) and sends datagrams through them. This module does for it what the
//! kernel's management layer does: it ties responses to the agent whose request they answer, hands
//! requests to the agent that has registered for their method, repeats requests that are not
//! answered, and cuts long messages into segments and joins them (IBTA vol1 13.6).
//!
//! * `agent`: registrations, and which agent a datagram is for.
//! * `request`: requests that wait for a response.
//! * `transfer`, `assembly`: messages of several segments, sent and received.
//! * `user_mad`: a datagram with its address, as programs hand it over.

mod agent;
mod assembly;
mod request;
mod transfer;
mod user_mad;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::mad::{Class, MAD_LEN, MadHeader, Method, Rmpp, RmppType};
use feroce_wire::{Lid, Pkey, Qkey, Qpn};

use crate::packet::{MadPacket, PortRef};
use crate::subnet::Subnet;

use agent::Agent;
pub use agent::{RegisterError, Registration};
use assembly::Assembly;
use request::Request;
use transfer::Transfer;
pub use user_mad::{MadAddress, UserMad};

/// Where the header of multi-packet transfers is.
const RMPP_AT: usize = MadHeader::LEN;
/// Requests, transfers and assemblies of one program at a time.
const MAX_WAITING: usize = 8192;
/// Datagrams that one program has not taken yet. More are dropped.
const MAX_UNREAD: usize = 16384;
/// Agents of one program on a port.
const MAX_AGENTS: u32 = 32;

/// A port that a program has open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

#[derive(Debug)]
struct File {
    at: PortRef,
    unread: usize,
}

/// Why a datagram was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The program has no such agent, or the datagram or its address is malformed.
    Invalid,
    /// Too many requests of the program wait for responses.
    TooMany,
}

/// The programs of a subnet. See the documentation of the module.
#[derive(Debug, Default)]
pub struct Programs {
    files: BTreeMap<FileId, File>,
    last_file: u32,
    /// By the upper half of the transactions of their requests.
    agents: BTreeMap<u32, Agent>,
    last_agent: u32,
    /// By transaction, the oldest first.
    requests: BTreeMap<(u64, u64), Request>,
    transfers: BTreeMap<u64, Transfer>,
    assemblies: BTreeMap<assembly::Key, Assembly>,
    serial: u64,
    deliveries: VecDeque<(FileId, UserMad)>,
    dropped: u64,
}

impl Programs {
    /// No program.
    pub fn new() -> Self {
        Self::default()
    }

    /// A program opens a port.
    pub fn open(&mut self, at: PortRef) -> FileId {
        self.last_file += 1;
        let id = FileId(self.last_file);
        self.files.insert(id, File { at, unread: 0 });
        id
    }

    /// A program closes a port, or has ended.
    pub fn close(&mut self, file: FileId) {
        self.files.remove(&file);
        let uppers: Vec<u32> = self.agents_of(file).map(|(upper, _)| upper).collect();
        uppers.into_iter().for_each(|upper| self.forget(upper));
        self.deliveries.retain(|(to, _)| *to != file);
    }

    /// How many ports of a node programs have open.
    pub fn files_at(&self, node: usize) -> usize {
        self.files.values().filter(|file| file.at.node == node).count()
    }

    /// Datagrams that were dropped because a program did not take them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The next datagram for a program.
    pub fn poll_delivery(&mut self) -> Option<(FileId, UserMad)> {
        self.deliveries.pop_front()
    }

    /// A program has taken a datagram that [`Programs::poll_delivery`] returned.
    pub fn taken(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.unread = file.unread.saturating_sub(1);
        }
    }

    /// A program sends a datagram, or a message of several.
    pub fn send(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        file: FileId,
        mut mad: UserMad,
    ) -> Result<(), SendError> {
        let found = self.agents_of(file).find(|(_, agent)| agent.id == mad.agent);
        let (upper, agent) = found.ok_or(SendError::Invalid)?;
        let (at, joins) = (agent.at, agent.joins_segments());
        let (mut header, _) = MadHeader::parse(&mad.data).map_err(|_| SendError::Invalid)?;
        if !Method(header.method).is_response() {
            let low = header.transaction & u64::from(u32::MAX);
            header.transaction = (u64::from(upper) << 32) | low;
            if let Some(out) = mad.data.first_chunk_mut() {
                header.emit(out);
            }
        }
        let is_long = joins && rmpp(&mad.data).is_some_and(|rmpp| rmpp.is_active);
        let mut bytes = [0; MAD_LEN];
        let first = &mad.data[..mad.data.len().min(MAD_LEN)];
        if first.len() < mad.data.len() && !is_long {
            return Err(SendError::Invalid);
        }
        bytes[..first.len()].copy_from_slice(first);
        let packet = packet(subnet, at, &header, &mad.address, bytes).ok_or(SendError::Invalid)?;
        if self.waiting(file) >= MAX_WAITING {
            return Err(SendError::TooMany);
        }
        if is_long {
            return self.begin_transfer(now, subnet, file, upper, packet, &mad);
        }
        if mad.timeout_ms != 0 {
            self.expect(now, file, upper, at, &packet, &mad);
        }
        subnet.send(now, at, packet);
        Ok(())
    }

    /// A datagram reaches the programs behind a port.
    pub fn handle(&mut self, now: Instant, subnet: &mut Subnet, at: PortRef, packet: MadPacket) {
        let Ok((header, _)) = MadHeader::parse(&packet.mad) else {
            return;
        };
        let is_response = Method(header.method).is_response();
        let upper = match is_response {
            true => (header.transaction >> 32) as u32,
            false => self.taker(at, &header, &packet.mad).unwrap_or(0),
        };
        let Some(agent) = self.agents.get(&upper).filter(|agent| agent.at == at) else {
            return subnet.refuse(now, at, &packet);
        };
        let (joins, file, id) = (agent.joins_segments(), agent.file, agent.id);
        let rmpp = rmpp(&packet.mad).filter(|rmpp| joins && rmpp.is_active);
        let data = match rmpp {
            None => packet.mad.to_vec(),
            Some(Rmpp { kind: RmppType::DATA, .. }) => {
                match self.join_segment(now, subnet, at, upper, &header, &packet) {
                    Some(data) => data,
                    None => return,
                }
            }
            Some(rmpp) => return self.answer_of_receiver(now, subnet, at, &packet, &rmpp),
        };
        if is_response && !self.finish(&header, &packet) {
            return;
        }
        let address = MadAddress::of(subnet, at, &packet);
        let mad = UserMad { agent: id, status: 0, timeout_ms: 0, retries: 0, address, data };
        self.deliver(file, mad);
    }

    /// When [`Programs::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let requests = self.requests.values().map(|request| request.deadline);
        let transfers = self.transfers.values().map(|transfer| transfer.deadline);
        let assemblies = self.assemblies.values().map(|assembly| assembly.deadline);
        requests.chain(transfers).chain(assemblies).min()
    }

    /// Repeats what was not answered, or gives it up.
    pub fn handle_timeout(&mut self, now: Instant, subnet: &mut Subnet) {
        self.repeat_requests(now, subnet);
        self.repeat_transfers(now, subnet);
        self.assemblies.retain(|_, assembly| assembly.deadline > now);
    }

    fn deliver(&mut self, to: FileId, mad: UserMad) {
        match self.files.get_mut(&to) {
            Some(file) if file.unread < MAX_UNREAD => {
                file.unread += 1;
                self.deliveries.push_back((to, mad));
            }
            _ => self.dropped += 1,
        }
    }

    fn waiting(&self, file: FileId) -> usize {
        let requests = self.requests.values().filter(|request| request.file == file).count();
        requests + self.transfers.values().filter(|transfer| transfer.file == file).count()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// The header of multi-packet transfers of a datagram.
fn rmpp(mad: &[u8]) -> Option<Rmpp> {
    Rmpp::parse(mad.get(RMPP_AT..)?).ok().map(|(rmpp, _)| rmpp)
}

/// The packet of a datagram that a program sends; `None` if its address makes no sense.
fn packet(
    subnet: &Subnet,
    at: PortRef,
    header: &MadHeader,
    to: &MadAddress,
    mad: [u8; MAD_LEN],
) -> Option<MadPacket> {
    let port = subnet.port(at)?;
    let class = Class(header.class);
    let is_subnet = class.is_subnet();
    let qpn = if is_subnet { Qpn::QP0 } else { Qpn::QP1 };
    // Other queue pairs are those of verbs, which management does not reach.
    if !is_subnet && to.qpn != Qpn::QP1.get() {
        return None;
    }
    let base = port.info().lid;
    let is_local = class == Class::SUBNET_DIRECTED && to.lid == Lid::PERMISSIVE;
    let slid = match is_local {
        true => Lid::PERMISSIVE,
        false => Lid(base.0 | (u16::from(to.path_bits) & !(u16::MAX << port.info().lmc))),
    };
    let gids = match to.gid {
        Some((index, gid)) => Some((port.gid(usize::from(index))?, gid)),
        None => None,
    };
    let pkey = match is_subnet {
        true => Pkey::DEFAULT,
        false => *port.pkeys().get(usize::from(to.pkey_index))?,
    };
    let (sl, qkey) = (to.sl & 0xf, Qkey(to.qkey));
    Some(MadPacket { slid, dlid: to.lid, sl, pkey, src_qpn: qpn, dst_qpn: qpn, qkey, gids, mad })
}
