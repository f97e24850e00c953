//! A host: the engines of its shards, its address, and how its link drives them.

use feroce_engine::Engine;
use feroce_testkit::as_trains;
use feroce_train::{Instant, LinkCaps, RxTrain};
use feroce_wire::{Bth, Gid};

use super::steering::Steering;
use crate::fabric::Batch;

/// How received packets reach an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxStyle {
    /// One by one; the engine transmits after each.
    EachPacket,
    /// One by one; the engine transmits after the last.
    Packets,
    /// As trains.
    Train,
}

/// How an engine is driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// What its link takes.
    pub caps: LinkCaps,
    /// How packets reach it.
    pub rx: RxStyle,
    /// Its link takes one train at a time.
    pub one_train: bool,
    /// Acknowledgements wait for the next turn, or for a packet that leaves with them.
    pub acks_wait: bool,
    /// Its link takes a single packet directly, without a train.
    pub fast_path: bool,
}

/// Which shard of which host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The host.
    pub host: usize,
    /// The shard of that host.
    pub shard: usize,
}

/// An engine with its timer and its link.
#[derive(Debug)]
pub struct Shard {
    /// The engine.
    pub engine: Engine,
    /// When its timer event is due.
    pub(super) timer_at: Option<Instant>,
    /// When its link is free again.
    pub(super) link_free_at: Option<Instant>,
}

impl Shard {
    /// When its link takes packets again, if it is busy.
    pub fn link_free_at(&self) -> Option<Instant> {
        self.link_free_at
    }

    /// Passes packet `i` of a batch to the engine.
    pub(super) fn receive_one(&mut self, now: Instant, batch: &Batch, i: usize) {
        self.engine.handle_rx(now, &RxTrain::single(batch.meta, &batch.packets[i]));
    }

    /// Passes a batch to the engine as trains.
    pub(super) fn receive_trains(&mut self, now: Instant, batch: &Batch) {
        as_trains(batch.meta, &batch.packets, |train| self.engine.handle_rx(now, train));
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Host {
    /// At least one. Queue pair numbers of one of several are those of its `Config::qpn_first`.
    pub shards: Vec<Shard>,
    /// Its address, which the shards share.
    pub gid: Gid,
    /// How each shard is driven.
    pub style: Style,
    /// How packets reach the shards.
    pub(super) steering: Steering,
}

impl Host {
    /// A host whose engines have this address.
    ///
    /// # Panics
    /// If there are no engines.
    pub fn new(engines: Vec<Engine>, gid: Gid, style: Style, steering: Steering) -> Self {
        assert!(!engines.is_empty(), "a host has at least one shard");
        let shard = |engine| Shard { engine, timer_at: None, link_free_at: None };
        Self { shards: engines.into_iter().map(shard).collect(), gid, style, steering }
    }

    /// The engine of the first shard, which has what only one has.
    pub fn first(&mut self) -> &mut Engine {
        &mut self.shards[0].engine
    }

    /// How many packets shards have passed on to each other.
    pub fn passed_on(&self) -> u64 {
        self.steering.packets
    }

    /// The shard that has the queue pair to which a packet goes; none if no shard has such numbers.
    pub(super) fn home_of(&self, packet: &[u8]) -> Option<usize> {
        let (bth, _) = Bth::parse(packet).ok()?;
        let qpn = bth.dest_qp.get();
        self.shards.iter().position(|shard| {
            let config = shard.engine.config();
            qpn.checked_sub(config.qpn_first).is_some_and(|at| at < config.qpn_count)
        })
    }
}
