//! A program at its host: how it asks the fabric.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use feroce_wire::Gid;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::adapter::Adapter;
use crate::message::{Answer, Attached, Registration, Request};

/// How long a program waits for an answer: a fabric that takes as long is of no use.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of an answer at most: the description of an adapter with many ports.
const MAX_ANSWER: usize = 128 << 10;

/// A host of a fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Where the fabric listens.
    pub socket: PathBuf,
    /// The name of the host.
    pub name: String,
}

impl Host {
    /// What its adapter is like now.
    pub fn describe(&self) -> io::Result<Adapter> {
        match self.ask(&Request::Describe { host: self.name.clone() })?.1 {
            Answer::Adapter(adapter) => Ok(adapter),
            other => Err(refusal(&other)),
        }
    }

    /// Opens a port. The connection carries datagrams, and its number names it in requests.
    pub fn open(&self, port: u8) -> io::Result<(OwnedFd, u32)> {
        let (socket, answer) = self.ask(&Request::Open { host: self.name.clone(), port })?;
        match answer {
            Answer::Done(file) => {
                socket.set_read_timeout(None)?;
                Ok((socket.into(), file))
            }
            other => Err(refusal(&other)),
        }
    }

    /// Registers an agent of an open port, and returns its number.
    pub fn register(&self, file: u32, registration: Registration) -> io::Result<u32> {
        self.number(&Request::Register { file, registration })
    }

    /// Gives an agent up.
    pub fn unregister(&self, file: u32, agent: u32) -> io::Result<()> {
        self.number(&Request::Unregister { file, agent }).map(drop)
    }

    /// Attaches this process to a port. The connection carries packets.
    pub fn attach(&self, port: u8) -> io::Result<(OwnedFd, Attached)> {
        let (socket, answer) = self.ask(&Request::Attach { host: self.name.clone(), port })?;
        match answer {
            Answer::Attached(attached) => {
                socket.set_read_timeout(None)?;
                Ok((socket.into(), attached))
            }
            other => Err(refusal(&other)),
        }
    }

    /// What its adapter is like now, and how to learn of changes.
    pub fn watch(&self) -> io::Result<(Watch, Adapter)> {
        let (socket, answer) = self.ask(&Request::Watch { host: self.name.clone() })?;
        match answer {
            Answer::Adapter(adapter) => {
                socket.set_nonblocking(true)?;
                Ok((Watch(socket), adapter))
            }
            other => Err(refusal(&other)),
        }
    }

    /// Has the fabric pass the requests for a service at a port to the process `slot`. It is an
    /// error of kind [`io::ErrorKind::AddrInUse`] if another process has it.
    pub fn claim(&self, port: u8, slot: u8, service: u64) -> io::Result<Claim> {
        self.hold(&Request::Claim { host: self.name.clone(), port, slot, service })
    }

    /// Notes that this process takes part in a multicast group at a port. The port leaves the group
    /// when no process takes part in it any more.
    pub fn join(&self, port: u8, group: Gid, join_state: u8) -> io::Result<Claim> {
        self.hold(&Request::Join { host: self.name.clone(), port, group, join_state })
    }

    fn hold(&self, request: &Request) -> io::Result<Claim> {
        match self.ask(request)? {
            (socket, Answer::Done(_)) => Ok(Claim { _socket: socket }),
            (_, other) => Err(refusal(&other)),
        }
    }

    /// The GID of the port that has an IP address.
    pub fn resolve(&self, address: IpAddr) -> io::Result<Gid> {
        match self.ask(&Request::Resolve { address })?.1 {
            Answer::Port(gid) => Ok(gid),
            other => Err(refusal(&other)),
        }
    }

    fn number(&self, request: &Request) -> io::Result<u32> {
        match self.ask(request)?.1 {
            Answer::Done(number) => Ok(number),
            other => Err(refusal(&other)),
        }
    }

    fn ask(&self, request: &Request) -> io::Result<(Socket, Answer)> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.connect(&SockAddr::unix(&self.socket)?)?;
        socket.set_read_timeout(Some(ANSWER))?;
        socket.send(&request.emit())?;
        let mut bytes = vec![0; MAX_ANSWER];
        let len = io::Read::read(&mut &socket, &mut bytes)?;
        let answer = Answer::parse(bytes.get(..len).unwrap_or_default());
        let version =
            || io::Error::new(io::ErrorKind::InvalidData, "the fabric has another version");
        Ok((socket, answer.ok_or_else(version)?))
    }
}

/// Something that the fabric does for this process, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _socket: Socket,
}

/// Hears of changes of an adapter.
#[derive(Debug)]
pub struct Watch(Socket);

impl Watch {
    /// What the adapter is like since the last change that was not taken yet, if there is one. The
    /// call does not block. It is an error of kind [`io::ErrorKind::ConnectionReset`] if the fabric
    /// has ended.
    pub fn take(&self) -> io::Result<Option<Adapter>> {
        let mut last = None;
        let mut bytes = vec![0; MAX_ANSWER];
        loop {
            match io::Read::read(&mut &self.0, &mut bytes) {
                Ok(0) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(len) => match Answer::parse(bytes.get(..len).unwrap_or_default()) {
                    Some(Answer::Adapter(adapter)) => last = Some(adapter),
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(last),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn refusal(answer: &Answer) -> io::Error {
    match answer {
        Answer::Refused(errno) => io::Error::from_raw_os_error(errno.cast_signed()),
        _ => io::ErrorKind::InvalidData.into(),
    }
}
