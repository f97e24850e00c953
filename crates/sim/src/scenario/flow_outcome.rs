//! What came of a flow.

use feroce_engine::WcStatus;
use feroce_fabric::Time;

use super::Flow;

/// What came of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowOutcome {
    /// The flow; its start is when it did start, if it did.
    pub flow: Flow,
    /// Whether it has started: all flows that it waits for have arrived.
    pub is_started: bool,
    /// How long it would take if it were alone, in picoseconds.
    pub ideal_ps: u64,
    /// When its sender knew that it had ended.
    pub ended: Option<Time>,
    /// How it ended.
    pub status: Option<WcStatus>,
}

impl FlowOutcome {
    /// Whether all its bytes arrived.
    pub fn is_complete(&self) -> bool {
        self.status == Some(WcStatus::Success)
    }

    /// How many times longer than alone it took; at least 1.
    pub fn slowdown(&self) -> Option<f64> {
        let duration_ps = self.duration_ps()?;
        Some((duration_ps as f64 / self.ideal_ps.max(1) as f64).max(1.0))
    }

    /// How long it took, in picoseconds: from its start until its last byte was acknowledged.
    pub fn duration_ps(&self) -> Option<u64> {
        self.ended.filter(|_| self.is_complete()).map(|at| at.ps_since(self.flow.start))
    }
}
