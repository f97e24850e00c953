//! The packet side of a device that has streams only: it carries no packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};

use super::TcpLink;
use crate::{Carrier, Control, LinkCounters};

/// A carrier without packets, whose descriptor is that of a [`TcpLink`].
#[derive(Debug)]
pub struct TcpPort {
    epoll: OwnedFd,
}

impl TcpPort {
    /// The packet side of the device of these streams.
    pub fn of(streams: &TcpLink) -> io::Result<Self> {
        Ok(Self { epoll: streams.wait_fd().try_clone_to_owned()? })
    }
}

impl Carrier for TcpPort {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: 1, max_bytes: 4096 }
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::new()
    }

    fn send(&mut self, _: Instant, trains: &[Train]) -> io::Result<usize> {
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        _: Instant,
        _: usize,
        _: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        Ok(0)
    }

    /// The epoll instance reports what is ready for as long as it is.
    fn arm(&mut self, _: Instant) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Listeners and streams are told by themselves.
    fn control(&mut self, _: Control<'_>) -> io::Result<()> {
        Ok(())
    }
}
