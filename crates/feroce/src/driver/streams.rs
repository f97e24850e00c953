//! Streams of a device that speaks iWARP.
//!
//! A queue pair has one stream. Until two ends have agreed on it, a stream is the agent's
//! (connection management); [`StreamOrder::Attach`] makes it a queue pair's.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use feroce_link::tcp::{StreamId, TcpConnect, TcpLink, TcpListenId};
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::stream_order::StreamOrder;

/// The streams of a device.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(super) tcp: TcpLink,
    /// Queue pairs by stream.
    pub(super) qps: BTreeMap<StreamId, Qpn>,
    /// Streams by queue pair.
    pub(super) of_qp: BTreeMap<Qpn, Attached>,
    /// Queue pairs that can send again.
    pub(super) resumed: Vec<Qpn>,
    pub(super) out: Vec<u8>,
    /// A turn has ended although there may be more to do.
    pub(super) has_more: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub(super) stream: StreamId,
    /// The queue pair may have something to say when TCP has room again.
    pub(super) is_held: bool,
}

impl Streams {
    pub(crate) fn new(tcp: TcpLink) -> Self {
        Self {
            tcp,
            qps: BTreeMap::new(),
            of_qp: BTreeMap::new(),
            resumed: Vec::new(),
            out: Vec::new(),
            has_more: false,
        }
    }

    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> io::Result<(TcpListenId, SocketAddr)> {
        self.tcp.listen(address, backlog)
    }

    pub(crate) fn unlisten(&mut self, listener: TcpListenId) {
        self.tcp.unlisten(listener);
    }

    pub(crate) fn connect(&mut self, now: Instant, how: &TcpConnect) -> io::Result<StreamId> {
        self.tcp.connect(now, how)
    }

    pub(super) fn counters(&self) -> feroce_link::LinkCounters {
        self.tcp.counters()
    }

    /// When a thread must drive the streams again, if nothing else happens.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let more = self.has_more.then_some(now);
        more.into_iter().chain(self.tcp.poll_timeout()).min()
    }

    /// Sends the burst in `out`. Returns how many TCP has taken.
    pub(super) fn send(&mut self, stream: StreamId) -> usize {
        self.tcp.send(stream, &self.out)
    }

    pub(super) fn execute(&mut self, now: Instant, order: StreamOrder) {
        match order {
            StreamOrder::Send(stream, bytes) => {
                self.tcp.send(stream, &bytes);
            }
            StreamOrder::Read(stream, reads) => self.tcp.set_reading(stream, reads),
            StreamOrder::Attach(stream, qpn) => {
                self.qps.insert(stream, qpn);
                self.of_qp.insert(qpn, Attached { stream, is_held: false });
                // It may have become ready before.
                self.resumed.push(qpn);
            }
            StreamOrder::Finish(stream) => self.finish(now, stream),
            StreamOrder::Accept(listener, accepts) => self.tcp.set_accepting(listener, accepts),
        }
    }

    pub(super) fn finish(&mut self, now: Instant, stream: StreamId) {
        if let Some(qpn) = self.qps.remove(&stream) {
            self.of_qp.remove(&qpn);
        }
        self.tcp.finish(now, stream);
    }
}
