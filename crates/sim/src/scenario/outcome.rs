//! What came of a run.

use feroce_fabric::{PauseEvent, PortName, PortStats, Time, Topology, Totals};

use super::{Diagnosis, FlowOutcome, Series};

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The flows, in their order.
    pub flows: Vec<FlowOutcome>,
    /// Ports that wait for each other in a circle, if there are any.
    pub deadlock: Option<Vec<PortName>>,
    /// What is wrong.
    pub diagnosis: Diagnosis,
    /// What is connected to what, for the names of nodes.
    pub topology: Topology,
    /// Packets of the fabric.
    pub totals: Totals,
    /// Counts of every port.
    pub ports: Vec<(PortName, PortStats)>,
    /// Pause frames that arrived, if they are recorded.
    pub pauses: Vec<PauseEvent>,
    /// Queues and rates over time, if they are recorded.
    pub series: Option<Series>,
    /// The time of the last event.
    pub at: Time,
    /// Events of hosts: timers and starts.
    pub host_events: u64,
}

impl Outcome {
    /// The slowdowns of all flows that are complete, least first.
    pub fn slowdowns(&self) -> Vec<f64> {
        let mut all: Vec<_> = self.flows.iter().filter_map(FlowOutcome::slowdown).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// When the first flow started.
    pub fn first_start(&self) -> Time {
        self.flows.iter().map(|flow| flow.flow.start).min().unwrap_or_default()
    }

    /// How often a port was told to stop.
    pub fn pause_count(&self) -> u64 {
        self.ports.iter().map(|(_, stats)| stats.pauses).sum()
    }
}

/// The value below which a part `p` of the sorted values lie; `None` without values.
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((p * last as f64).round() as usize).copied()
}
