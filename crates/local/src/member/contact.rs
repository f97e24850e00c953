//! Another member, and the pipes to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Another member, as somebody sees it who has to do with it.
#[derive(Debug)]
pub(crate) struct Contact {
    wake: Arc<Wake>,
    kick: OwnedFd,
    life: OwnedFd,
}

impl Contact {
    /// From the pipes that the member sleeps on, is kicked with, and tells with that it lives.
    pub(super) fn new(wake: OwnedFd, kick: OwnedFd, life: OwnedFd) -> Self {
        Self { wake: Arc::new(Wake(wake)), kick, life }
    }

    /// Hangs up when the member has gone.
    pub(crate) fn life(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }

    /// What wakes it.
    pub(crate) fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// Tells whoever stands by there that nobody else seems to be about.
    pub(crate) fn kick(&self) {
        // A full pipe tells just as well.
        let _ = nix::unistd::write(&self.kick, &[1]);
    }
}

/// The pipe that a member sleeps on.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    /// Wakes it.
    pub(crate) fn ring(&self) {
        // A full pipe wakes just as well.
        let _ = nix::unistd::write(&self.0, &[1]);
    }
}
