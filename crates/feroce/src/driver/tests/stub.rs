//! A link that a test makes up: a closure takes the trains, and nothing arrives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use feroce_link::{Carrier, Control, LinkCounters};
use feroce_local::RemoteCarrier;
use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use nix::sys::eventfd::EventFd;

use crate::Context;

struct Stub<F> {
    silence: EventFd,
    send: F,
}

/// Gives a device a link that passes trains to `send`.
pub(super) fn replace_link<F>(context: &Context, send: F)
where
    F: FnMut(&[Train]) -> io::Result<usize> + Send + 'static,
{
    let stub = Stub { silence: EventFd::new().unwrap(), send };
    drop(context.driver().unwrap().link().replace(Box::new(stub)));
}

impl<F: FnMut(&[Train]) -> io::Result<usize> + Send> Carrier for Stub<F> {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: 64, max_bytes: 65_000 }
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.silence.as_fd()
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn send(&mut self, _: Instant, trains: &[Train]) -> io::Result<usize> {
        (self.send)(trains)
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

    fn arm(&mut self, _: Instant) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn control(&mut self, _: Control<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl<F: FnMut(&[Train]) -> io::Result<usize> + Send> RemoteCarrier for Stub<F> {
    fn wants_more(&self, _: &[Train]) -> bool {
        false
    }
}
