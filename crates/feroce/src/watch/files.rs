//! Answers: text in unnamed files, which sockets pass on.

use std::fs::File;
use std::io::{self, IoSlice, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use feroce_local::Ancillary;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, SockFlag, UnixAddr, sendmsg};

/// Most processes that look at the same time. Those beyond wait in the kernel.
pub(super) const MOST_AT_ONCE: usize = 16;

pub(super) const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

/// Closes a socket that a forked child shares with its parent. The number of the descriptor stays
/// taken, by a pipe's end that is never readable.
pub(super) fn replace_by_pipe(fd: &OwnedFd) {
    if let Ok((never, _)) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC) {
        // SAFETY: both descriptors are open, and this process has no other thread that could use
        // `fd`. dup3(2) closes what it replaces, and the owner of `fd` owns the result.
        unsafe { libc::dup3(never.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

/// Sends a text as an unnamed file: unlike a socket, it has room for any text at once.
pub(super) fn send_file(socket: &OwnedFd, text: &str) -> io::Result<()> {
    let mut file = File::from(memfd_create("feroce-watch", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    let (data, fds) = ([IoSlice::new(b"f")], [file.as_raw_fd()]);
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &data, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives such a file. An error of kind [`io::ErrorKind::UnexpectedEof`] says that the other end
/// has closed the connection.
pub(super) fn receive_file(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let message = Ancillary::receive(socket.as_fd(), &mut byte, MsgFlags::empty());
    let message = message.map_err(|e| match e {
        nix::errno::Errno::ECONNRESET => io::ErrorKind::UnexpectedEof.into(),
        e => io::Error::from(e),
    })?;
    message.files.into_iter().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
