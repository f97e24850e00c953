//! How the process of a fabric waits while programs exchange packets.
//!
//! A program that sends a packet to a process that sleeps has to wake it, which takes both longer
//! than the packet does. So the process looks for packets for a moment after the last ones, and
//! gives the processor to other programs in between. Where these keep it for long, processors are
//! scarce, and the process sleeps at once.

use nix::Result;
use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};

use super::mail::Looking;
use crate::fabric::pace::monotonic_ns;

/// How long the process looks for packets before it sleeps: a few times what an answer takes.
const LINGER_NS: u64 = 50_000;

/// A process that yields and runs again later than this has competition for its processor.
const CROWDED_NS: u64 = 500_000;

/// How long the process may look at rings alone before it looks at descriptors.
const RINGS_ONLY_NS: u64 = 10_000;

/// How often the process looks at rings before it gives the processor to others.
const LOOKS: u32 = 16;

/// How long the process sleeps at once after it has seen competition.
const REMEMBER_NS: u64 = 20_000_000;

/// Until when the process stays awake.
#[derive(Debug, Default)]
pub(super) struct Linger {
    until_ns: u64,
    crowded_until_ns: u64,
    /// When it last looked at descriptors.
    looked_ns: u64,
}

impl Linger {
    /// Packets have come; others probably follow.
    pub(super) fn extend(&mut self) {
        self.until_ns = monotonic_ns() + LINGER_NS;
    }

    /// Waits until a descriptor is ready, or there is mail. The process sleeps for `timeout` at
    /// most.
    pub(super) fn wait(
        &mut self,
        epoll: &Epoll,
        events: &mut [EpollEvent],
        timeout: EpollTimeout,
        mail: &mut Looking<'_>,
    ) -> Result<usize> {
        loop {
            let has_mail = (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                mail.look()
            });
            if has_mail {
                self.extend();
            } else if !self.stays() {
                break;
            }
            let now = monotonic_ns();
            let ready = if now.saturating_sub(self.looked_ns) > RINGS_ONLY_NS {
                self.looked_ns = now;
                epoll.wait(events, EpollTimeout::ZERO)?
            } else {
                0
            };
            if has_mail || ready > 0 {
                return Ok(ready);
            }
        }
        let timeout = if mail.sleep() { EpollTimeout::ZERO } else { timeout };
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
    use std::collections::BTreeMap;

    use super::super::mail::Mail;
    use super::*;
    use nix::sys::epoll::{EpollCreateFlags, EpollFlags};
    use nix::sys::eventfd::{EfdFlags, EventFd};

    #[test]
    fn what_becomes_ready_is_seen_awake_and_asleep() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
        let mut events = [EpollEvent::empty(); 2];
        let (mut linger, mut mail) = (Linger::default(), Mail::default());
        let (mut conns, mut unread) = (BTreeMap::new(), Vec::new());
        let mut mail = mail.of(&mut conns, &mut unread);
        for stays in [false, true] {
            if stays {
                linger.extend();
            }
            assert_eq!(linger.wait(&epoll, &mut events, EpollTimeout::ZERO, &mut mail), Ok(0));
            assert!(!linger.stays(), "it has looked for as long as it may");
            fd.write(1).unwrap();
            if stays {
                linger.extend();
            }
            assert_eq!(linger.wait(&epoll, &mut events, EpollTimeout::NONE, &mut mail), Ok(1));
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
