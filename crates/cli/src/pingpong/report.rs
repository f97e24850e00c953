//! The report of a pingpong.

use serde::Serialize;

use super::Plan;
use super::exchange::Address;

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Answers.
    Server,
    /// Begins.
    Client,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Messages that were sent and completed.
    pub(super) sent: u64,
    /// Messages that arrived.
    pub(super) received: u64,
    /// From the first send to the last completion.
    pub(super) seconds: f64,
    /// The user stopped it.
    pub(super) interrupted: bool,
    /// Echoes that differ from the message that was sent.
    pub(super) wrong_echoes: u64,
    /// Pages that did not arrive as sent.
    pub(super) invalid_pages: Vec<usize>,
    /// Times between receive completions.
    pub(super) ticks: Ticks,
}

impl Outcome {
    /// Exchanges: the requested number, unless the user stopped the run earlier.
    fn iters(&self, plan: &Plan) -> u64 {
        if self.interrupted { self.sent.min(self.received) } else { plan.iters }
    }

    /// Whether all checked messages arrived as they were sent.
    pub(super) fn is_valid(&self) -> bool {
        self.wrong_echoes == 0 && self.invalid_pages.is_empty()
    }

    /// The lines that rdma-core's programs print.
    pub(super) fn print(&self, plan: &Plan) {
        let iters = self.iters(plan);
        let (bytes, micros) = (self.bytes(plan), self.seconds * 1e6);
        let seconds = self.seconds;
        if self.interrupted {
            println!("stopped after {iters} of {} exchanges", plan.iters);
        }
        let rate = per(bytes as f64 * 8.0, micros);
        println!("{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec");
        let each = per(micros, iters as f64);
        println!("{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter");
        self.ticks.print();
        for page in &self.invalid_pages {
            println!("invalid data in page {page}");
        }
        if self.wrong_echoes > 0 {
            println!("invalid data in {} of {} messages", self.wrong_echoes, self.received);
        }
    }

    fn bytes(&self, plan: &Plan) -> u64 {
        u64::from(plan.size) * self.iters(plan) * 2
    }
}

/// The quotient, or 0 if the divisor is 0.
fn per(of: f64, by: f64) -> f64 {
    if by > 0.0 { of / by } else { 0.0 }
}

/// Times between completions, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ticks {
    last: Option<u64>,
    count: u64,
    total: u64,
    least: u64,
    most: u64,
}

impl Ticks {
    /// A completion at `now`.
    pub(super) fn add(&mut self, now: u64) {
        if let Some(last) = self.last.replace(now) {
            let delta = now.saturating_sub(last);
            self.least = if self.count == 0 { delta } else { self.least.min(delta) };
            self.most = self.most.max(delta);
            self.total += delta;
            self.count += 1;
        }
    }

    fn average(&self) -> f64 {
        per(self.total as f64, self.count as f64)
    }

    fn print(&self) {
        if self.count > 0 {
            println!("Max receive completion clock cycles = {}", self.most);
            println!("Min receive completion clock cycles = {}", self.least);
            println!("Average receive completion clock cycles = {:.6}", self.average());
        }
    }
}

/// The result of one end, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    test: &'static str,
    role: &'static str,
    device: String,
    gid_index: u16,
    local: Vec<Address>,
    remote: Vec<Address>,
    size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<usize>,
    events: bool,
    iters: u64,
    bytes: u64,
    seconds: f64,
    mbit_per_second: f64,
    usec_per_iter: f64,
    interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_ticks_ns: Option<TicksRecord>,
}

#[derive(Debug, Serialize)]
struct TicksRecord {
    max: u64,
    min: u64,
    average: f64,
}

/// The result of one end.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) role: Role,
    pub(super) device: String,
    pub(super) gid_index: u16,
    pub(super) local: Vec<Address>,
    pub(super) remote: Vec<Address>,
    pub(super) outcome: Outcome,
}

impl Done {
    /// As a JSON object.
    pub(super) fn record(&self, plan: &Plan) -> Record {
        let (outcome, iters) = (&self.outcome, self.outcome.iters(plan));
        let (bytes, micros) = (outcome.bytes(plan), outcome.seconds * 1e6);
        let ticks = &outcome.ticks;
        Record {
            test: plan.kind.test(),
            role: match self.role {
                Role::Server => "server",
                Role::Client => "client",
            },
            device: self.device.clone(),
            gid_index: self.gid_index,
            local: self.local.clone(),
            remote: self.remote.clone(),
            size: plan.size,
            mtu: plan.kind.has_mtu().then_some(plan.mtu.bytes()),
            events: plan.events,
            iters,
            bytes,
            seconds: outcome.seconds,
            mbit_per_second: per(bytes as f64 * 8.0, micros),
            usec_per_iter: per(micros, iters as f64),
            interrupted: outcome.interrupted,
            valid: plan.check.then(|| outcome.is_valid()),
            receive_ticks_ns: (ticks.count > 0).then(|| TicksRecord {
                max: ticks.most,
                min: ticks.least,
                average: ticks.average(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_between_completions() {
        let mut ticks = Ticks::default();
        for now in [10, 15, 30] {
            ticks.add(now);
        }
        assert_eq!((ticks.least, ticks.most, ticks.count), (5, 15, 2));
        assert_eq!(ticks.average(), 10.0);
    }
}
