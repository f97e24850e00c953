//! Headings, times and the table at the end.

use core::time::Duration;
use std::time::Instant;

use super::Done;
use super::steps::Step;
use crate::{Failure, Outcome};

/// The whole run is to stay below this on two cores.
const BUDGET: Duration = Duration::from_mins(30);

/// What happened so far.
pub(crate) struct Report {
    total: usize,
    begun: usize,
    started: Instant,
    step_started: Instant,
    rows: Vec<(&'static str, Duration, String)>,
    highlights: Vec<String>,
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn new(total: usize) -> Self {
        let started = now();
        Self {
            total,
            begun: 0,
            started,
            step_started: started,
            rows: Vec::new(),
            highlights: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self, step: &Step) {
        self.begun += 1;
        self.step_started = now();
        println!("\n==> [{}/{}] {}: {}", self.begun, self.total, step.name, step.about);
    }

    pub(crate) fn end(&mut self, step: &Step, result: Outcome<Done>) {
        let took = now().duration_since(self.step_started);
        let verdict = match result {
            Ok(Done::Ran(lines)) => {
                self.highlights.extend(lines);
                "ok".to_owned()
            }
            Ok(Done::Skipped(why)) => format!("skipped: {why}"),
            Err(Failure::Failed(message) | Failure::Usage(message)) => {
                self.failures.push(format!("{}: {message}", step.name));
                "FAILED".to_owned()
            }
        };
        println!("<== {}: {verdict} ({})", step.name, clock(took));
        self.rows.push((step.name, took, verdict));
    }

    /// Prints the table; fails if a step failed.
    pub(crate) fn finish(self) -> Outcome {
        println!("\n==> summary");
        self.highlights.iter().for_each(|line| println!("{line}"));
        for (name, took, verdict) in &self.rows {
            println!("{name:<9} {:>7}  {verdict}", clock(*took));
        }
        let not_run = self.total - self.rows.len();
        if not_run > 0 {
            println!("{not_run} steps were not run");
        }
        let took = now().duration_since(self.started);
        println!("total     {:>7}  (budget {})", clock(took), clock(BUDGET));
        if took > BUDGET {
            println!("WARNING: over the budget; make something faster before adding more");
        }
        if self.failures.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(self.failures.join("\nxtask: ")))
    }
}

#[expect(clippy::disallowed_methods, reason = "this tool times the steps for a person")]
fn now() -> Instant {
    Instant::now()
}

/// `75.3 s` as `1m15s`, and short times with a decimal.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        return format!("{:.1}s", time.as_secs_f64());
    }
    format!("{}m{:02}s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(clock(Duration::from_millis(1250)), "1.2s");
        assert_eq!(clock(Duration::from_secs(75)), "1m15s");
        assert_eq!(clock(BUDGET), "30m00s");
    }
}
