//! The sockets of a device.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockType, UnixAddr, accept4, bind, getsockopt, listen, socket, sockopt,
};
use nix::unistd::geteuid;

use super::PREFIX;
use super::files::{FLAGS, MOST_AT_ONCE, replace_by_pipe, send_file};
use super::requests::{Mailbox, Request};
use crate::sys;

/// The sockets of a device.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    requests: Mailbox,
}

impl Listener {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None)?;
        let name = format!("{:016x}", sys::random_u64()?);
        // Before the other one: a process that has found that one can send requests.
        let requests = Mailbox::new(&name)?;
        let name = format!("{PREFIX}{name}");
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&fd, Backlog::new(MOST_AT_ONCE as i32)?)?;
        Ok(Self { fd, requests })
    }

    /// Lets go of the sockets, which a forked child shares with its parent.
    pub(crate) fn abandon(&self) {
        replace_by_pipe(&self.fd);
        self.requests.abandon();
    }

    /// The descriptors that are readable when there is something to answer.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.fd.as_fd(), self.requests.as_fd()]
    }

    /// Answers the requests of processes of this user, without waiting for any.
    pub(crate) fn answer_requests(&self, answer: impl FnMut(Request) -> String) {
        self.requests.answer(answer);
    }

    /// Answers the processes of this user that look, without waiting for any. `describe` is called
    /// if there are any.
    pub(crate) fn answer(&self, mut describe: impl FnMut() -> String) {
        let mut text = None;
        for _ in 0..MOST_AT_ONCE {
            let Ok(fd) = accept4(self.fd.as_raw_fd(), FLAGS) else { return };
            // SAFETY: accept4(2) has just returned the descriptor, which has no other owner.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            let peer = getsockopt(&socket, sockopt::PeerCredentials);
            if peer.is_ok_and(|peer| peer.uid() == geteuid().as_raw()) {
                let text = text.get_or_insert_with(&mut describe);
                // Where it fails, the process that looks sees the end of the connection.
                let _ = send_file(&socket, text);
            }
        }
    }
}
