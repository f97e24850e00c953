//! The shared buffer of an Ethernet switch, accounted at the ingress.
//!
//! Every port and priority has a small reserve. Beyond it, packets take from a shared pool, up to a
//! threshold that is a fraction of what is left of the pool (a dynamic threshold). Packets that
//! arrive although their sender was told to stop go to the headroom of the port. A packet is
//! dropped only if neither has room. `docs/FABRIC.md` has the formulas.

use alloc::vec;
use alloc::vec::Vec;

/// Priorities of a port.
pub const PRIORITIES: usize = 8;

/// How a switch divides its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferConfig {
    /// Bytes of the whole buffer.
    pub bytes: u64,
    /// Reserve of each port and priority that is used.
    pub reserve: u64,
    /// The threshold is the free part of the pool divided by this power of two, for a port at the
    /// rate of the hosts; each doubling of the rate doubles it.
    pub threshold_shift: u32,
    /// The sender may go on when this much below the threshold.
    pub resume_offset: u64,
    /// Headroom of a port.
    pub headroom: Headroom,
}

/// Room for packets that are on their way when the sender is told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headroom {
    /// So many times what the link holds in one direction.
    Delays(u32),
    /// What the worst case needs: what the link holds in both directions, a frame of the largest
    /// size at each end, and the pause frame.
    WorstCase {
        /// Bytes of the largest frame.
        mtu: u32,
    },
    /// So many bytes.
    Bytes(u64),
}

impl Headroom {
    /// Bytes for a port at a link of this rate and delay.
    pub(crate) fn bytes(self, rate: crate::Rate, delay_ps: u64) -> u64 {
        match self {
            Self::Delays(n) => rate.bytes_in(delay_ps) * u64::from(n),
            Self::WorstCase { mtu } => {
                let pause = u64::from(crate::pfc::FRAME_BYTES);
                2 * rate.bytes_in(delay_ps) + 2 * u64::from(mtu) + pause
            }
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Default for BufferConfig {
    fn default() -> Self {
        Self {
            bytes: 32 << 20,
            reserve: 4 << 10,
            threshold_shift: 3,
            resume_offset: 3 << 10,
            headroom: Headroom::WorstCase { mtu: 9216 },
        }
    }
}

/// Bytes of one port and priority.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    /// In reserve and pool.
    bytes: u64,
    /// In the headroom.
    headroom: u64,
}

/// What a switch needs to know of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortBuffer {
    pub(crate) headroom: u64,
    /// As in [`BufferConfig::threshold_shift`], for the rate of this port.
    pub(crate) threshold_shift: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Buffer {
    config: BufferConfig,
    ports: Vec<PortBuffer>,
    ingress: Vec<[Ingress; PRIORITIES]>,
    /// Bytes of the pool: what neither reserves nor headroom take.
    pool: u64,
    shared_used: u64,
    /// Bytes of all packets.
    pub(crate) used: u64,
}

impl Buffer {
    pub(crate) fn new(config: BufferConfig, ports: Vec<PortBuffer>) -> Self {
        let set_aside: u64 = ports.iter().map(|port| port.headroom + config.reserve).sum();
        let pool = config.bytes.saturating_sub(set_aside);
        let ingress = vec![[Ingress::default(); PRIORITIES]; ports.len()];
        Self { config, ports, ingress, pool, shared_used: 0, used: 0 }
    }

    fn shared(&self, port: usize, priority: usize) -> u64 {
        self.ingress[port][priority].bytes.saturating_sub(self.config.reserve)
    }

    /// Most that a port and priority may take from the pool.
    pub(crate) fn threshold(&self, port: usize) -> u64 {
        self.pool.saturating_sub(self.shared_used) >> self.ports[port].threshold_shift
    }

    /// Takes in a packet that arrived; false if it must be dropped.
    pub(crate) fn admit(&mut self, port: usize, priority: usize, len: u64) -> bool {
        let threshold = self.threshold(port);
        let ingress = self.ingress[port][priority];
        let (shared, grown) = (self.shared(port, priority), ingress.bytes + len);
        let fits_headroom = ingress.headroom + len <= self.ports[port].headroom;
        if !fits_headroom && shared + len > threshold || self.used + len > self.config.bytes {
            return false;
        }
        self.used += len;
        let ingress = &mut self.ingress[port][priority];
        let beyond = grown.saturating_sub(self.config.reserve);
        if beyond > threshold && fits_headroom {
            ingress.headroom += len;
        } else {
            ingress.bytes = grown;
            self.shared_used += beyond - shared;
        }
        true
    }

    /// A packet that arrived at this port leaves the switch.
    pub(crate) fn release(&mut self, port: usize, priority: usize, len: u64) {
        self.used -= len;
        let shared = self.shared(port, priority);
        let ingress = &mut self.ingress[port][priority];
        let from_headroom = ingress.headroom.min(len);
        ingress.headroom -= from_headroom;
        ingress.bytes -= len - from_headroom;
        self.shared_used -= shared - self.shared(port, priority);
    }

    /// Whether the sender should stop.
    pub(crate) fn should_pause(&self, port: usize, priority: usize) -> bool {
        let shared = self.shared(port, priority);
        // Where reserves and headroom leave no pool, the threshold is zero. A port that holds
        // nothing beyond its reserve must not stop its sender then: nothing would let it go on.
        self.ingress[port][priority].headroom > 0 || (shared > 0 && shared >= self.threshold(port))
    }

    /// Whether a sender that was told to stop may go on.
    pub(crate) fn should_resume(&self, port: usize, priority: usize) -> bool {
        let shared = self.shared(port, priority);
        self.ingress[port][priority].headroom == 0
            && (shared == 0 || shared + self.config.resume_offset <= self.threshold(port))
    }
}
