//! TCP connections: the carrier of iWARP, one byte stream for each queue pair.
//!
//! The carrier knows nothing of what streams carry. The driver calls:
//!
//! - [`TcpLink::listen`], [`TcpLink::connect`]: make listeners and streams. Neither blocks.
//! - [`TcpLink::receive`]: hands over what has happened since, as [`TcpEvent`]s.
//! - [`TcpLink::ask_where`]: before a stream is read the next time, a [`TcpEvent::Where`] asks for
//!   memory that its next bytes go to, and the kernel puts them there: payload of large segments is
//!   not copied a second time.
//! - [`TcpLink::send`]: gives bytes to TCP. What TCP has no room for waits here, and
//!   [`TcpEvent::Sent`] tells when it has left; the caller gives a stream that
//!   [waits](TcpLink::is_waiting) nothing more, so that a slow peer costs bounded memory and holds
//!   up no other stream.
//! - [`TcpLink::finish`]: ends a stream behind the bytes that wait.
//!
//! Every stream gets one `recv` call in a round, and rounds begin where the last one ended, so
//! that a stream that always has bytes does not keep others waiting.

mod deadlines;
pub mod dissect;
mod event;
mod fault;
mod landing;
mod listener;
mod port;
mod record;
mod reserved;
mod segment;
mod socket;
mod stream;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use feroce_train::{Burst, Instant, Scatter};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::LinkCounters;
pub use deadlines::Deadlines;
pub use event::{StreamId, TcpEvent, TcpListenId};
pub use fault::{FaultOrder, StreamFaults};
use listener::Listener;
pub use port::TcpPort;
pub use record::StreamRecords;
pub use reserved::ReservedPort;
use socket::{address_of, give_patience, mss_of, socket_for};
use stream::{Phase, Stream};

/// Bytes that one `recv` call takes. They stay in the cache until they are copied on: with 256 KiB,
/// large WRITEs of iWARP without CRC are 5 % slower.
const BUFFER: usize = 64 << 10;

/// Sockets that one `epoll_wait` call reports; others wait for the next.
const MAX_READY: usize = 64;

/// Glances in a row that look at one stream only; the next looks at all. One that finds something
/// takes longer, and counts as two.
const MAX_GLANCES: u32 = 16;

/// How long a peer may take to close its end after this end has closed its own. Bytes that arrive
/// meanwhile are discarded; to close at once would make the kernel reset the connection, and the
/// peer might lose what was sent last.
const LINGER_NS: u64 = 5_000_000_000;

/// Streams that wait so. The one that has waited longest gives way to another: peers that connect
/// and never close must not take all descriptors.
const MAX_LINGERING: usize = 1024;

/// How long a connection that was refused waits before it asks again.
const ASK_AGAIN_NS: u64 = 5_000_000;

/// How to open a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConnect {
    /// The address of this end; port 0 lets the kernel choose.
    pub local: SocketAddr,
    /// The listener.
    pub peer: SocketAddr,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// How long the carrier asks again if the peer refuses: it may not listen yet.
    pub patience_ns: u64,
}

/// A stream whose peer has not answered yet.
#[derive(Clone, Copy, Debug)]
struct Asking {
    how: TcpConnect,
    /// From then on, a refusal is final.
    until: Instant,
}

/// Listeners and streams, and the epoll instance that watches them.
#[derive(Debug)]
pub struct TcpLink {
    epoll: Epoll,
    streams: BTreeMap<u64, Stream>,
    listeners: BTreeMap<u64, Listener>,
    /// Ends that the peer has not closed yet, and when they are closed regardless.
    lingering: Deadlines<u64>,
    asking: BTreeMap<u64, Asking>,
    /// When to ask peers again that have refused, and when listeners that rest accept again. These
    /// streams have no socket until then.
    again: Deadlines<u64>,
    next: u64,
    /// The round of `receive`, which decides which of several ready sockets is first.
    round: usize,
    /// The stream that bytes came from last, and how often [`TcpLink::glance`] has looked at it
    /// alone since.
    talking: Option<u64>,
    glances: u32,
    /// The last round may have left bytes to the next.
    has_more: bool,
    /// How long a peer's host may be silent.
    patience: Option<Duration>,
    buffer: Vec<u8>,
    /// Memory that the next bytes go to; empty between calls.
    scatter: Scatter,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    accepted: u64,
    connected: u64,
    failed: u64,
    refused: u64,
    reset: u64,
    lingered: u64,
    full: u64,
    landed: u64,
    rested: u64,
}

impl TcpLink {
    /// A carrier without streams.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            streams: BTreeMap::new(),
            listeners: BTreeMap::new(),
            lingering: Deadlines::default(),
            asking: BTreeMap::new(),
            again: Deadlines::default(),
            next: 0,
            round: 0,
            talking: None,
            glances: 0,
            has_more: false,
            patience: None,
            buffer: Vec::new(),
            scatter: Scatter::default(),
            counters: Counters::default(),
        })
    }

    /// Streams end with an error when the peer's host has not answered for so long. Without this,
    /// the kernel tries for as long as it is configured to, and never asks on a stream on which
    /// nothing is sent.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Readable when [`TcpLink::receive`] has something to do.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// When [`TcpLink::receive`] should be called even if nothing happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.lingering.first(), self.again.first()].into_iter().flatten().min()
    }

    /// What happened so far.
    pub fn counters(&self) -> LinkCounters {
        let Counters { accepted, connected, failed, refused, reset, .. } = self.counters;
        let Counters { lingered, full, landed, rested, .. } = self.counters;
        vec![
            ("tcp_accepted", accepted),
            ("tcp_connected", connected),
            ("tcp_connect_failed", failed),
            ("tcp_refused_asked_again", refused),
            ("tcp_reset", reset),
            ("tcp_not_closed_by_peer", lingered),
            ("tcp_full", full),
            ("tcp_direct_bytes", landed),
            ("tcp_no_descriptor_to_accept", rested),
        ]
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Opens a stream. [`TcpEvent::Connected`] or [`TcpEvent::Failed`] follows.
    pub fn connect(&mut self, now: Instant, how: &TcpConnect) -> io::Result<StreamId> {
        let id = self.number();
        self.ask(id, how)?;
        let until = now.plus_nanos(how.patience_ns);
        self.asking.insert(id, Asking { how: *how, until });
        Ok(StreamId(id))
    }

    /// Asks the peer of a stream for a connection.
    fn ask(&mut self, id: u64, how: &TcpConnect) -> io::Result<()> {
        let socket = socket_for(how.peer)?;
        socket.set_tcp_nodelay(true)?;
        if how.tos != 0 {
            match how.peer {
                SocketAddr::V4(_) => socket.set_tos_v4(how.tos.into())?,
                SocketAddr::V6(_) => socket.set_tclass_v6(how.tos.into())?,
            }
        }
        self.patience.map_or(Ok(()), |patience| give_patience(&socket, patience))?;
        socket.bind(&how.local.into())?;
        match socket.connect(&how.peer.into()) {
            Err(e) if e.raw_os_error() != Some(Errno::EINPROGRESS as i32) => return Err(e),
            _ => {}
        }
        let stream = Stream::new(socket, Phase::Connecting);
        self.epoll.add(stream.socket(), EpollEvent::new(stream.interest(), id))?;
        self.streams.insert(id, stream);
        Ok(())
    }

    /// Whether bytes of a stream wait for room in TCP.
    pub fn is_waiting(&self, stream: StreamId) -> bool {
        self.streams.get(&stream.0).is_some_and(Stream::is_waiting)
    }

    /// Gives bytes to TCP, behind those that wait. Returns how many TCP has taken, of all; the rest
    /// waits. A stream that broke takes none, and an event tells so.
    pub fn send(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        self.send_by(stream, |open| open.send(bytes))
    }

    /// As [`TcpLink::send`], with one system call that takes registered memory from where it is.
    pub fn send_burst(&mut self, stream: StreamId, burst: &Burst) -> usize {
        self.send_by(stream, |open| open.send_burst(burst))
    }

    fn send_by(&mut self, stream: StreamId, send: impl FnOnce(&mut Stream) -> usize) -> usize {
        let Some(open) = self.streams.get_mut(&stream.0) else { return 0 };
        let sent = send(open);
        self.counters.full += u64::from(open.is_waiting());
        self.watch(stream.0);
        sent
    }

    /// Whether bytes that arrive are handed over. A stream that does not read is watched for its
    /// end, and TCP holds the peer back.
    pub fn set_reading(&mut self, stream: StreamId, reads: bool) {
        if let Some(open) = self.streams.get_mut(&stream.0) {
            open.set_reading(reads);
            self.watch(stream.0);
        }
    }

    /// Ends a stream behind the bytes that wait. No event of it follows.
    pub fn finish(&mut self, now: Instant, stream: StreamId) {
        if self.streams.get_mut(&stream.0).is_none_or(Stream::finish) {
            self.remove(stream.0);
            return;
        }
        self.lingering.set(stream.0, now.plus_nanos(LINGER_NS));
        self.watch(stream.0);
        if self.lingering.count() > MAX_LINGERING
            && let Some(oldest) = self.lingering.pop(now.plus_nanos(LINGER_NS))
        {
            self.counters.lingered += 1;
            self.remove(oldest);
        }
    }

    /// Closes a stream at once. What waits is lost.
    pub fn close(&mut self, stream: StreamId) {
        self.remove(stream.0);
    }

    /// Breaks a stream: the peer finds it reset. What waits is lost.
    pub fn reset(&mut self, stream: StreamId) {
        if let Some(open) = self.streams.get(&stream.0) {
            // The stream is closed in any case; without this the peer may see an orderly end.
            let _ = open.socket().set_linger(Some(Duration::ZERO));
        }
        self.remove(stream.0);
    }

    /// Leaves what arrives to TCP for a while, or takes it again. Unlike [`TcpLink::set_reading`],
    /// a stream that pauses does not report its end before the bytes in front of it are taken.
    pub fn set_paused(&mut self, stream: StreamId, pauses: bool) {
        if let Some(open) = self.streams.get_mut(&stream.0) {
            open.is_paused = pauses;
            self.watch(stream.0);
        }
    }

    fn remove(&mut self, id: u64) {
        self.lingering.remove(id);
        self.again.remove(id);
        self.asking.remove(&id);
        self.close_socket(id);
    }

    fn close_socket(&mut self, id: u64) {
        if let Some(stream) = self.streams.remove(&id) {
            let _ = self.epoll.delete(stream.socket());
        }
    }

    /// Tells the epoll instance what to watch a stream for.
    fn watch(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let interest = stream.interest();
        if stream.watched != interest {
            let mut event = EpollEvent::new(interest, id);
            if self.epoll.modify(stream.socket(), &mut event).is_ok() {
                stream.watched = interest;
            }
        }
    }

    /// As [`TcpLink::receive`], for a caller that looks all the time. Bytes most often come from
    /// the stream that they came from last, so it looks there, which takes one system call, and
    /// only now and then at everything else.
    pub fn glance(
        &mut self,
        now: Instant,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) -> io::Result<usize> {
        let talking = self.talking.filter(|_| self.glances < MAX_GLANCES);
        let is_quiet = |id: &u64| self.streams.get(id).is_some_and(Stream::may_only_read);
        let Some(id) = talking.filter(is_quiet) else {
            return self.receive(now, sink);
        };
        self.has_more = false;
        let count = self.on_ready(now, id, EpollFlags::EPOLLIN, sink);
        self.glances += if count > 0 { 2 } else { 1 };
        Ok(count)
    }

    /// Whether the last call may have left something to the next.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Hands over what has happened, and returns the number of events. Call it until it is 0, or
    /// until there is [no more](TcpLink::has_more).
    pub fn receive(
        &mut self,
        now: Instant,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) -> io::Result<usize> {
        self.glances = 0;
        self.expire(now);
        let mut count = self.ask_again(now, sink);
        let mut events = [EpollEvent::empty(); MAX_READY];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            ready => ready?,
        };
        self.round = self.round.wrapping_add(1);
        self.has_more = ready == MAX_READY;
        for i in 0..ready {
            let event = events[(i + self.round) % ready];
            let (id, flags) = (event.data(), event.events());
            if self.listeners.contains_key(&id) {
                count += self.accept(now, id, sink);
            } else {
                count += self.on_ready(now, id, flags, sink);
            }
        }
        Ok(count)
    }

    /// Closes what the peers have not closed in time.
    fn expire(&mut self, now: Instant) {
        while let Some(id) = self.lingering.pop(now) {
            self.counters.lingered += 1;
            self.remove(id);
        }
    }

    /// Asks the peers that have refused, and may listen now.
    fn ask_again(&mut self, now: Instant, sink: &mut dyn FnMut(TcpEvent<'_>)) -> usize {
        let mut failed = 0;
        while let Some(id) = self.again.pop(now) {
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.rests = false;
                self.watch_listener(id);
            }
            let Some(how) = self.asking.get(&id).map(|asking| asking.how) else { continue };
            if let Err(error) = self.ask(id, &how) {
                self.fail(id, error, sink);
                failed += 1;
            }
        }
        failed
    }

    /// A stream cannot be opened.
    fn fail(&mut self, id: u64, error: io::Error, sink: &mut dyn FnMut(TcpEvent<'_>)) {
        self.counters.failed += 1;
        self.remove(id);
        sink(TcpEvent::Failed { stream: StreamId(id), error });
    }

    /// A socket of a stream is ready.
    fn on_ready(
        &mut self,
        now: Instant,
        id: u64,
        flags: EpollFlags,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) -> usize {
        let stream = StreamId(id);
        let Some(open) = self.streams.get_mut(&id) else { return 0 };
        if open.phase() == Phase::Connecting {
            return self.on_answered(now, id, sink);
        }
        let is_lingering = self.lingering.contains(id);
        let mut count = 0;
        if open.is_waiting() && flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR) {
            let bytes = open.flush();
            if !is_lingering && (bytes > 0 || !open.is_waiting()) {
                count += 1;
                sink(TcpEvent::Sent { stream, bytes });
            }
        }
        if !open.is_waiting() && is_lingering && open.shut_down() {
            self.remove(id);
            return count;
        }
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        let may_read = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLHUP
            | EpollFlags::EPOLLERR
            | EpollFlags::EPOLLRDHUP;
        let end = match flags.intersects(may_read) {
            true if open.asks_where && !is_lingering => self.land(id, &mut count, sink),
            true => open.receive(&mut self.scatter, &mut self.buffer),
            false => Ok(None),
        };
        match end {
            Ok(Some(0)) if is_lingering => self.remove(id),
            Ok(Some(0)) => {
                count += 1;
                self.end(id, None, sink);
            }
            Ok(Some(_)) if is_lingering => {}
            Ok(Some(len)) => {
                count += 1;
                self.talking = Some(id);
                self.has_more |= len == BUFFER;
                sink(TcpEvent::Data { stream, bytes: &self.buffer[..len] });
            }
            Ok(None) => {}
            Err(_) if is_lingering => self.remove(id),
            Err(error) => {
                count += 1;
                self.counters.reset += 1;
                self.end(id, Some(error), sink);
            }
        }
        self.watch(id);
        count
    }

    /// Nothing arrives on a stream any more.
    fn end(&mut self, id: u64, error: Option<io::Error>, sink: &mut dyn FnMut(TcpEvent<'_>)) {
        if let Some(open) = self.streams.get_mut(&id) {
            if error.is_some() {
                open.forget();
            }
            open.end();
        }
        sink(TcpEvent::Ended { stream: StreamId(id), error });
    }

    /// The peer of a stream that is being opened has answered.
    fn on_answered(&mut self, now: Instant, id: u64, sink: &mut dyn FnMut(TcpEvent<'_>)) -> usize {
        let stream = StreamId(id);
        let Some(open) = self.streams.get_mut(&id) else { return 0 };
        match open.connected() {
            Ok(Some(local)) => {
                let mss = mss_of(open.socket());
                self.counters.connected += 1;
                self.asking.remove(&id);
                self.watch(id);
                sink(TcpEvent::Connected { stream, local, mss });
            }
            Ok(None) => return 0,
            Err(error) => {
                let is_refused = error.kind() == ErrorKind::ConnectionRefused;
                match self.asking.get(&id).filter(|at| is_refused && now < at.until) {
                    Some(asking) => {
                        let at = now.plus_nanos(ASK_AGAIN_NS).min(asking.until);
                        self.again.set(id, at);
                        self.counters.refused += 1;
                        self.close_socket(id);
                    }
                    None => self.fail(id, error, sink),
                }
            }
        }
        1
    }
}
