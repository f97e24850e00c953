//! Which descriptor is which socket.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::bell::{Bell, Waitable, Watch};
use super::datagram::Datagram;
use super::settings::Settings;
use super::stream::Stream;
use crate::errno::Errno;

/// A socket of either kind.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

impl Socket {
    /// What `poll` says of it.
    pub(crate) fn events(&self, wanted: libc::c_short) -> libc::c_short {
        match self {
            Self::Stream(stream) => stream.events(wanted),
            Self::Datagram(datagram) => datagram.events(wanted),
        }
    }

    /// Looks at its settings, or changes them.
    pub(crate) fn settings<R>(&self, f: impl FnOnce(&mut Settings) -> R) -> R {
        match self {
            Self::Stream(stream) => f(&mut stream.lock().settings),
            Self::Datagram(datagram) => f(&mut datagram.lock().settings),
        }
    }
}

impl Waitable for Socket {
    fn watch(&self, bell: &Arc<Bell>) -> Watch {
        match self {
            Self::Stream(stream) => stream.watch(bell),
            Self::Datagram(datagram) => datagram.watch(bell),
        }
    }

    fn unwatch(&self, bell: &Arc<Bell>) {
        match self {
            Self::Stream(stream) => stream.unwatch(bell),
            Self::Datagram(datagram) => datagram.unwatch(bell),
        }
    }

    fn probe(&self) {
        match self {
            Self::Stream(stream) => stream.probe(),
            Self::Datagram(datagram) => datagram.probe(),
        }
    }
}

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// Gives a socket to the program; says under which number.
pub(crate) fn insert(socket: Socket) -> Result<c_int, Errno> {
    let fd = match &socket {
        Socket::Stream(stream) => stream.number()?,
        Socket::Datagram(datagram) => datagram.number(),
    };
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, socket);
    Ok(fd)
}

/// Takes a socket from the program. Its descriptor stays taken as long as somebody uses it.
pub(crate) fn remove(fd: c_int) -> Result<Socket, Errno> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.remove(&fd).ok_or(Errno(libc::EBADF))
}

/// A socket of the program.
pub(crate) fn find(fd: c_int) -> Option<Socket> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// A socket of the program, or the error that there is none.
pub(crate) fn get(fd: c_int) -> Result<Socket, Errno> {
    find(fd).ok_or(Errno(libc::EBADF))
}

/// A stream of the program; with datagrams the call makes no sense.
pub(crate) fn stream(fd: c_int) -> Result<Arc<Stream>, Errno> {
    match get(fd)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno::UNSUPPORTED),
    }
}
