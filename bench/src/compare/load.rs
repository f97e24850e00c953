//! The load that other processes put on the machine.

use std::time::Duration;

/// From this share of the processors on, other processes disturb the figures.
const DISTURBING: f64 = 0.05;
/// How long to look. The kernel counts in ticks of 10 ms.
const LOOK: Duration = Duration::from_millis(200);

/// The machine, and how busy other processes kept it while nothing was being measured.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) model: String,
    pub(crate) kernel: String,
    /// Shares of all processors, one for each look.
    looks: Vec<f64>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned());
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            looks: Vec::new(),
        }
    }

    /// Samples the load of other processes for a moment. No measurement may be running.
    #[expect(clippy::disallowed_methods, reason = "the others are watched for a while")]
    pub(crate) fn look(&mut self) {
        let stat = || std::fs::read_to_string("/proc/stat").ok().and_then(|text| ticks(&text));
        let before = stat();
        std::thread::sleep(LOOK);
        if let (Some(before), Some(after)) = (before, stat()) {
            self.looks.push(share(before, after));
        }
    }

    /// The share of the processors that other processes used.
    pub(crate) fn others(&self) -> f64 {
        self.looks.iter().sum::<f64>() / self.looks.len().max(1) as f64
    }

    /// The same, in the worst moment.
    pub(crate) fn others_at_worst(&self) -> f64 {
        self.looks.iter().copied().fold(0.0, f64::max)
    }

    /// Whether other processes disturbed the figures.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others() >= DISTURBING
    }
}

/// Ticks of all processors since the start: busy, which includes what a hypervisor took for other
/// machines, and all.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are in user already.
    let counted = fields.get(..8)?;
    let all: u64 = counted.iter().sum();
    Some((all - counted[3] - counted[4], all))
}

fn share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let passed = |n: u64, since: u64| n.saturating_sub(since) as f64;
    passed(after.0, before.0) / passed(after.1, before.1).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let stat = "cpu  10 1 5 100 20 2 3 4 9 9\ncpu0 1 2 3\n";
        assert_eq!(ticks(stat), Some((25, 145)));
        assert_eq!(ticks("intr 1 2 3"), None);
        assert_eq!(ticks("cpu  1 2 3"), None);
    }

    #[test]
    fn a_share_is_of_what_passed() {
        assert_eq!(share((100, 1000), (150, 1200)), 0.25);
        assert_eq!(share((100, 1000), (100, 1000)), 0.0);
    }
}
