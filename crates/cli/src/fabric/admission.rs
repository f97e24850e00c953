//! Which programs join a fabric: none while its process has no descriptor left for another.

use feroce_link::port::{PortListener, PortSocket};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// Accepts the connections of programs.
#[derive(Default, Debug)]
pub(super) struct Admission {
    is_paused: bool,
}

impl Admission {
    /// The next connection, if there is one that can be accepted. Without a descriptor for it, it
    /// waits until one of `others` has ended: the listener would be ready all the time, and the
    /// process would do nothing else.
    pub(super) fn accept(
        &mut self,
        epoll: &Epoll,
        listener: &PortListener,
        others: usize,
    ) -> anyhow::Result<Option<PortSocket>> {
        use Errno::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
        let why = match listener.accept() {
            Ok(found) => return Ok(found),
            Err(why) => why,
        };
        if let Some(EMFILE | ENFILE | ENOBUFS | ENOMEM) = why.raw_os_error().map(Errno::from_raw) {
            if others == 0 {
                return Err(why.into());
            }
            eprintln!("feroce: no more programs can join until one ends: {why}");
            epoll.delete(listener)?;
            self.is_paused = true;
        }
        // Otherwise the program is gone.
        Ok(None)
    }

    /// A connection has ended: others may join, which `data` tells in the events of `epoll`.
    pub(super) fn resume(&mut self, epoll: &Epoll, listener: &PortListener, data: u64) {
        if std::mem::take(&mut self.is_paused) {
            let added = epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, data));
            self.is_paused = added.is_err();
        }
    }
}
