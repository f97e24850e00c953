//! A host: an engine with registered memory and a completion queue.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use feroce_engine::{
    AsyncEvent, Config, CqId, CqPoller, Cqe, CreatedQp, Data, Engine, Event, QpAttr, QpInitAttr,
    QpType, RecvWr, Remote, Sge, SgeList,
};
use feroce_mem::{Access, PdId, Region};
use feroce_train::{Ecn, Framing, GidEntry, Instant, LinkLayer, RxTrain};
use feroce_wire::{Gid, Lkey, Psn, Qpn, Rkey};

use crate::{ALL, CAPS, Connection, Mr, Packet, TestQp, init_attr, packets};

/// Bytes of memory that a host has unless its configuration says otherwise.
pub const MEMORY: usize = 1 << 20;

/// The address of host `number`.
pub fn address(number: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, number])
}

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its number, which decides its address and the seed of its engine.
    pub number: u8,
    /// The engine; its seed is replaced.
    pub engine: Config,
    /// Bytes of memory.
    pub memory: usize,
    /// The part of memory that [`Host::lkey`] covers.
    pub registered: Range<usize>,
    /// What peers and the host itself may do there.
    pub access: Access,
    /// Depth of the completion queue.
    pub cqes: u32,
}

impl HostConfig {
    /// Host `number` with `memory` bytes, all of them registered.
    pub fn new(number: u8, memory: usize) -> Self {
        Self {
            number,
            engine: Config::default(),
            memory,
            registered: 0..memory,
            access: ALL,
            cqes: 4096,
        }
    }
}

/// An engine with a protection domain, a completion queue and some memory.
#[derive(Debug)]
pub struct Host {
    /// The engine.
    pub engine: Engine,
    /// Its address, entry 0 of the GID table.
    pub gid: Gid,
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue.
    pub cq: CqId,
    /// The consumer's end of the completion queue.
    pub poller: CqPoller,
    /// The memory.
    pub region: Arc<Region>,
    /// Key of the registered part, whose addresses start at 0.
    pub lkey: Lkey,
    /// Events that [`Host::drain_events`] took from the engine.
    pub events: VecDeque<Event>,
}

impl Host {
    /// Host `number` with an engine as by default.
    pub fn new(number: u8) -> Self {
        Self::with_config(number, Config::default())
    }

    /// Host `number` with an engine configured so.
    pub fn with_config(number: u8, config: Config) -> Self {
        Self::build(HostConfig { engine: config, ..HostConfig::new(number, MEMORY) })
    }

    /// A host configured so.
    pub fn build(config: HostConfig) -> Self {
        let seed = u64::from(config.number);
        let mut engine = Engine::new(Config { seed, ..config.engine });
        let gid = address(config.number);
        let framing = match engine.config().link_layer {
            LinkLayer::Ethernet => Framing::RoceV2,
            LinkLayer::InfiniBand => Framing::InfiniBand,
        };
        engine.set_gid(0, GidEntry { gid, framing });
        assert!(matches!(
            engine.poll_event(),
            Some(Event::Async(AsyncEvent::GidChange { index: 0, .. }))
        ));
        let pd = engine.alloc_pd().unwrap();
        let (cq, poller) = engine.create_cq(config.cqes).unwrap();
        let region = Region::alloc(config.memory).unwrap();
        let range = (config.registered.start, config.registered.len());
        let mr = Mr::register(&mut engine, pd, &region, range, None, config.access);
        Self { engine, gid, pd, cq, poller, region, lkey: mr.lkey(), events: VecDeque::new() }
    }

    /// Attributes for a queue pair of this host: see [`init_attr`].
    pub fn init_attr(&self, qp_type: QpType) -> QpInitAttr {
        init_attr(qp_type, self.pd, self.cq)
    }

    /// Creates a queue pair.
    pub fn create_qp(&mut self, init: QpInitAttr) -> TestQp {
        let CreatedQp { qpn, sq, rq } = self.engine.create_qp(init).unwrap();
        TestQp { qpn, sq, rq, first_psn: Psn::new(0) }
    }

    /// Modifies a queue pair.
    pub fn modify(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) {
        self.engine.modify_qp(now, qpn, attr).unwrap();
    }

    /// Takes a queue pair from RESET to RTS.
    pub fn connect(&mut self, now: Instant, qpn: Qpn, connection: &Connection) {
        connection.bring_up(&mut self.engine, now, qpn);
    }

    /// A scatter/gather element.
    pub fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.lkey }
    }

    /// What a request sends from, or fetches to.
    pub fn data(&self, addr: u64, len: u32) -> Data {
        Data::Sges(SgeList::from(self.sge(addr, len)))
    }

    /// A receive.
    pub fn recv(&self, wr_id: u64, addr: u64, len: u32) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from(self.sge(addr, len)) }
    }

    /// Names bytes of this host to a peer.
    pub fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: Rkey(self.lkey.0) }
    }

    /// Writes `len` bytes that follow from `seed`, and returns them.
    pub fn fill(&self, addr: usize, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> =
            (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.region.write_at(addr, &bytes).unwrap();
        bytes
    }

    /// The bytes at an offset of the memory.
    pub fn read(&self, addr: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(addr, &mut bytes).unwrap();
        bytes
    }

    /// Polls one completion.
    pub fn poll(&mut self) -> Option<Cqe> {
        self.poller.poll()
    }

    /// Polls all completions.
    pub fn poll_all(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poller.poll()).collect()
    }

    /// Takes the asynchronous events so far; completion events are discarded.
    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        self.drain_events();
        let all = std::mem::take(&mut self.events);
        all.into_iter()
            .filter_map(|e| match e {
                Event::Async(e) => Some(e),
                Event::Completion(_) | Event::Poller(_) => None,
            })
            .collect()
    }

    /// Moves events from the engine to [`Host::events`].
    pub fn drain_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Everything the engine wants to send, packet by packet.
    pub fn transmit(&mut self, now: Instant) -> Vec<Packet> {
        let mut sent = Vec::new();
        while let Some(train) = self.engine.poll_transmit(now, &CAPS) {
            sent.extend(packets(&train));
        }
        sent.iter_mut().for_each(|packet| packet.meta.ecn = Ecn::Capable);
        self.engine.trains_read();
        sent
    }

    /// A packet arrives.
    pub fn receive(&mut self, now: Instant, packet: &Packet) {
        self.engine.handle_rx(now, &RxTrain::single(packet.meta, &packet.bytes));
    }
}
