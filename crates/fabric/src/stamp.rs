//! Switches write the state of their ports into packets, and hosts send it back.

use feroce_train::{Hop, Hops};

use crate::Time;
use crate::fabric::Fabric;
use crate::packet::Packet;
use crate::port::PortId;
use crate::telemetry::{Record, TelemetryConfig};

impl<B> Fabric<B> {
    /// As [`Fabric::inject`]: an answer that carries the records of a packet back to its sender.
    /// Switches add nothing to them.
    ///
    /// # Panics
    /// If there is no such host, or the priority is none.
    pub fn inject_echo(&mut self, now: Time, host: u32, packet: Packet<B>, hops: &Hops) {
        let id = self.take_in(now, packet);
        if self.config.telemetry.is_some() {
            self.telemetry.start(id, Record { hops: *hops, is_echo: true });
        }
        self.enqueue(self.port_of_host(host), id);
    }

    /// What switches wrote into the packet that [`Fabric::poll`] delivered last, or what its sender
    /// sent back; no hops without [`Config::telemetry`](crate::Config::telemetry).
    pub fn telemetry(&self) -> &Hops {
        &self.telemetry.delivered
    }

    /// A host sends a packet.
    pub(crate) fn start_records(&mut self, packet: u32) {
        if self.config.telemetry.is_some() {
            self.telemetry.start(packet, Record::default());
        }
    }

    /// A packet leaves the queue of a port, which has counted it as sent.
    pub(crate) fn stamp(&mut self, id: PortId, packet: u32) {
        let Some(TelemetryConfig { queue_unit, sent_unit }) = self.config.telemetry else { return };
        let port = &self.ports[id as usize];
        if self.is_host(port.node) {
            return;
        }
        let cut = |bytes: u64, unit: u64| bytes - bytes % unit.max(1);
        let hop = Hop {
            at: self.now.into(),
            queue_bytes: cut(port.queued, queue_unit),
            sent_bytes: cut(port.stats.sent.bytes, sent_unit),
            rate_bps: port.rate.bps(),
        };
        let record = &mut self.telemetry.records[packet as usize];
        if !record.is_echo {
            record.hops.push(hop);
        }
    }

    /// A packet reaches its host.
    pub(crate) fn note_delivered(&mut self, packet: u32) {
        if self.config.telemetry.is_some() {
            self.telemetry.delivered = self.telemetry.records[packet as usize].hops;
        }
    }
}
