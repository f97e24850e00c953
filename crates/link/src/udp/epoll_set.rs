//! The epoll instance of the link, and the order in which a polling thread asks the sockets.
//!
//! A polling thread expects the next packet where the last one arrived. It therefore asks that
//! socket directly, which saves the `epoll_wait` call, and asks the epoll instance for all sockets
//! after [`MAX_STREAK`] calls, or when a thread is about to sleep. The epoll instance watches every
//! receiving socket all the time, and a sending socket while the link waits for room in it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use feroce_wire::Gid;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::TxSocket;

/// Calls in a row that ask only the last socket. With four sockets, a packet to another one waits
/// for at most 16 polls (about 5 us), and the cost of `epoll_wait` is spread over as many.
const MAX_STREAK: u32 = 16;

/// Sockets that one `epoll_wait` call reports. More wait for the next call. Most devices have one
/// or two addresses and few groups.
pub(super) const MAX_READY: usize = 8;

/// A receiving socket and the address that it is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) fd: RawFd,
    pub(super) dst: Gid,
}

/// The sockets of a link, as its polling thread and its sleeping thread see them.
#[derive(Debug)]
pub(super) struct EpollSet {
    epoll: Epoll,
    /// The socket that had a packet last.
    last: Option<Source>,
    /// Calls since the epoll instance was asked.
    streak: u32,
    /// The socket that begins when several are ready, so that the budget of a call serves each.
    turn: usize,
}

impl EpollSet {
    pub(super) fn new() -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, last: None, streak: 0, turn: 0 })
    }

    /// Readable when a watched socket is ready.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Watches a receiving socket.
    pub(super) fn add(&self, socket: &Socket) -> nix::Result<()> {
        let data = socket.as_raw_fd() as u64;
        self.epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, data))
    }

    /// Reports a sending socket once it has room.
    pub(super) fn add_full(&self, flow: &mut TxSocket) -> nix::Result<()> {
        if flow.waits {
            return Ok(());
        }
        let flags = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(flags, flow.socket.as_raw_fd() as u64);
        if flow.watched {
            self.epoll.modify(&flow.socket, &mut event)?;
        } else {
            self.epoll.add(&flow.socket, event)?;
        }
        (flow.watched, flow.waits) = (true, true);
        Ok(())
    }

    /// Stops watching sockets that are about to be closed. Closing is not enough while a forked
    /// process has them open.
    pub(super) fn remove<'a>(&mut self, sockets: impl IntoIterator<Item = &'a Socket>) {
        self.last = None;
        for socket in sockets {
            let _ = self.epoll.delete(socket);
        }
    }

    /// The socket to ask without `epoll_wait`, if that is enough this time.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Source> {
        self.streak += 1;
        self.last.filter(|_| self.streak <= MAX_STREAK)
    }

    /// The next call asks all sockets.
    pub(super) fn end_streak(&mut self) {
        self.streak = MAX_STREAK;
    }

    /// A socket had a packet.
    pub(super) fn hit(&mut self, source: Source) {
        self.last = Some(source);
    }

    /// The descriptors that are ready, in `events`, and the index of the one to begin with.
    pub(super) fn ready(
        &mut self,
        events: &mut [EpollEvent; MAX_READY],
    ) -> nix::Result<(usize, usize)> {
        self.streak = 0;
        let ready = match self.epoll.wait(events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            ready => ready?,
        };
        self.turn = self.turn.wrapping_add(1);
        Ok((ready, self.turn))
    }
}
