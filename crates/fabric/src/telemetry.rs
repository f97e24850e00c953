//! What switches write into packets about their ports, and what hosts send back.

use alloc::vec::Vec;

use feroce_train::Hops;

/// How exactly switches write what they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TelemetryConfig {
    /// Unit of the length of a queue in bytes, at least 1: what is less is cut off.
    pub queue_unit: u64,
    /// Unit of the bytes that a port has sent.
    pub sent_unit: u64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { queue_unit: 1, sent_unit: 1 }
    }
}

/// The records of every packet in the fabric, beside the packets: without telemetry they take no
/// room.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    /// By the index of the packet.
    pub(crate) records: Vec<Record>,
    /// The records of the packet that was delivered last.
    pub(crate) delivered: Hops,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(crate) hops: Hops,
    /// It carries records back: switches add nothing.
    pub(crate) is_echo: bool,
}

impl Telemetry {
    pub(crate) fn start(&mut self, packet: u32, record: Record) {
        let index = packet as usize;
        if self.records.len() <= index {
            self.records.resize(index + 1, Record::default());
        }
        self.records[index] = record;
    }
}
