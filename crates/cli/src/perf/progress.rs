//! A line on the terminal while something is being measured.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::clock;
use super::spec::Amount;

const EVERY: Duration = Duration::from_millis(200);

/// Shows how far a measurement has come, if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    label: String,
    amount: Amount,
    started: Instant,
    next: Instant,
    ticks: u32,
}

impl Progress {
    /// For a measurement of `amount`.
    pub(crate) fn new(label: String, amount: Amount, quiet: bool) -> Self {
        let now = clock::now();
        let shown = !quiet && std::io::stderr().is_terminal();
        Self { shown, label, amount, started: now, next: now + EVERY, ticks: 0 }
    }

    /// `messages` are done.
    #[inline]
    pub(crate) fn tick(&mut self, messages: u64) {
        if self.shown {
            self.ticks = self.ticks.wrapping_add(1);
            if self.ticks.is_multiple_of(64) {
                self.show(messages);
            }
        }
    }

    #[cold]
    fn show(&mut self, messages: u64) {
        let now = clock::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        let share = match self.amount {
            Amount::Messages(n) => messages as f64 / n.max(1) as f64,
            Amount::Seconds(s) => (now - self.started).as_secs_f64() / s,
        };
        let mut err = std::io::stderr();
        let _ = write!(err, "\r{}: {:3.0} %", self.label, (share * 100.0).min(100.0));
        let _ = err.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r{:40}\r", "");
        }
    }
}
