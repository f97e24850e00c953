//! Connections to the processes of other parts of the fabric: what waits to be sent, and what has
//! arrived.
//!
//! Management datagrams go before packets. Packets need no bound here, because the credits of the
//! links between the parts are one; datagrams have one.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::Sender;

use feroce_subnet::TrunkMessage;
use feroce_train::Instant;
use nix::sys::socket::{setsockopt, sockopt};

/// Bytes of datagrams that wait, at most: what is beyond is dropped, and asked for again.
const MAX_URGENT: usize = 1 << 20;
/// Bytes of packets that are written at a time, so that datagrams do not wait for many.
const TURN: usize = 64 << 10;
/// Bytes that the kernel keeps for a connection, for the same reason.
const KERNEL: usize = 256 << 10;
/// Bytes that one turn of the fabric reads.
const MAX_READ: usize = 256 << 10;
/// After how long without anything to say an end says that it is there.
const ALIVE_NS: u64 = 1_000_000_000;
/// After how long without a word the other end is taken for gone.
const SILENCE_NS: u64 = 10_000_000_000;

/// A connection to another part.
#[derive(Debug)]
pub(super) struct Trunk {
    stream: TcpStream,
    pub(super) at: SocketAddr,
    /// Waits for the thread that has connected.
    _over: Option<Sender<()>>,
    /// What has arrived and was not read yet.
    pub(super) arrived: Vec<u8>,
    /// What is being written, from where.
    writing: (Vec<u8>, usize),
    urgent: Vec<u8>,
    packets: VecDeque<Vec<u8>>,
    heard_at: Instant,
    said_at: Instant,
    /// The socket has no room, and is waited for.
    pub(super) is_full: bool,
}

impl Trunk {
    pub(super) fn new(
        now: Instant,
        stream: TcpStream,
        at: SocketAddr,
        over: Option<Sender<()>>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        setsockopt(&stream, sockopt::SndBuf, &KERNEL)?;
        Ok(Self {
            stream,
            at,
            _over: over,
            arrived: Vec::new(),
            writing: (Vec::new(), 0),
            urgent: Vec::new(),
            packets: VecDeque::new(),
            heard_at: now,
            said_at: now,
            is_full: false,
        })
    }

    /// Has a message sent before packets. Returns whether there was room.
    pub(super) fn say(&mut self, message: &TrunkMessage<'_>) -> bool {
        let has_room = self.urgent.len() < MAX_URGENT;
        if has_room {
            message.emit(&mut self.urgent);
        }
        has_room
    }

    /// Has a frame sent after others of its kind.
    pub(super) fn follow(&mut self, frame: Vec<u8>) {
        self.packets.push_back(frame);
    }

    /// Reads what has arrived, as far as one turn goes.
    pub(super) fn fill(&mut self, now: Instant, buffer: &mut [u8]) -> io::Result<()> {
        let before = self.arrived.len();
        while self.arrived.len() - before < MAX_READ {
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.arrived.extend_from_slice(buffer.get(..len).unwrap_or_default());
                    self.heard_at = now;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes what waits, as far as there is room. Returns whether all is written.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<bool> {
        loop {
            let (bytes, from) = &mut self.writing;
            while let Some(rest) = bytes.get(*from..).filter(|rest| !rest.is_empty()) {
                match self.stream.write(rest) {
                    Ok(len) => {
                        *from += len;
                        self.said_at = now;
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            bytes.clear();
            *from = 0;
            bytes.append(&mut self.urgent);
            while bytes.len() < TURN
                && let Some(frame) = self.packets.pop_front()
            {
                bytes.extend(frame);
            }
            if bytes.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Says that this end is there, if it has said nothing for a while. Fails if the other end has
    /// been silent for long.
    pub(super) fn keep(&mut self, now: Instant) -> io::Result<()> {
        if now.nanos_since(self.heard_at) > SILENCE_NS {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end says nothing"));
        }
        if now.nanos_since(self.said_at) > ALIVE_NS && self.writing.0.is_empty() {
            self.said_at = now;
            self.say(&TrunkMessage::Alive);
        }
        Ok(())
    }
}

impl AsFd for Trunk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
