//! Which flows wait for which.

use super::Scenario;

/// Flows that wait until others have arrived.
#[derive(Debug)]
pub(super) struct Order {
    /// By flow: how many it still waits for.
    awaits: Vec<u32>,
    /// By flow: those that wait for it.
    followers: Vec<Vec<u32>>,
}

impl Order {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let flows = scenario.flows.len();
        let (mut awaits, mut followers) = (vec![0; flows], vec![Vec::new(); flows]);
        for &(flow, before) in &scenario.after {
            awaits[flow] += 1;
            followers[before].push(flow as u32);
        }
        Self { awaits, followers }
    }

    /// How many flows this one still waits for.
    pub(super) fn awaits(&self, flow: usize) -> u32 {
        self.awaits[flow]
    }

    /// Whether another flow waits for this one.
    pub(super) fn is_awaited(&self, flow: usize) -> bool {
        !self.followers[flow].is_empty()
    }

    /// A flow has arrived: the flows that wait for nothing else now.
    pub(super) fn arrived(&mut self, flow: usize) -> Vec<usize> {
        let awaits = &mut self.awaits;
        let followers = core::mem::take(&mut self.followers[flow]).into_iter();
        followers
            .map(|next| next as usize)
            .filter(|&next| {
                awaits[next] -= 1;
                awaits[next] == 0
            })
            .collect()
    }
}
