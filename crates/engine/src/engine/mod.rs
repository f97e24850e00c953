//! The adapter: objects, received packets, trains to send, and time.

pub(crate) mod control;
mod held;
mod port;
pub(crate) mod report;
mod rx;
mod stream;
mod table;
mod transport;
mod tx;

use alloc::vec::Vec;

use feroce_mem::{HostMemory, Revocation};
use feroce_ring::{DoorbellOwner, DoorbellSet};
use feroce_train::{GidEntry, Hop, Instant};
use feroce_wire::{Lid, Qpn};

use crate::hca::config::Config;
use crate::hca::counters::{Counters, DropCounters, StreamCounters};
use crate::hca::event::Event;
use crate::ib::completer::SilentPeer;
use crate::ib::port::Port;

use held::{HeldAcks, Loopback};
use table::QpTable;
use transport::Transport;

/// A host channel adapter.
///
/// Four kinds of methods:
///
/// - *getters* and *control* (`create_…`, `modify_…`, `destroy_…`, `reg_mr`): called whenever the
///   consumer wants something made, changed or shown;
/// - *`handle_rx`* and *`handle_timeout`*: something happened outside;
/// - *`poll_transmit`*, *`poll_timeout`*, *`poll_event`*: what the engine wants done. After any
///   other call, and after a consumer rang a doorbell, call `poll_transmit` until it gives
///   nothing, turn the trains into bytes and say so with `trains_read`, then call `poll_event`
///   until it gives nothing, then `poll_timeout`. Any call but a getter invalidates an earlier
///   answer of `poll_timeout`;
/// - the data path of consumers does not go through here: work requests are posted to a
///   [`SendQueue`](crate::SendQueue) or [`RecvQueue`](crate::RecvQueue), completions are polled
///   from a [`CqPoller`](crate::CqPoller).
#[derive(Debug)]
pub struct Engine {
    port: Port,
    qps: QpTable,
    bells: DoorbellOwner,
    /// Packets on their way to ourselves.
    loopback: Loopback,
    /// Acknowledgements that may wait.
    acks: HeldAcks,
    /// The latest time that a caller passed.
    now: Instant,
}

impl Engine {
    /// An adapter without addresses and objects.
    pub fn new(config: Config) -> Self {
        let port = Port::new(config);
        let qps = QpTable::new(&port.hca.config);
        Self {
            port,
            qps,
            bells: DoorbellOwner::new(),
            loopback: Loopback::default(),
            acks: HeldAcks::default(),
            now: Instant::ZERO,
        }
    }

    /// Sets the object that lets peer processes fetch payload. The engine tells it when they must
    /// no longer access memory.
    pub fn set_host_memory(&mut self, host_memory: alloc::sync::Arc<dyn HostMemory>) {
        self.port.hca.host_memory = Some(host_memory);
    }

    /// What the adapter was made with.
    pub fn config(&self) -> &Config {
        &self.port.hca.config
    }

    /// How streams of iWARP have ended so far.
    pub fn stream_counters(&self) -> StreamCounters {
        self.port.hca.stream_counters
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let counters = self.port.hca.counters;
        let passed =
            self.port.hca.host_memory.as_ref().map_or(0, |host_memory| host_memory.passed());
        Counters { rdma_recvs: counters.rdma_recvs + passed, ..counters }
    }

    /// Packets that queue pairs of this engine have sent to each other so far.
    #[inline]
    pub fn loopback_pkts(&self) -> u64 {
        self.port.hca.counters.loopback_pkts
    }

    /// Packets dropped so far.
    pub fn drops(&self) -> &DropCounters {
        &self.port.hca.drops
    }

    /// The GID table of the port, by index.
    pub fn gids(&self) -> &[GidEntry] {
        &self.port.hca.gids
    }

    /// The LID of the port; zero on Ethernet.
    pub fn lid(&self) -> Lid {
        self.port.hca.lid
    }

    /// Tells, from any thread, whether a consumer rang a doorbell that was not answered yet.
    pub fn doorbells(&self) -> &alloc::sync::Arc<DoorbellSet> {
        self.bells.set()
    }

    /// The next event for a consumer.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.port.hca.events.pop_front()
    }

    /// Whether there is one.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.port.hca.events.is_empty()
    }

    /// When to call [`Engine::handle_timeout`], if nothing else happens before. A time in the past
    /// means at once.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let has_work = !self.port.hca.ready.is_empty()
            || !self.port.hca.kicked.is_empty()
            || !self.port.woken.is_empty()
            || self.bells.is_rung()
            || self.port.has_out()
            || !self.loopback.is_empty();
        if has_work { Some(self.now) } else { self.port.hca.timers.next() }
    }

    /// Whether queue pairs wait until processes of the host have finished copies under revoked
    /// rights. If so, the caller calls [`Engine::poll_revocations`] a little later.
    #[inline]
    pub fn awaits_revocation(&self) -> bool {
        !self.port.hca.revocations.is_empty()
    }

    /// Resumes queue pairs whose revocations are over. `is_over` decides that, with the help of
    /// [`HostMemory::is_quiet`]. Returns whether there were any.
    pub fn poll_revocations(&mut self, is_over: &mut dyn FnMut(Revocation) -> bool) -> bool {
        let mut any = false;
        while let Some(qpn) = self.port.hca.end_revocation(is_over) {
            any = true;
            self.port.hca.kicked.extend(self.qps.slot_of(qpn));
        }
        self.finish();
        any
    }

    /// What has been revoked so far from the process that has the queue pair `peer` or, without
    /// one, from all. A caller that has ended a right waits until [`HostMemory::is_quiet`] says
    /// that this is over before it uses the memory otherwise. `None`: no other process can reach
    /// memory.
    pub fn last_revocation(&self, peer: Option<Qpn>) -> Option<Revocation> {
        self.port.hca.revocation(peer)
    }

    /// The queue pair that a connected one is connected to.
    pub fn peer_of(&self, qpn: Qpn) -> Option<Qpn> {
        self.qps.peek(qpn)?.common().attr.dest_qpn
    }

    /// The object that lets processes of the host reach memory.
    pub fn host_memory(&self) -> Option<&alloc::sync::Arc<dyn HostMemory>> {
        self.port.hca.host_memory.as_ref()
    }

    /// Tells the congestion control of a queue pair what switches wrote into a packet that its peer
    /// received. The caller hands over the acknowledgement of that packet next.
    pub fn handle_telemetry(&mut self, now: Instant, qpn: Qpn, hops: &[Hop]) {
        if let Some(Transport::Ib(qp)) = self.qps.get(qpn) {
            qp.on_telemetry(now, hops);
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_timers(now, &mut None);
    }

    /// As [`Engine::handle_timeout`], over a link that may know that a peer process has not yet
    /// read the packets sent to it. Queue pairs whose peer did not answer in time are appended to
    /// `silent`; each of them waits for [`Engine::handle_silence`].
    pub fn handle_timeout_asking(&mut self, now: Instant, silent: &mut Vec<SilentPeer>) {
        self.handle_timers(now, &mut Some(silent));
    }

    /// Continues the timeout of a queue pair that [`Engine::handle_timeout_asking`] has reported.
    /// If the peer has unread packets, the timeout does not count as a retry for a while: a
    /// hardware adapter would answer however busy its host is.
    pub fn handle_silence(&mut self, now: Instant, peer: &SilentPeer, has_unread: bool) {
        self.now = now;
        let Some(slot) = self.qps.slot_of(peer.qpn) else { return };
        let Some(Transport::Ib(qp)) = self.qps.at(slot) else { return };
        if qp.is_silent(now) {
            qp.handle_silence(&mut self.port, now, has_unread);
            self.port.hca.kicked.push(slot);
        }
        if let Some(deadline) = qp.deadline(now) {
            self.port.hca.timers.arm(slot, &mut qp.common.armed, deadline);
        }
        self.finish();
    }

    fn handle_timers(&mut self, now: Instant, silent: &mut Option<&mut Vec<SilentPeer>>) {
        self.now = now;
        while let Some((at, slot)) = self.port.hca.timers.pop_due(now) {
            let qp = match self.qps.at(slot) {
                Some(Transport::Ib(qp)) => qp,
                Some(Transport::Iwarp(qp)) => {
                    if qp.common.armed.take(at) {
                        qp.handle_timeout(&mut self.port.hca, now);
                    }
                    continue;
                }
                None => continue,
            };
            if !qp.common.armed.take(at) {
                continue;
            }
            if qp.is_due(at, now) {
                match silent {
                    // `handle_silence` continues here, and sets the timer again.
                    Some(silent) if qp.is_silent(now) => {
                        silent.push(qp.silent_peer());
                        continue;
                    }
                    _ => qp.handle_timeout(&mut self.port, now),
                }
                self.port.hca.kicked.push(slot);
            }
            if let Some(deadline) = qp.deadline(now) {
                self.port.hca.timers.arm(slot, &mut qp.common.armed, deadline);
            }
        }
        self.finish();
    }

    /// Finishes every call that may have completed requests.
    #[inline]
    fn finish(&mut self) {
        while let Some(cq) = self.port.hca.dead_cqs.pop() {
            // This flushes to other completion queues, so consumers are woken afterwards.
            self.stop_users_of(cq);
        }
        self.port.hca.wake_consumers();
    }
}
