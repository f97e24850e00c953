//! Which receiving sockets the epoll instance watches.
//!
//! For every packet that comes to a watched socket, the kernel tells the epoll instance, and those
//! that this one is part of. Between two ends of one machine that is a tenth of what a short packet
//! costs. While somebody polls, nobody needs it: after a while the hot socket is set aside, and
//! watched again when somebody is about to sleep. Somebody may sleep already, and would not be
//! woken any more by what comes; so whoever sleeps is woken when a socket is set aside, and must
//! say again that it is about to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use feroce_train::{Framing, RxMeta};
use feroce_wire::Gid;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::Socket;

use super::UdpLink;

/// How often the hot socket is asked, with nobody about to sleep, before it is set aside. Whoever
/// polls briefly and sleeps then should not pay for both.
const SET_ASIDE_AFTER: u32 = 256;

/// A socket that receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) fd: RawFd,
    /// What is known of all that comes: the address that it stands for, and where it comes from
    /// if the socket is connected.
    pub(super) meta: RxMeta,
    pub(super) is_connected: bool,
}

impl Source {
    /// One that anybody may send to.
    pub(super) fn open(fd: RawFd, dst: Gid) -> Self {
        let meta = RxMeta { dst, framing: Framing::RoceV2, ..RxMeta::default() };
        Self { fd, meta, is_connected: false }
    }
}

/// The socket that packets came from last: asked first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hot {
    pub(super) source: Source,
    /// There is no other.
    pub(super) is_only: bool,
}

/// What is not watched, and why.
#[derive(Debug)]
pub(super) struct Watch {
    /// The socket that is set aside: whoever asks the epoll instance must ask this one as well.
    pub(super) aside: Option<RawFd>,
    /// How often the hot socket was asked since somebody was about to sleep.
    asked: u32,
    /// Readable, for those who sleep, while a socket is set aside.
    alarm: EventFd,
}

impl Watch {
    /// Everything is watched. `epoll` is what those who sleep sleep on.
    pub(super) fn new(epoll: &Epoll) -> io::Result<Self> {
        let alarm = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        watch(epoll, &alarm)?;
        Ok(Self { aside: None, asked: 0, alarm })
    }
}

impl UdpLink {
    /// Makes a receiving socket the hot one.
    pub(super) fn heat(&mut self, fd: RawFd) {
        if self.hot.is_none_or(|hot| hot.source.fd != fd) {
            self.watch_all();
            self.merge();
            let is_only = self.receivers() == 1;
            let gate = self.gates.gate.as_ref().map(|gate| gate.source);
            let gate = gate.filter(|gate| gate.fd == fd);
            let open = || Some(Source::open(fd, self.receiving(fd)?.1));
            let source = gate.or_else(open);
            self.hot = source.map(|source| Hot { source, is_only });
        }
    }

    /// There are other receiving sockets now, or will be: none of them is hot.
    pub(super) fn cool(&mut self) {
        self.watch_all();
        self.merge();
        self.end_gate();
        self.hot = None;
    }

    /// Watches every receiving socket again. False: one could not be.
    pub(super) fn watch_all(&mut self) -> bool {
        self.watch.asked = 0;
        let Some(aside) = self.watch.aside else { return true };
        if let Some((socket, _)) = self.receiving(aside)
            && let Err(e) = self.watch(socket)
            // Another socket may have got the number of one that was closed.
            && e != Errno::EEXIST
        {
            tracing::debug!("cannot watch a socket: {e}");
            return false;
        }
        self.watch.aside = None;
        let _ = self.watch.alarm.read();
        true
    }

    /// The hot socket is about to be asked.
    #[inline]
    pub(super) fn count_look(&mut self) {
        self.watch.asked = self.watch.asked.saturating_add(1);
        if self.watch.asked == SET_ASIDE_AFTER {
            self.set_aside();
        }
    }

    #[cold]
    fn set_aside(&mut self) {
        let Some((socket, _)) = self.hot.and_then(|hot| self.receiving(hot.source.fd)) else {
            return;
        };
        if self.watch.aside.is_none() && self.epoll.delete(socket).is_ok() {
            self.watch.aside = Some(socket.as_raw_fd());
            // It is written to once before it is read.
            let _ = self.watch.alarm.write(1);
        }
    }

    /// Begins to watch a receiving socket.
    pub(super) fn watch(&self, socket: &Socket) -> nix::Result<()> {
        watch(&self.epoll, socket)
    }

    /// A receiving socket, and the address that it stands for.
    pub(super) fn receiving(&self, fd: RawFd) -> Option<(&Socket, Gid)> {
        let ports = self.ports.iter().filter_map(|p| Some((p.rx.as_ref()?, p.addr)));
        let gate = self.gates.gate.iter().map(|g| (&g.socket, g.source.meta.dst));
        let mut all = ports.chain(self.groups.iter().map(|g| (&g.rx, g.gid))).chain(gate);
        all.find(|(socket, _)| socket.as_raw_fd() == fd)
    }
}

fn watch(epoll: &Epoll, fd: impl AsFd) -> nix::Result<()> {
    let fd = fd.as_fd();
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64))
}
