//! A host: an engine, its address, and how its link drives it.

use feroce_engine::Engine;
use feroce_testkit::as_trains;
use feroce_train::{Instant, LinkCaps, RxTrain};
use feroce_wire::Gid;

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

/// See the module documentation.
#[derive(Debug)]
pub struct Host {
    /// The engine.
    pub engine: Engine,
    /// Its address.
    pub gid: Gid,
    /// How it is driven.
    pub style: Style,
    /// When its timer event is due.
    pub(super) timer_at: Option<Instant>,
    /// When its link is free again.
    pub(super) link_free_at: Option<Instant>,
}

impl Host {
    /// A host whose engine has this address.
    pub fn new(engine: Engine, gid: Gid, style: Style) -> Self {
        Self { engine, gid, style, timer_at: None, link_free_at: None }
    }

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
