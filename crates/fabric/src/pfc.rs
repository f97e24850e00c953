//! Priority flow control: what pause frames say, and when they are sent.

use crate::Time;
use crate::topology::NodeId;

/// Bytes that a pause frame takes on the link: 64, and 20 for preamble and gap.
pub(crate) const FRAME_BYTES: u32 = 84;

/// Bits in a quantum, the unit of time in a pause frame.
const QUANTUM_BITS: u128 = 512;

/// How pause frames are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PfcConfig {
    /// Priorities that may be paused, a bit each.
    pub priorities: u8,
    /// How long a pause frame stops the sender, in units of 512 bit times; it is repeated when half
    /// of that is over. `None`: until the next frame says otherwise.
    pub quanta: Option<u16>,
    /// A priority that has been paused for so long, without a break, loses its packets until the
    /// pause ends (the watchdog of the port).
    pub watchdog_ps: Option<u64>,
}

impl Default for PfcConfig {
    fn default() -> Self {
        Self { priorities: 0xff, quanta: Some(u16::MAX), watchdog_ps: None }
    }
}

impl PfcConfig {
    /// Whether a priority may be paused.
    #[inline]
    pub(crate) fn covers(&self, priority: u8) -> bool {
        self.priorities & (1 << priority) != 0
    }

    /// How long a frame stops a sender of this rate.
    pub(crate) fn pause_ps(&self, rate: crate::Rate) -> Option<u64> {
        let bits = u128::from(self.quanta?) * QUANTUM_BITS;
        Some((bits * 1_000_000_000_000 / u128::from(rate.bps())) as u64)
    }
}

/// A pause frame has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseEvent {
    /// When.
    pub at: Time,
    /// The node that it reached.
    pub node: NodeId,
    /// Whether that is a host.
    pub is_host: bool,
    /// The port of the node.
    pub port: usize,
    /// The priority.
    pub priority: u8,
    /// Whether it must stop or may go on.
    pub is_on: bool,
}
