//! Sockets between programs and the process of a fabric: they keep messages apart, and the kernel
//! tells each end of the end of the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::sys;

/// How long a program waits for the answer to its request: a fabric that is behind its time by as
/// much is of no use.
const ANSWER: Duration = Duration::from_secs(5);

/// Connections that may wait to be accepted: more than the ranks of a job that start at once.
const BACKLOG: i32 = 1024;

/// A connection that never blocks.
#[derive(Debug)]
pub struct PortSocket(Socket);

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The other end will get it.
    Done,
    /// There is no room for it.
    Full,
    /// The other end is gone.
    Gone,
}

/// What there is to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    Gone,
}

impl PortSocket {
    /// Sends a request to the process that listens at `path`, and returns its answer.
    pub(super) fn ask(path: &Path, request: &[u8]) -> io::Result<(Self, Vec<u8>)> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.send(request)?;
        let mut answer = vec![0; 512];
        let len = io::Read::read(&mut &socket, &mut answer)?;
        answer.truncate(len);
        socket.set_read_timeout(None)?;
        socket.set_nonblocking(true)?;
        Ok((Self(socket), answer))
    }

    /// Connects to the process that listens at `path`, which may be an abstract name, if that is
    /// possible at once.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(Self(socket))
    }

    /// The user of the process at the other end, as the kernel says.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.0, sockopt::PeerCredentials)?.uid())
    }

    /// Asks for room for so many bytes that the other end has not received yet. The kernel may
    /// grant less, except to privileged processes.
    pub fn set_room(&self, bytes: usize) {
        if setsockopt(&self.0, sockopt::SndBufForce, &bytes).is_err() {
            let _ = self.0.set_send_buffer_size(bytes);
        }
    }

    /// Waits for a message, for five seconds at most.
    pub fn await_answer(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.set_nonblocking(false)?;
        self.0.set_read_timeout(Some(ANSWER))?;
        let len = io::Read::read(&mut &self.0, buffer);
        self.0.set_nonblocking(true)?;
        match len? {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            len => Ok(len),
        }
    }

    /// A connection that exists already.
    pub fn of(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends a message.
    pub fn send(&self, message: &[u8]) -> Sent {
        match sys::send(self.0.as_raw_fd(), message) {
            Ok(_) => Sent::Done,
            // The kernel may lack memory for a moment.
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => Sent::Full,
            Err(_) => Sent::Gone,
        }
    }

    /// Receives a message into `buffer`, which should have [`MAX_MESSAGE`](super::MAX_MESSAGE)
    /// bytes.
    pub fn receive(&self, buffer: &mut [u8]) -> Received {
        match sys::receive(self.0.as_raw_fd(), buffer) {
            Ok(0) => Received::Gone,
            Ok(len) => Received::Message(len),
            Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
            Err(_) => Received::Gone,
        }
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where programs connect.
#[derive(Debug)]
pub struct PortListener(Socket);

impl PortListener {
    /// Listens at a path at which there is no file yet, or at an abstract name that is free.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        Ok(Self(socket))
    }

    /// The next connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<PortSocket>> {
        match self.0.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(true)?;
                Ok(Some(PortSocket(socket)))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for PortListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
