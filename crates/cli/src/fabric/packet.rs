//! Packets of programs inside a fabric.

use std::rc::Rc;

use feroce_fabric::{FlowKey, Packet, PriorityMap};
use feroce_link::port::{Record, wire_len};
use feroce_train::RxMeta;
use feroce_wire::{Gid, ROCE_UDP_PORT};

/// Packets that a program sent together: of one length, but for the last, and with the same
/// headers.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) meta: RxMeta,
    stride: usize,
    bytes: Vec<u8>,
}

impl Run {
    pub(super) fn new(record: &Record<'_>) -> Self {
        let Record { meta, stride, bytes, .. } = *record;
        Self { meta, stride, bytes: bytes.to_vec() }
    }

    /// How many packets there are.
    pub(super) fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.stride)
    }

    /// Some of the packets, one after the other.
    pub(super) fn packets(&self, from: usize, count: usize) -> &[u8] {
        let (start, end) = (from * self.stride, (from + count) * self.stride);
        self.bytes.get(start..end.min(self.bytes.len())).unwrap_or_default()
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }
}

/// One packet of a run.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) run: Rc<Run>,
    pub(super) index: usize,
}

impl Body {
    /// The packet from BTH to ICRC.
    pub(super) fn bytes(&self) -> &[u8] {
        self.run.packets(self.index, 1)
    }

    /// The packet as the fabric sees it, to the host with the number `to`.
    pub(super) fn packet(self, to: u32, map: &PriorityMap) -> Packet<Self> {
        let meta = &self.run.meta;
        Packet {
            to,
            len: wire_len(meta, self.bytes().len()) + map.tag_len(),
            priority: map.priority(meta.traffic_class, meta.sl),
            ecn: meta.ecn,
            key: FlowKey {
                src: low_bits(meta.src.gid),
                dst: low_bits(meta.dst.gid),
                ports: u32::from(ROCE_UDP_PORT) << 16 | u32::from(meta.udp_sport),
            },
            body: self,
        }
    }
}

/// What tells addresses of hosts apart.
fn low_bits(gid: Gid) -> u32 {
    gid.0.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// A run of packets that is on its way to a process.
#[derive(Clone, Debug)]
pub(super) struct Arriving {
    body: Body,
    count: usize,
    /// Their headers, marks included.
    meta: RxMeta,
    /// When the last one arrives, by the system's clock.
    at_ns: u64,
}

/// Packets that arrive within this time are delivered together, when the last of them has arrived:
/// as adapters that merge packets do it.
const TOGETHER_NS: u64 = 20_000;

impl Arriving {
    pub(super) fn new(packet: Packet<Body>, at_ns: u64) -> Self {
        let meta = RxMeta { ecn: packet.ecn, ..packet.body.run.meta };
        Self { body: packet.body, count: 1, meta, at_ns }
    }

    /// Takes one more packet, if it follows the others in the same run.
    pub(super) fn join(&mut self, next: &Self) -> bool {
        let follows = Rc::ptr_eq(&self.body.run, &next.body.run)
            && self.body.index + self.count == next.body.index
            && self.meta == next.meta
            && next.at_ns.saturating_sub(self.at_ns) <= TOGETHER_NS / (self.count as u64 + 1);
        if follows {
            self.count += 1;
            self.at_ns = next.at_ns;
        }
        follows
    }

    /// The packets, to be written to a message.
    pub(super) fn record(&self) -> Record<'_> {
        let run = &self.body.run;
        Record {
            at_ns: self.at_ns,
            meta: self.meta,
            stride: run.stride(),
            bytes: run.packets(self.body.index, self.count),
        }
    }
}
