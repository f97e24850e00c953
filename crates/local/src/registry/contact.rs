//! A peer process, and the pipes to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The open pipes of another process.
#[derive(Debug)]
pub(crate) struct Contact {
    wake: Arc<Wake>,
    kick: OwnedFd,
    life: OwnedFd,
}

impl Contact {
    /// Takes the pipe that the process sleeps on, the one it is kicked through, and the one whose
    /// hang-up tells that it has gone.
    pub(super) fn new(wake: OwnedFd, kick: OwnedFd, life: OwnedFd) -> Self {
        Self { wake: Arc::new(Wake(wake)), kick, life }
    }

    /// The pipe on which the kernel reports a hang-up when the process has gone.
    pub(crate) fn life(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }

    /// The pipe that wakes the process.
    pub(crate) fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// Makes the process's driver thread receive, because its polling thread does not.
    pub(crate) fn kick(&self) {
        // A full pipe is readable, so it kicks just as well.
        let _ = nix::unistd::write(&self.kick, &[1]);
    }
}

/// The pipe that a process sleeps on.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    /// Wakes the process.
    pub(crate) fn ring(&self) {
        // A full pipe is readable, so it wakes just as well.
        let _ = nix::unistd::write(&self.0, &[1]);
    }
}
