//! Times of steps.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::Say;

/// The steps, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    CreateId,
    Bind,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    Connect,
    Disconnect,
    Destroy,
}

impl Step {
    const ALL: [Self; 8] = [
        Self::CreateId,
        Self::Bind,
        Self::ResolveAddr,
        Self::ResolveRoute,
        Self::CreateQp,
        Self::Connect,
        Self::Disconnect,
        Self::Destroy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::CreateId => "create id",
            Self::Bind => "bind addr",
            Self::ResolveAddr => "resolve addr",
            Self::ResolveRoute => "resolve route",
            Self::CreateQp => "create qp",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::Destroy => "destroy",
        }
    }
}

/// The times of one step.
#[derive(Clone, Debug, Default)]
struct Times {
    /// For all connections together.
    total: Duration,
    /// For each.
    each: Vec<Duration>,
}

impl Times {
    /// A percentile of the times of the connections.
    fn percentile(&self, part: f64) -> f64 {
        let mut sorted = self.each.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(at.max(1) - 1).map_or(0.0, micros)
    }

    fn micros_each(&self) -> f64 {
        micros(&self.total) / self.each.len().max(1) as f64
    }

    fn rate(&self) -> f64 {
        if self.each.is_empty() { 0.0 } else { 1e6 / self.micros_each() }
    }
}

fn micros(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The times of all steps.
#[derive(Debug)]
pub(super) struct Steps {
    times: [Times; Step::ALL.len()],
    binds: bool,
}

impl Steps {
    pub(super) fn new(binds: bool) -> Self {
        Self { times: Default::default(), binds }
    }

    /// Records that one connection has completed a step that it began at the given time.
    pub(super) fn add(&mut self, step: Step, since: Instant) {
        self.times[step as usize].each.push(since.elapsed());
    }

    /// Records that all connections have completed a step.
    pub(super) fn finish(&mut self, step: Step, since: Instant) {
        self.times[step as usize].total = since.elapsed();
    }

    fn of(&self, step: Step) -> &Times {
        &self.times[step as usize]
    }

    /// The table of rdma-core's program, with two additional columns.
    pub(super) fn print(&self, say: Say) {
        say.line(
            "step              total ms     max ms     min us  us / conn     p50 us     p99 us",
        );
        for step in Step::ALL.into_iter().filter(|step| *step != Step::Bind || self.binds) {
            let times = self.of(step);
            say.line(&format!(
                "{:<13}: {:>11.2}{:>11.2}{:>11.2}{:>11.2}{:>11.2}{:>11.2}",
                step.name(),
                micros(&times.total) / 1e3,
                times.percentile(1.0) / 1e3,
                times.percentile(0.0),
                times.micros_each(),
                times.percentile(0.5),
                times.percentile(0.99),
            ));
        }
        let connect = self.of(Step::Connect);
        say.line(&format!("{} connections: {:.0} per second", connect.each.len(), connect.rate()));
    }

    pub(super) fn record(&self, connections: u32) -> Value {
        let step = |step: &Step| {
            let times = self.of(*step);
            let value = json!({
                "done": times.each.len(), "total_ms": micros(&times.total) / 1e3,
                "max_us": times.percentile(1.0), "min_us": times.percentile(0.0),
                "us_per_connection": times.micros_each(),
                "p50_us": times.percentile(0.5), "p99_us": times.percentile(0.99),
            });
            (step.name().replace(' ', "_"), value)
        };
        let steps: serde_json::Map<_, _> = Step::ALL.iter().map(step).collect();
        json!({
            "test": "cmtime", "role": "client", "connections": connections, "steps": steps,
            "connections_per_second": self.of(Step::Connect).rate(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let each = (1..=100).rev().map(Duration::from_micros).collect();
        let times = Times { total: Duration::from_millis(1), each };
        let rounded = |part| times.percentile(part).round() as u32;
        assert_eq!((rounded(0.0), rounded(0.5), rounded(0.99), rounded(1.0)), (1, 50, 99, 100));
        assert_eq!(times.rate().round(), 100_000.0);
        assert_eq!((Times::default().percentile(0.5), Times::default().rate()), (0.0, 0.0));
    }
}
