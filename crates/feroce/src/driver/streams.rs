//! Streams of a device that speaks iWARP.
//!
//! A queue pair has one stream. Until two ends have agreed on it, a stream is the agent's
//! (connection management); [`StreamOrder::Attach`] makes it a queue pair's.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use feroce_link::tcp::{
    FaultOrder, StreamFaults, StreamId, StreamRecords, TcpConnect, TcpLink, TcpListenId,
};
use feroce_train::{Burst, Instant};
use feroce_wire::Qpn;

use super::State;
use super::resumed::Resumed;
use super::stream_order::StreamOrder;

/// The streams of a device.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(super) tcp: TcpLink,
    /// Captures and traces: they see what TCP carries.
    pub(super) records: StreamRecords,
    /// What disturbs the streams above them.
    pub(super) faults: Option<StreamFaults>,
    /// Queue pairs by stream.
    pub(super) qps: BTreeMap<StreamId, Qpn>,
    /// Streams by queue pair.
    pub(super) of_qp: BTreeMap<Qpn, Attached>,
    /// Queue pairs that can send again.
    pub(super) resumed: Resumed,
    /// Streams whose next bytes have a place in memory.
    pub(super) landing: Vec<StreamId>,
    pub(super) out: Burst,
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
    pub(crate) fn new(tcp: TcpLink, records: StreamRecords, faults: Option<StreamFaults>) -> Self {
        Self {
            tcp,
            records,
            faults,
            qps: BTreeMap::new(),
            of_qp: BTreeMap::new(),
            resumed: Resumed::default(),
            landing: Vec::new(),
            out: Burst::default(),
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
        let stream = self.tcp.connect(now, how)?;
        self.records.connecting(stream, how.peer);
        Ok(stream)
    }

    /// What happened to streams so far, in TCP and above it.
    pub(super) fn counters(&self, state: &State) -> feroce_link::LinkCounters {
        let mut counters = self.tcp.counters();
        counters.extend(state.engine.stream_counters().iter());
        counters.extend(state.agent.iter().flat_map(|agent| agent.counters()));
        counters.extend(self.records.counters());
        counters.extend(self.faults.iter().flat_map(StreamFaults::counters));
        counters
    }

    /// When a thread must drive the streams again, if nothing else happens.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let more = self.has_more.then_some(now);
        let faults = self.faults.as_ref().and_then(StreamFaults::poll_timeout);
        let own = [self.tcp.poll_timeout(), self.records.poll_timeout(), faults, more];
        own.into_iter().flatten().min()
    }

    /// Sends the burst in `out`. Returns how many TCP has taken.
    pub(super) fn send(&mut self, now: Instant, stream: StreamId) -> usize {
        if !self.records.is_idle() {
            self.records.sent(now, stream, &self.out.copied(0));
        }
        let sent = self.tcp.send_burst(stream, &self.out);
        // Its rights to memory end here: a deregistration does not wait for the next burst.
        self.out.clear();
        sent
    }

    pub(super) fn execute(&mut self, now: Instant, order: StreamOrder) {
        match order {
            StreamOrder::Send(stream, bytes) => {
                self.records.sent(now, stream, &bytes);
                self.tcp.send(stream, &bytes);
            }
            StreamOrder::Read(stream, reads) => self.tcp.set_reading(stream, reads),
            StreamOrder::Attach(stream, qpn) => {
                // It may have had another, whose end the driver has not come to yet.
                if let Some(old) = self.of_qp.get(&qpn).map(|attached| attached.stream) {
                    self.finish(now, old);
                }
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
        self.records.finished(now, stream, false);
        self.faults.iter_mut().for_each(|faults| faults.finished(stream));
        self.tcp.finish(now, stream);
    }

    /// Does what faults demand.
    pub(super) fn obey_faults(&mut self, now: Instant) {
        let orders = self.faults.iter_mut().flat_map(StreamFaults::take_orders);
        for order in orders {
            match order {
                FaultOrder::Pause(stream, pauses) => self.tcp.set_paused(stream, pauses),
                FaultOrder::Reset(stream) => {
                    self.records.finished(now, stream, true);
                    self.tcp.reset(stream);
                }
            }
        }
    }

    /// The process is about to end.
    pub(super) fn prepare_exit(&mut self) {
        self.records.write_out();
    }

    /// This is the copy in a forked child.
    pub(super) fn abandon(&mut self) {
        self.records.abandon();
    }
}
