//! One TCP connection: its socket and the bytes that wait for it.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd as _;

use feroce_train::{Burst, Scatter};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use socket2::Socket;

use crate::sys;

/// Room for waiting bytes that a stream keeps when none wait any more.
const KEPT: usize = 16 << 10;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The peer has not answered yet.
    Connecting,
    /// Both directions work, as far as is known.
    Open,
    /// The peer has closed its direction, or the connection broke.
    Ended,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    phase: Phase,
    /// Bytes that TCP had no room for, from `sent` on.
    waiting: Vec<u8>,
    sent: usize,
    reads: bool,
    /// What arrives waits in TCP.
    pub(super) is_paused: bool,
    /// The caller is asked where the next bytes go.
    pub(super) asks_where: bool,
    /// This end has sent everything and said so.
    is_shut: bool,
    /// What the epoll instance watches it for.
    pub(super) watched: EpollFlags,
}

impl Stream {
    pub(super) fn new(socket: Socket, phase: Phase) -> Self {
        let mut stream = Self {
            socket,
            phase,
            waiting: Vec::new(),
            sent: 0,
            reads: true,
            is_paused: false,
            asks_where: false,
            is_shut: false,
            watched: EpollFlags::empty(),
        };
        stream.watched = stream.interest();
        stream
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// What to watch the socket for. Errors are always reported.
    pub(super) fn interest(&self) -> EpollFlags {
        let mut flags = EpollFlags::empty();
        match self.phase {
            Phase::Connecting => return EpollFlags::EPOLLOUT,
            // The kernel reports a connection that broke all the same; what is left of it is read.
            Phase::Open if self.is_paused => {}
            Phase::Open if self.reads => flags |= EpollFlags::EPOLLIN,
            Phase::Open => flags |= EpollFlags::EPOLLRDHUP,
            Phase::Ended => {}
        }
        if self.is_waiting() {
            flags |= EpollFlags::EPOLLOUT;
        }
        flags
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.sent < self.waiting.len()
    }

    /// Whether bytes that arrive are all that is awaited.
    pub(super) fn may_only_read(&self) -> bool {
        self.phase == Phase::Open && self.reads && !self.is_paused && !self.is_waiting()
    }

    pub(super) fn set_reading(&mut self, reads: bool) {
        self.reads = reads;
    }

    /// Nothing arrives any more.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
    }

    /// The address of this end if the connection is made; `None` if that is not known yet.
    pub(super) fn connected(&mut self) -> io::Result<Option<SocketAddr>> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(None),
            Err(e) => return Err(e),
        }
        self.phase = Phase::Open;
        let local = self.socket.local_addr()?.as_socket();
        local.map(Some).ok_or_else(|| ErrorKind::AddrNotAvailable.into())
    }

    /// Gives bytes to TCP. A connection that broke is an error, and no signal for the program.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        sys::send(self.socket.as_raw_fd(), bytes)
    }

    /// Sends bytes behind those that wait. Returns how many of all TCP has taken.
    pub(super) fn send(&mut self, bytes: &[u8]) -> usize {
        if self.phase == Phase::Connecting || self.is_waiting() {
            self.waiting.extend_from_slice(bytes);
            return 0;
        }
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.write(rest) {
                Ok(n) => sent += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    self.waiting.clear();
                    self.waiting.extend_from_slice(rest);
                    self.sent = 0;
                    break;
                }
                // Reading reports that the connection broke.
                Err(_) => break,
            }
        }
        sent
    }

    /// Sends a burst behind the bytes that wait, memory from where it is. Returns how many of all
    /// TCP has taken. What it has no room for is copied: nothing waits with a right to memory.
    pub(super) fn send_burst(&mut self, burst: &Burst) -> usize {
        if let Some(bytes) = burst.as_bytes() {
            return self.send(bytes);
        }
        if self.phase == Phase::Connecting || self.is_waiting() {
            return self.send(&burst.copied(0));
        }
        let mut sent = 0;
        while sent < burst.len() {
            match sys::send_burst(self.socket.as_raw_fd(), burst, sent) {
                Ok(n) => sent += n,
                Err(Errno::EINTR) => {}
                // No room, or memory that the process has unmapped, which shows when it is copied.
                Err(Errno::EAGAIN | Errno::EFAULT) => return sent + self.send(&burst.copied(sent)),
                // Reading reports that the connection broke.
                Err(_) => break,
            }
        }
        sent
    }

    /// Sends what waits, and returns how much of it TCP has taken. If the connection broke, the
    /// rest is discarded.
    pub(super) fn flush(&mut self) -> usize {
        let before = self.sent;
        while self.is_waiting() {
            match self.write(self.waiting.get(self.sent..).unwrap_or_default()) {
                Ok(n) => self.sent += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    let sent = self.sent - before;
                    self.forget();
                    return sent;
                }
            }
        }
        let sent = self.sent - before;
        if !self.is_waiting() {
            self.forget();
        }
        sent
    }

    /// Discards what waits.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.waiting.shrink_to(KEPT);
        self.sent = 0;
    }

    /// Takes bytes that have arrived, the first of them to the memory in `scatter`, if there is
    /// some; none: the peer has closed its direction. A stream that does not read only learns
    /// whether it broke: the peer may have sent bytes before it closed, and they are handed over
    /// first.
    pub(super) fn receive(
        &mut self,
        scatter: &mut Scatter,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.phase != Phase::Open {
            return Ok(None);
        }
        if !self.reads {
            return match self.socket.take_error()? {
                Some(error) => Err(error),
                None => Ok(Some(0)),
            };
        }
        let fd = self.socket.as_raw_fd();
        let received = match scatter.is_empty() {
            true => sys::receive(fd, buffer),
            false => sys::receive_scattered(fd, scatter, buffer),
        };
        match received {
            Err(Errno::EFAULT) if !scatter.is_empty() => {
                // The process has unmapped memory, which shows when bytes are copied there.
                scatter.clear();
                self.receive(scatter, buffer)
            }
            Ok(len) => Ok(Some(len)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// No event of the stream is wanted any more. True: it can be closed.
    pub(super) fn finish(&mut self) -> bool {
        (self.reads, self.is_paused) = (true, false);
        match self.phase {
            Phase::Connecting => true,
            Phase::Open | Phase::Ended if self.is_waiting() => false,
            Phase::Open | Phase::Ended => self.shut_down(),
        }
    }

    /// Everything was sent: says so to the peer. True: the peer has closed its direction, too.
    pub(super) fn shut_down(&mut self) -> bool {
        if !self.is_shut {
            self.is_shut = true;
            if self.socket.shutdown(Shutdown::Write).is_err() {
                return true;
            }
        }
        self.phase == Phase::Ended
    }
}
