//! Which descriptor is which socket.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::stream::Stream;
use crate::verbs::fault::Fault;

/// A socket.
pub(crate) type Socket = Arc<Stream>;

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// Gives a socket to the program; says under which number.
pub(crate) fn insert(socket: Socket) -> Result<c_int, Fault> {
    let fd = socket.number()?;
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, socket);
    Ok(fd)
}

/// Takes a socket from the program. Its descriptor stays taken as long as somebody uses it.
pub(crate) fn remove(fd: c_int) -> Result<Socket, Fault> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.remove(&fd).ok_or(Fault(libc::EBADF))
}

/// A socket of the program.
pub(crate) fn find(fd: c_int) -> Option<Socket> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// A socket of the program, or the error that there is none.
pub(crate) fn get(fd: c_int) -> Result<Socket, Fault> {
    find(fd).ok_or(Fault(libc::EBADF))
}
