//! A port of a fabric: packets go to the process that runs the fabric, and come from it.
//!
//! The process passes packets through its switches and links in real time. Two things make that
//! exact although no process runs at every nanosecond. Packets carry the time at which they were
//! sent, so that the fabric handles them as of then. And the fabric hands out a packet before its
//! last bit arrives, with the time of arrival, at which the carrier delivers it.
//!
//! Bytes that may wait for the host's link are bounded (*credit*): the fabric says when they have
//! left, and until then the carrier takes no more trains. So a link that is slow, or paused, holds
//! the engine back.

mod channel;
mod message;
mod socket;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path as FilePath, PathBuf};

use feroce_train::{Ecn, Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::icrc::{ICRC_LEN, MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS, Sealer};
use crate::{Carrier, Control, LinkCounters, Logger, annotate};

pub use channel::PortChannel;
pub use message::{
    Answer, CREDIT_LEN, MAX_MESSAGE, RECORD_LEN, Record, Request, Welcome, wire_len,
};
pub use socket::{PortListener, PortSocket, Received, Sent};

/// Hop limit of paths that have none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Bytes of messages that wait for the arrival of their packets, at most: 3 ms at 10 Gb/s. More
/// stay in the socket.
const MAX_HELD: usize = 4 << 20;

/// A thread does not sleep if the next packet arrives within this time: it would wake too late.
const IMMINENT_NS: u64 = 60_000;

/// How a [`PortLink`] is made.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Where the fabric listens.
    pub socket: PathBuf,
    /// The address of the host; `None` where a subnet manager gives addresses.
    pub address: Option<Gid>,
    /// Mark packets as ECN-capable.
    pub ecn: bool,
    /// What [`Instant::ZERO`] is on the system's monotonic clock: the carrier has no clock.
    pub origin_ns: u64,
    /// Where messages go.
    pub log: Logger,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    tx_packets: u64,
    tx_full: u64,
    tx_lost: u64,
    rx_trains: u64,
    rx_damaged: u64,
}

/// A carrier whose packets pass a fabric.
pub struct PortLink {
    config: PortConfig,
    welcome: Welcome,
    /// Nothing when the fabric has ended.
    channel: Option<Box<dyn PortChannel>>,
    /// Multicast groups: the port is a member as long as the connection lasts.
    groups: Vec<(Gid, PortSocket)>,
    epoll: Epoll,
    /// Bytes on the link that the carrier may still send; a train may overdraw it.
    credit: i64,
    sealer: Sealer,
    outbox: Vec<u8>,
    /// Messages with packets that have not arrived yet.
    held: VecDeque<Held>,
    /// Bytes of those messages.
    held_bytes: usize,
    /// Buffers for messages.
    spare: Vec<Vec<u8>>,
    counters: Counters,
}

/// A message, of which a part was delivered.
struct Held {
    buffer: Vec<u8>,
    len: usize,
    at: usize,
}

impl Held {
    fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..self.len).unwrap_or_default()
    }
}

impl PortLink {
    /// Joins a fabric as the host with the address.
    pub fn connect(config: PortConfig) -> io::Result<Self> {
        let request = Request::Port(config.address.unwrap_or_default()).emit();
        let (socket, answer) = ask(&config.socket, &request)?;
        match answer {
            Answer::Welcome(welcome) => Self::attached(config, Box::new(socket), welcome),
            Answer::InUse => Err(io::ErrorKind::AddrInUse.into()),
            Answer::Refused(text) => Err(io::Error::other(format!("the fabric: {text}"))),
        }
    }

    /// The carrier of a port that the fabric has opened already, on the channel to it.
    pub fn attached(
        config: PortConfig,
        channel: Box<dyn PortChannel>,
        welcome: Welcome,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(channel.wait_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self {
            config,
            welcome,
            channel: Some(channel),
            groups: Vec::new(),
            epoll,
            credit: welcome.credit.into(),
            sealer: Sealer::default(),
            outbox: Vec::with_capacity(MAX_MESSAGE),
            held: VecDeque::new(),
            held_bytes: 0,
            spare: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// What the fabric said about the port.
    pub fn welcome(&self) -> Welcome {
        self.welcome
    }

    fn ecn(&self) -> Ecn {
        if self.config.ecn { Ecn::Capable } else { Ecn::NotCapable }
    }

    /// Tells the fabric that the port takes packets to a group.
    fn join(&mut self, group: Gid) -> io::Result<()> {
        // In an InfiniBand fabric the consumer joins through subnet administration, which tells
        // the switches.
        let Some(address) = self.config.address else { return Ok(()) };
        if self.groups.iter().any(|(other, _)| *other == group) {
            return Ok(());
        }
        let request = Request::Join { address, slot: self.welcome.slot, group };
        let socket = PortClaim::hold(&self.config.socket, request)?;
        self.groups.push((group, socket));
        Ok(())
    }

    /// The fabric has ended: there is nothing to wait for any more.
    #[cold]
    fn lose_fabric(&mut self) -> io::Error {
        if let Some(channel) = self.channel.take() {
            let _ = self.epoll.delete(channel.wait_fd());
        }
        let at = self.config.socket.display();
        io::Error::new(
            io::ErrorKind::ConnectionReset,
            format!("the fabric at {at} has ended: this device sends and receives no more"),
        )
    }

    /// Appends a train to the message that is being written.
    fn append(&mut self, now: Instant, train: &Train) {
        let meta = self.headers(&train.path);
        let len = train.total_len() + train.count as usize * ICRC_LEN;
        let at = self.outbox.len();
        self.outbox.resize(at + RECORD_LEN + len, 0);
        let (head, packets) = self.outbox[at..].split_at_mut(RECORD_LEN);
        self.sealer.emit_all(train, meta.udp_sport, packets);
        let at_ns = now.as_nanos().wrapping_add(self.config.origin_ns);
        let stride = train.packet_len(0) + ICRC_LEN;
        Record { at_ns, meta, stride, bytes: packets }.emit_head(head);
        let each = i64::from(wire_len(&meta, 0));
        self.credit -= len as i64 + i64::from(train.count) * each;
        self.counters.tx_trains += 1;
        self.counters.tx_packets += u64::from(train.count);
    }

    /// Sends the message with the first trains, as many as credit and message have room for, and
    /// returns how many those are.
    fn send_some(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.outbox.clear();
        self.outbox.resize(CREDIT_LEN, 0);
        let (before, counted) = (self.credit, self.counters);
        let mut taken = 0;
        for train in trains {
            let len = train.total_len() + train.count as usize * ICRC_LEN + RECORD_LEN;
            if self.credit <= 0 || (taken > 0 && self.outbox.len() + len > MAX_MESSAGE) {
                break;
            }
            self.append(now, train);
            taken += 1;
        }
        if taken == 0 {
            self.counters.tx_full += 1;
            return Ok(0);
        }
        let Some(channel) = &mut self.channel else { return Ok(taken) };
        match channel.send(&self.outbox) {
            Sent::Done => Ok(taken),
            Sent::Full => {
                (self.credit, self.counters) = (before, counted);
                self.counters.tx_full += 1;
                Ok(0)
            }
            Sent::Gone => Err(self.lose_fabric()),
        }
    }

    /// Takes a message from the channel; false if there is none.
    fn fetch(&mut self, now: Instant) -> io::Result<bool> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        let mut buffer = self.spare.pop().unwrap_or_else(|| vec![0; MAX_MESSAGE]);
        let received = channel.receive(now, &mut buffer);
        let Received::Message(len) = received else {
            self.spare.push(buffer);
            return if received == Received::Gone { Err(self.lose_fabric()) } else { Ok(false) };
        };
        if let Some(credit) = buffer.first_chunk().filter(|_| len >= CREDIT_LEN) {
            self.credit += i64::from(u32::from_ne_bytes(*credit));
        }
        if len > CREDIT_LEN {
            self.held_bytes += len;
            self.held.push_back(Held { buffer, len, at: CREDIT_LEN });
        } else {
            self.spare.push(buffer);
        }
        Ok(true)
    }

    /// When the packets of the oldest record arrive.
    fn next_arrival(&self) -> Option<Instant> {
        let mut rest = self.held.front()?.rest();
        // A damaged record is due at once, so that it is found.
        let at_ns = Record::take(&mut rest).map_or(self.config.origin_ns, |record| record.at_ns);
        Some(Instant::from_nanos(at_ns.saturating_sub(self.config.origin_ns)))
    }

    /// Delivers the oldest record.
    fn deliver(&mut self, sink: &mut dyn FnMut(&RxTrain<'_>)) {
        let Some(held) = self.held.front_mut() else { return };
        let mut rest = held.rest();
        let left = match Record::take(&mut rest) {
            Some(Record { meta, stride, bytes, .. }) => {
                sink(&RxTrain { meta, bytes, stride, trailer: 0, remote: None });
                self.counters.rx_trains += 1;
                rest.len()
            }
            None => {
                self.counters.rx_damaged += 1;
                0
            }
        };
        held.at = held.len - left;
        if left == 0
            && let Some(Held { buffer, len, .. }) = self.held.pop_front()
        {
            self.held_bytes -= len;
            self.spare.push(buffer);
        }
    }
}

/// Asks the fabric at `path` for something. The connection stays.
fn ask(path: &FilePath, request: &[u8]) -> io::Result<(PortSocket, Answer)> {
    let explained = |e: io::Error| {
        let at = path.display();
        let text = match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                format!("no fabric runs at {at}: start one with `feroce fabric up`")
            }
            _ => format!("the fabric at {at}: {e}"),
        };
        annotate(e, text)
    };
    let (socket, answer) = PortSocket::ask(path, request).map_err(explained)?;
    let answer = Answer::parse(&answer).ok_or_else(|| {
        io::Error::other(format!(
            "the fabric at {} is of another version of feroce",
            path.display()
        ))
    })?;
    Ok((socket, answer))
}

/// While it lives, requests for a service at an address of a fabric go to one process there.
#[derive(Debug)]
pub struct PortClaim {
    _socket: PortSocket,
}

impl PortClaim {
    /// Claims a service for the process `slot` at the address. It is an error of kind
    /// [`io::ErrorKind::AddrInUse`] if another process has it.
    pub fn new(fabric: &FilePath, address: Gid, slot: u8, service: u64) -> io::Result<Self> {
        let request = Request::Claim { address, slot, service };
        Ok(Self { _socket: Self::hold(fabric, request)? })
    }

    /// Asks for something that lasts as long as the connection.
    fn hold(fabric: &FilePath, request: Request) -> io::Result<PortSocket> {
        match ask(fabric, &request.emit())? {
            (socket, Answer::Welcome(_)) => Ok(socket),
            (_, Answer::InUse) => Err(io::ErrorKind::AddrInUse.into()),
            (_, Answer::Refused(text)) => Err(io::Error::other(format!("the fabric: {text}"))),
        }
    }
}

impl fmt::Debug for PortLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, welcome, counters, .. } = self;
        f.debug_struct("PortLink")
            .field("config", config)
            .field("welcome", welcome)
            .field("counters", counters)
            .finish_non_exhaustive()
    }
}

impl Carrier for PortLink {
    fn caps(&self) -> LinkCaps {
        let max_bytes = self.welcome.train.min(MAX_TRAIN_BYTES);
        LinkCaps { max_packets: MAX_TRAIN_PACKETS.into(), max_bytes }
    }

    fn headers(&self, path: &Path) -> RxMeta {
        let hop_limit = if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit };
        RxMeta { hop_limit, ecn: self.ecn(), ..RxMeta::from(path) }
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> LinkCounters {
        let c = &self.counters;
        vec![
            ("fabric_tx_trains", c.tx_trains),
            ("fabric_tx_packets", c.tx_packets),
            ("fabric_tx_full", c.tx_full),
            ("fabric_tx_lost", c.tx_lost),
            ("fabric_rx_trains", c.rx_trains),
            ("fabric_rx_damaged", c.rx_damaged),
        ]
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        if self.channel.is_none() {
            self.counters.tx_lost += trains.iter().map(|t| u64::from(t.count)).sum::<u64>();
            return Ok(trains.len());
        }
        let mut taken = 0;
        while taken < trains.len() {
            match self.send_some(now, &trains[taken..])? {
                0 => break,
                some => taken += some,
            }
        }
        Ok(taken)
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        let mut taken = 0;
        while taken < budget {
            if self.next_arrival().is_some_and(|at| at <= now) {
                self.deliver(sink);
                taken += 1;
            } else if self.held_bytes >= MAX_HELD || !self.fetch(now)? {
                break;
            }
        }
        Ok(taken)
    }

    fn arm(&mut self, now: Instant) -> bool {
        let is_imminent = self.next_arrival().is_some_and(|at| at.nanos_since(now) <= IMMINENT_NS);
        // What waits behind as much as may be held is fetched when some of that has arrived.
        let mut may_sleep =
            |channel: &mut Box<dyn PortChannel>| channel.arm() || self.held_bytes >= MAX_HELD;
        !is_imminent && self.channel.as_mut().is_none_or(&mut may_sleep)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next_arrival()
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        match control {
            Control::Addresses(addresses) => {
                let Some(own) = self.config.address else { return Ok(()) };
                match addresses.iter().find(|&&gid| !gid.is_zero() && gid != own) {
                    None => Ok(()),
                    Some(other) => Err(io::Error::new(
                        io::ErrorKind::AddrNotAvailable,
                        format!("{other} is not the address of this host of the fabric, {own}"),
                    )),
                }
            }
            Control::Join(group) => self.join(group),
            Control::Leave(group) => {
                self.groups.retain(|(other, _)| *other != group);
                Ok(())
            }
            Control::Exit | Control::Fork => Ok(()),
        }
    }
}
