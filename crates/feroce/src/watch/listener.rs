//! The sockets of a device.

use std::io;
use std::iter;
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
    pub(crate) fn answer(&self, describe: impl FnOnce() -> String) {
        // A process that connects after `describe` was called looks into what is true by then, so
        // the next call answers it.
        let looking: Vec<_> =
            iter::from_fn(|| self.accept()).take(MOST_AT_ONCE).flatten().collect();
        if looking.is_empty() {
            return;
        }
        let text = describe();
        for socket in looking {
            // Where it fails, the process that looks sees the end of the connection.
            let _ = send_file(&socket, &text);
        }
    }

    /// The next connection that waits; `Some(None)` if its process is of another user.
    fn accept(&self) -> Option<Option<OwnedFd>> {
        let fd = accept4(self.fd.as_raw_fd(), FLAGS).ok()?;
        // SAFETY: accept4(2) has just returned the descriptor, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let peer = getsockopt(&socket, sockopt::PeerCredentials);
        let is_ours = peer.is_ok_and(|peer| peer.uid() == geteuid().as_raw());
        Some(is_ours.then_some(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{PATIENCE, answer, ask};
    use nix::sys::socket::getsockname;
    use std::time::Instant;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the answer of a process has a time limit")]
    fn a_process_that_looks_later_is_not_told_what_was_true_before() {
        let listener = Listener::new().unwrap();
        let name = getsockname::<UnixAddr>(listener.fd.as_raw_fd()).unwrap();
        let name = str::from_utf8(name.as_abstract().unwrap()).unwrap();
        let look = || ask(name).unwrap().1;
        let until = Instant::now() + PATIENCE;
        let read = |socket| answer(&socket, until).unwrap();
        let first = look();
        let mut second = None;
        listener.answer(|| {
            second = Some(look());
            "before".to_owned()
        });
        listener.answer(|| "after".to_owned());
        assert_eq!((read(first).as_str(), read(second.unwrap()).as_str()), ("before", "after"));
    }
}
