//! A socket for the one flow that packets come from.
//!
//! What is for a connected socket takes a shorter way through the kernel, and whom it is from need
//! not be said: between two ends of one machine that is a fifteenth of the latency of a short
//! message. So while packets come one by one and from one place, there is a second socket at the
//! port, connected to that place. Everything else comes to the first, as before.
//!
//! Until the second is connected, it may get anything. So whatever is in either is taken with its
//! source, in the order in which it can have come, before the source is no longer asked for.

use std::io;
use std::os::fd::AsRawFd;

use feroce_train::{RxMeta, RxTrain};
use feroce_wire::Gid;
use socket2::Socket;

use super::lane::MOST_FAILURES;
use super::watch::Source;
use super::{UdpLink, forget, socket, socket_addr};

/// How many packets in a row by themselves from one place it takes.
const ALONE: u32 = 256;
/// How many of those one counts that is from elsewhere, or not by itself.
const COMPANY: u32 = 8;
/// Most that may wait in the first socket when there is a second.
const MOST: usize = 64;

/// Address and port of a sender.
type Sender = (Gid, u16);

/// Who gets a gate.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// Where the last packet by itself came from.
    last: Sender,
    /// How much speaks for a gate for that, up to [`ALONE`].
    alone: u32,
    pub(super) gate: Option<Gate>,
    /// How often there could not be one.
    failures: u32,
    /// Others take their packets from the first socket, too.
    is_shared: bool,
}

/// A connected socket that receives.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) socket: Socket,
    pub(super) source: Source,
}

impl Gates {
    /// A packet has come to a socket that is not connected.
    ///
    /// Not inlined: addresses that are compared in memory are compared as a whole.
    #[inline(never)]
    pub(super) fn arrived(&mut self, from: &Sender, is_alone: bool) {
        let is_same = self.last == *from;
        if !is_same && self.gate.is_none() {
            (self.last, self.alone) = (*from, 0);
        }
        self.count(is_same && is_alone);
    }

    /// A packet has come that speaks for a gate, or against it.
    #[inline]
    pub(super) fn count(&mut self, speaks_for: bool) {
        self.alone = match speaks_for {
            true => (self.alone + 1).min(ALONE),
            false => self.alone.saturating_sub(COMPANY),
        };
    }

    /// Whether it is time for another state.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        match self.gate {
            None => self.alone == ALONE && self.failures < MOST_FAILURES && !self.is_shared,
            Some(_) => self.alone == 0 || self.is_shared,
        }
    }
}

impl UdpLink {
    /// Whether others take their packets from the receiving sockets, too. Then all must be there.
    pub(crate) fn set_shared(&mut self, is_shared: bool) {
        self.gates.is_shared = is_shared;
    }

    /// Opens a gate, or closes it, and takes what has come until then.
    #[cold]
    pub(super) fn change_gate(&mut self, sink: &mut dyn FnMut(&RxTrain<'_>)) -> io::Result<usize> {
        if let Some(gate) = &self.gates.gate {
            let source = gate.source;
            let taken = self.receive_from(&source, MOST, sink);
            self.cool();
            return taken;
        }
        let Some(first) = self.hot.map(|hot| hot.source) else { return Ok(0) };
        match self.open_gate(&first) {
            Ok(gate) => self.gates.gate = gate,
            Err(e) => {
                tracing::debug!("no connected socket from {}: {e}", self.gates.last.0);
                self.gates.failures += 1;
            }
        }
        if self.gates.gate.is_none() {
            self.gates.alone = 0;
            return Ok(0);
        }
        // How packets come has not changed.
        let (mut taken, alone) = (0, self.merging.alone);
        let gate =
            self.gates.gate.as_ref().map(|gate| Source { is_connected: false, ..gate.source });
        for source in [Some(first), gate].into_iter().flatten() {
            taken += self.receive_from(&source, MOST, sink)?;
            self.heat(source.fd);
        }
        self.merging.alone = alone;
        self.adapt_merging();
        Ok(taken)
    }

    /// A second socket where `first` is, for the packets that come by themselves. None: `first` is
    /// for a group, or is somebody else's.
    fn open_gate(&mut self, first: &Source) -> io::Result<Option<Gate>> {
        let ((src, udp_sport), scope) = (self.gates.last, self.interface_index());
        let meta = RxMeta { src, udp_sport, ..first.meta };
        let port = self.ports.iter().find(|port| port.has(first.fd) && !port.is_lent);
        let Some(first) = port.and_then(|port| port.rx.as_ref()) else {
            return Ok(None);
        };
        let socket = socket::open_second(&self.config, first, meta.dst)?;
        socket.connect(&socket_addr(src, udp_sport, scope).into())?;
        self.watch(&socket)?;
        self.counters.rx_gates += 1;
        let source = Source { fd: socket.as_raw_fd(), meta, is_connected: true };
        Ok(Some(Gate { socket, source }))
    }

    /// Closes the gate. What is in it is lost.
    pub(super) fn close_gate(&mut self) {
        if let Some(gate) = self.gates.gate.take() {
            forget(&self.epoll, [&gate.socket]);
        }
        self.gates.alone = 0;
    }
}
