//! A socket for the one flow that packets come from.
//!
//! What is for a connected socket takes a shorter way through the kernel, and whom it is from need
//! not be said: between two ends of one machine that is a fifteenth of the latency of a short
//! message. So while packets come one by one and from one place, there is a second socket at the
//! port, connected to that place. Everything else comes to the first, as before.
//!
//! Until the second is connected, it may get anything. So whatever is in either is taken with its
//! source, that in the first one first, before the source is no longer asked for. Before the second
//! is closed, it is connected to nobody and emptied.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use feroce_train::{RxMeta, RxTrain};
use feroce_wire::Gid;
use socket2::Socket;

use super::header::Headers;
use super::watch::Source;
use super::{Port, UdpLink, forget, socket, socket_addr};

/// A gate that could not be opened so often is not tried again.
const MOST_FAILURES: u32 = 8;
/// How many packets in a row by themselves from one place it takes.
const ALONE: u32 = 256;
/// How many of those one counts that is from elsewhere, or not by itself.
const COMPANY: u32 = 8;
/// How many packets are taken at a time when a socket is emptied, and how often.
const AT_A_TIME: usize = 64;
const TIMES: usize = 256;
/// Nobody sends from here: the port of the discard service.
const NOBODY: u16 = 9;

/// Where packets come from, address and port, and to which address.
type Flow = (Gid, u16, Gid);

/// Who gets a gate.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// Where the last packet by itself came from.
    last: Flow,
    /// How much speaks for a gate for that, up to [`ALONE`].
    alone: u32,
    pub(super) gate: Option<Gate>,
    /// What packets that come through it say.
    pub(super) headers: Headers,
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
    pub(super) fn arrived(&mut self, flow: &Flow, is_alone: bool) {
        let is_same = self.last == *flow;
        if !is_same && self.gate.is_none() {
            (self.last, self.alone) = (*flow, 0);
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

    /// Whether this socket is the gate.
    #[inline]
    pub(super) fn is_at(&self, fd: RawFd) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.source.fd == fd)
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
    pub fn set_shared(&mut self, is_shared: bool) {
        self.gates.is_shared = is_shared;
    }

    /// Opens a gate, or closes it, and takes what has come until then.
    #[cold]
    pub(super) fn change_gate(&mut self, sink: &mut dyn FnMut(&RxTrain<'_>)) -> io::Result<usize> {
        let Some(Gate { socket, source }) = &self.gates.gate else { return self.open_gate(sink) };
        let (source, scope) = (*source, self.interface_index());
        let _ = socket.connect(&socket_addr(source.meta.dst, NOBODY, scope).into());
        let taken = self.empty(&source, sink);
        self.close_gate();
        taken
    }

    fn open_gate(&mut self, sink: &mut dyn FnMut(&RxTrain<'_>)) -> io::Result<usize> {
        self.gates.alone = 0;
        let (src, udp_sport, dst) = self.gates.last;
        // What comes to a group, or to a socket of somebody else's, comes there only.
        let may_have_one = |port: &&Port| port.addr == dst && !port.is_lent && self.config.connect;
        let port = self.ports.iter().find(may_have_one).and_then(|port| port.rx.as_ref());
        let Some(port) = port else { return Ok(0) };
        let first = Source::open(port.as_raw_fd(), dst);
        let Ok(socket) = socket::open_second(&self.config, port, dst) else {
            self.gates.failures += 1;
            return Ok(0);
        };
        let peer = socket_addr(src, udp_sport, self.interface_index());
        let is_open = socket.connect(&peer.into()).is_ok() && self.watch(&socket).is_ok();
        // How packets come does not change by that.
        let alone = self.merging.alone;
        let second = Source::open(socket.as_raw_fd(), dst);
        let taken = self.empty(&first, sink)? + self.empty(&second, sink)?;
        if !is_open {
            self.gates.failures += 1;
            return Ok(taken);
        }
        let meta = RxMeta { src, udp_sport, ..second.meta };
        let source = Source { meta, is_connected: true, ..second };
        self.gates.gate = Some(Gate { socket, source });
        self.gates.headers = Headers::default();
        (self.gates.last, self.gates.alone) = ((src, udp_sport, dst), ALONE);
        self.counters.rx_gates += 1;
        self.heat(source.fd);
        self.merging.alone = alone;
        self.adapt_merging();
        Ok(taken)
    }

    /// Takes all that is in a socket.
    fn empty(&mut self, source: &Source, sink: &mut dyn FnMut(&RxTrain<'_>)) -> io::Result<usize> {
        let mut all = 0;
        for _ in 0..TIMES {
            let taken = self.receive_from(source, AT_A_TIME, sink)?;
            all += taken;
            if taken < AT_A_TIME {
                break;
            }
        }
        Ok(all)
    }

    /// Closes the gate. What is in it is lost.
    pub(super) fn close_gate(&mut self) {
        if let Some(gate) = self.gates.gate.take() {
            self.cool();
            forget(&self.epoll, [&gate.socket]);
        }
    }

    /// Closes the gate when packets are taken next.
    pub(super) fn end_gate(&mut self) {
        self.gates.alone = 0;
    }
}
