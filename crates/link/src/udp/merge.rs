//! Whether the kernel hands over merged packets as such.
//!
//! To say how long each of them is, it looks at a part of the packet that only the processor which
//! sent or merged it has in its cache. Between two ends of one machine that is an eighth of the
//! latency of a short message, whether or not anything was merged. So where packets come by
//! themselves, it is told not to look. What comes merged all the same it takes apart, which costs
//! more the more there are; so once packets come together, it is told to look again.

use std::os::fd::{AsRawFd, RawFd};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;

use super::UdpLink;

/// How many arrivals by themselves it takes until nothing is handed over merged.
const ALONE: u32 = 64;
/// How many of those one counts that is not by itself. The acknowledgement behind one message
/// of a ping-pong in sixteen, or more, should change nothing.
const COMPANY: u32 = 8;

/// How packets come.
#[derive(Debug, Default)]
pub(super) struct Merging {
    /// How much speaks for their coming by themselves, up to [`ALONE`].
    pub(super) alone: u32,
    /// Nobody has looked in vain since the last arrival.
    is_behind: bool,
    /// The socket that hands over nothing merged.
    apart: Option<RawFd>,
}

impl Merging {
    /// A datagram has come. Says whether it came by itself.
    #[inline]
    pub(super) fn arrived(&mut self, is_merged: bool) -> bool {
        let is_alone = !is_merged && !self.is_behind;
        self.alone = match is_alone {
            true => (self.alone + 1).min(ALONE),
            false => self.alone.saturating_sub(COMPANY),
        };
        self.is_behind = true;
        is_alone
    }

    /// Whether a socket hands over nothing merged.
    #[inline]
    pub(super) fn is_apart(&self, fd: RawFd) -> bool {
        self.apart == Some(fd)
    }

    /// There was none.
    #[inline]
    pub(super) fn nothing(&mut self) {
        self.is_behind = false;
    }
}

impl UdpLink {
    /// Has the hot socket hand over packets as they come, if they come otherwise now.
    #[inline]
    pub(super) fn adapt_merging(&mut self) {
        match (self.merging.alone, self.merging.apart) {
            // What is merged and waits would come without a word about it: nothing should wait.
            (ALONE, None) if !self.merging.is_behind => self.take_apart(),
            (0, Some(_)) => self.merge(),
            _ => {}
        }
    }

    #[cold]
    fn take_apart(&mut self) {
        let Some((socket, _)) = self.hot.and_then(|hot| self.receiving(hot.source.fd)) else {
            return;
        };
        // Who has lent it to us would not know.
        let is_lent = self.ports.iter().any(|port| port.is_lent && port.has(socket.as_raw_fd()));
        if self.config.gro && !is_lent && setsockopt(socket, UdpGroSegment, &false).is_ok() {
            self.merging.apart = Some(socket.as_raw_fd());
        }
    }

    /// Every socket hands over merged packets again.
    #[cold]
    pub(super) fn merge(&mut self) {
        let apart = self.merging.apart.take();
        if let Some((socket, _)) = apart.and_then(|fd| self.receiving(fd))
            && let Err(e) = setsockopt(socket, UdpGroSegment, &true)
        {
            tracing::debug!("UDP_GRO refused: {e}");
        }
        self.merging = Merging::default();
    }
}
