//! How the process of a fabric waits while programs exchange packets.
//!
//! A program that sends a packet to a process that sleeps has to wake it, which takes both longer
//! than the packet does. So the process looks for packets for a moment after the last ones, and
//! gives the processor to other programs in between. Where these keep it for long, processors are
//! scarce, and the process sleeps at once.

use nix::Result;
use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};

use crate::fabric::pace::monotonic_ns;

/// How long the process looks for packets before it sleeps: a few times what an answer takes.
const LINGER_NS: u64 = 50_000;

/// A process that yields and runs again later than this has competition for its processor.
const CROWDED_NS: u64 = 500_000;

/// How long the process sleeps at once after it has seen competition.
const REMEMBER_NS: u64 = 20_000_000;

/// Until when the process stays awake.
#[derive(Debug, Default)]
pub(super) struct Linger {
    until_ns: u64,
    crowded_until_ns: u64,
}

impl Linger {
    /// Packets have come; others probably follow.
    pub(super) fn extend(&mut self) {
        self.until_ns = monotonic_ns() + LINGER_NS;
    }

    /// Waits until a descriptor is ready. The process sleeps for `timeout` at most.
    pub(super) fn wait(
        &mut self,
        epoll: &Epoll,
        events: &mut [EpollEvent],
        timeout: EpollTimeout,
    ) -> Result<usize> {
        while self.stays() {
            let ready = epoll.wait(events, EpollTimeout::ZERO)?;
            if ready > 0 {
                return Ok(ready);
            }
        }
        epoll.wait(events, timeout)
    }

    /// Whether the process stays awake; it has yielded then.
    fn stays(&mut self) -> bool {
        let before = monotonic_ns();
        if before >= self.until_ns || before < self.crowded_until_ns {
            return false;
        }
        std::thread::yield_now();
        let after = monotonic_ns();
        if after - before > CROWDED_NS {
            self.crowded_until_ns = after + REMEMBER_NS;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{EpollCreateFlags, EpollFlags};
    use nix::sys::eventfd::{EfdFlags, EventFd};

    #[test]
    fn what_becomes_ready_is_seen_awake_and_asleep() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
        let mut events = [EpollEvent::empty(); 2];
        let mut linger = Linger::default();
        for stays in [false, true] {
            if stays {
                linger.extend();
            }
            assert_eq!(linger.wait(&epoll, &mut events, EpollTimeout::ZERO), Ok(0));
            assert!(!linger.stays(), "it has looked for as long as it may");
            fd.write(1).unwrap();
            if stays {
                linger.extend();
            }
            assert_eq!(linger.wait(&epoll, &mut events, EpollTimeout::NONE), Ok(1));
            assert_eq!(events[0].data(), 7);
            fd.read().unwrap();
        }
    }

    #[test]
    fn a_process_with_competition_sleeps_at_once() {
        let mut linger = Linger { crowded_until_ns: u64::MAX, ..Linger::default() };
        linger.extend();
        assert!(!linger.stays());
    }
}
