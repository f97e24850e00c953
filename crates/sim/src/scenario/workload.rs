//! Traffic: sizes from a distribution, arrivals at random, and the steps of collectives.

use std::path::Path;

use fastrand::Rng;
use feroce_fabric::Rate;

use super::lines::{self, ReadError};

/// Sizes of flows: a size and how many per cent of the flows are at most as large, linear between.
#[derive(Clone, PartialEq, Debug)]
pub struct Cdf {
    points: Vec<(f64, f64)>,
}

impl Cdf {
    /// Reads a file that has a size and per cent in each line, as HPCC's traffic generator does.
    pub fn read(file: &Path) -> Result<Self, ReadError> {
        let error = |line, what: &str| ReadError::new(file, line, what);
        let text = lines::read(file)?;
        let mut points: Vec<(f64, f64)> = Vec::new();
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        for (n, line) in lines {
            let numbers: Vec<Option<f64>> =
                line.split_whitespace().map(|word| word.parse().ok()).collect();
            let [Some(size), Some(percent)] = numbers[..] else {
                return Err(error(n, "expected a size and per cent"));
            };
            let (last_size, last_percent) = points.last().copied().unwrap_or((0.0, 0.0));
            let grows = size >= last_size && percent >= last_percent;
            if !grows || !(0.0..=100.0).contains(&percent) || !size.is_finite() {
                return Err(error(n, "sizes and per cent must not fall, and end at 100"));
            }
            points.push((size, percent));
        }
        match points.as_slice() {
            [first, .., last] if first.1 == 0.0 && last.1 == 100.0 && last.0 >= 1.0 => {
                Ok(Self { points })
            }
            _ => Err(error(text.lines().count(), "the lines must go from 0 to 100 per cent")),
        }
    }

    /// The mean size in bytes.
    pub fn mean(&self) -> f64 {
        let part = |pair: &[(f64, f64)]| (pair[0].0 + pair[1].0) / 2.0 * (pair[1].1 - pair[0].1);
        self.points.windows(2).map(part).sum::<f64>() / 100.0
    }

    /// The size below which a part `p` of the flows are, from 0 to 1; at least one byte.
    pub fn quantile(&self, p: f64) -> u64 {
        let percent = p * 100.0;
        let end = self.points.partition_point(|point| point.1 <= percent);
        let end = end.clamp(1, self.points.len() - 1);
        let ((a, from), (b, to)) = (self.points[end - 1], self.points[end]);
        let size = if to > from { a + (b - a) * (percent - from) / (to - from) } else { b };
        (size as u64).max(1)
    }
}

/// A flow between two hosts, given by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The host that sends.
    pub from: u32,
    /// The host that receives.
    pub to: u32,
    /// Bytes.
    pub bytes: u64,
    /// When it starts at the earliest, in picoseconds.
    pub start_ps: u64,
    /// The steps that must have arrived before, by their places in the list.
    pub after: Vec<usize>,
}

/// Traffic that arrives at random.
#[derive(Clone, Copy, Debug)]
pub struct Poisson<'a> {
    /// Sizes.
    pub cdf: &'a Cdf,
    /// The part of each host's rate that it sends on average.
    pub load: f64,
    /// How long new flows arrive.
    pub duration_ps: u64,
    /// What is random follows from it.
    pub seed: u64,
}

impl Poisson<'_> {
    /// Draws the flows of hosts with these rates, in the order of their starts. Every host sends to
    /// all others alike.
    pub fn draw(&self, rates: &[Rate]) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut rng = Rng::with_seed(self.seed);
        let hosts = rates.len() as u32;
        for (from, rate) in (0..hosts).zip(rates).filter(|_| hosts > 1) {
            let gap_ps = self.cdf.mean() * 8e12 / (self.load * rate.bps() as f64);
            let mut at = 0.0;
            loop {
                at += gap_ps * exponential(&mut rng);
                if at >= self.duration_ps as f64 {
                    break;
                }
                let to = (from + rng.u32(1..hosts)) % hosts;
                let bytes = self.cdf.quantile(rng.f64());
                steps.push(Step { from, to, bytes, start_ps: at as u64, after: Vec::new() });
            }
        }
        steps.sort_by_key(|step| (step.start_ps, step.from));
        steps
    }
}

/// A random number from the exponential distribution with mean 1, by von Neumann's method: it only
/// compares and adds, so that all machines get the same bits, which logarithms do not promise.
fn exponential(rng: &mut Rng) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = rng.f64();
        let (mut last, mut run) = (first, 1);
        loop {
            let next = rng.f64();
            if next >= last {
                break;
            }
            (last, run) = (next, run + 1);
        }
        if run % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

/// All hosts but one send to it.
pub fn incast(hosts: u32, to: u32, bytes: u64) -> Vec<Step> {
    all_at_once((0..hosts).map(|from| (from, to)), bytes)
}

/// Every host sends to the one `shift` further.
pub fn shift(hosts: u32, shift: u32, bytes: u64) -> Vec<Step> {
    let to = |from: u32| ((u64::from(from) + u64::from(shift)) % u64::from(hosts.max(1))) as u32;
    all_at_once((0..hosts).map(|from| (from, to(from))), bytes)
}

/// Every host sends to one other, drawn at random, and receives from one.
pub fn permutation(hosts: u32, seed: u64, bytes: u64) -> Vec<Step> {
    let mut order: Vec<u32> = (0..hosts).collect();
    Rng::with_seed(seed).shuffle(&mut order);
    // One circle through all hosts: none sends to itself.
    let next = order.iter().copied().cycle().skip(1);
    let mut pairs: Vec<_> = order.iter().copied().zip(next).collect();
    pairs.sort_unstable();
    all_at_once(pairs.into_iter(), bytes)
}

/// Every host sends to every other.
pub fn all_to_all(hosts: u32, bytes: u64) -> Vec<Step> {
    all_at_once((0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))), bytes)
}

fn all_at_once(pairs: impl Iterator<Item = (u32, u32)>, bytes: u64) -> Vec<Step> {
    let step = |(from, to)| Step { from, to, bytes, ..Step::default() };
    pairs.filter(|(from, to)| from != to).map(step).collect()
}

/// All-reduce in a ring: a part of the bytes goes from host to host, twice round less one host
/// each. A host passes a part on when it has arrived.
pub fn all_reduce_ring(hosts: u32, bytes: u64) -> Vec<Step> {
    let n = hosts as usize;
    if n < 2 {
        return Vec::new();
    }
    let part = bytes.div_ceil(n as u64);
    let mut steps = Vec::with_capacity(2 * (n - 1) * n);
    for round in 0..2 * (n - 1) {
        for from in 0..n {
            let before = (from + n - 1) % n;
            let after = round.checked_sub(1).map(|last| last * n + before);
            steps.push(Step {
                from: from as u32,
                to: ((from + 1) % n) as u32,
                bytes: part,
                start_ps: 0,
                after: after.into_iter().collect(),
            });
        }
    }
    steps
}

/// All-reduce in a butterfly: pairs of hosts at half the distance each time exchange half as much
/// each time, then the same back. `None` unless the number of hosts is a power of two.
pub fn all_reduce_butterfly(hosts: u32, bytes: u64) -> Option<Vec<Step>> {
    if !hosts.is_power_of_two() {
        return None;
    }
    let rounds = hosts.trailing_zeros();
    let mut steps: Vec<Step> = Vec::new();
    // Distances, and how often the bytes were halved: there and back.
    let there = (1..=rounds).map(|halved| (hosts >> halved, halved));
    let back = (1..=rounds).rev().map(|halved| (hosts >> halved, halved));
    let mut last_distance = None;
    for (distance, halved) in there.chain(back) {
        let first = steps.len();
        for from in 0..hosts {
            // What the host has received in the round before.
            let received = |last: u32| first - hosts as usize + (from ^ last) as usize;
            steps.push(Step {
                from,
                to: from ^ distance,
                bytes: bytes.div_ceil(1 << halved),
                start_ps: 0,
                after: last_distance.map(received).into_iter().collect(),
            });
        }
        last_distance = Some(distance);
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform() -> Cdf {
        Cdf { points: vec![(0.0, 0.0), (1000.0, 50.0), (9000.0, 100.0)] }
    }

    #[test]
    fn a_distribution_has_its_mean_and_its_quantiles() {
        let cdf = uniform();
        assert_eq!(cdf.mean(), 0.5 * 500.0 + 0.5 * 5000.0);
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|p| cdf.quantile(p)),
            [1, 500, 1000, 5000, 9000]
        );
    }

    #[test]
    fn random_traffic_has_its_load_and_exponential_gaps() {
        let cdf = uniform();
        let poisson = Poisson { cdf: &cdf, load: 0.5, duration_ps: 20_000_000_000, seed: 3 };
        let rates = [Rate::from_gbps(10); 8];
        let steps = poisson.draw(&rates);
        assert_eq!(steps, poisson.draw(&rates));
        assert_ne!(steps, Poisson { seed: 4, ..poisson }.draw(&rates));
        let bytes: u64 = steps.iter().map(|step| step.bytes).sum();
        // 8 hosts at half of 10 Gb/s for 20 ms.
        let load = bytes as f64 / (8.0 * 10e9 / 8.0 * 0.02);
        assert!((0.47..0.53).contains(&load), "{load}");
        assert!(steps.iter().all(|step| step.from != step.to && step.to < 8));
        // Of exponential gaps a part 1/e is longer than the mean.
        let mut rng = Rng::with_seed(1);
        let draws: Vec<f64> = (0..20_000).map(|_| exponential(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let long = draws.iter().filter(|&&x| x > 1.0).count() as f64 / 20_000.0;
        assert!((0.98..1.02).contains(&mean) && (0.357..0.379).contains(&long), "{mean} {long}");
    }

    #[test]
    fn collectives_move_as_many_bytes_as_they_must() {
        for (hosts, steps) in [
            (8, all_reduce_ring(8, 8000)),
            (8, all_reduce_butterfly(8, 8000).expect("a power of two")),
        ] {
            for host in 0..hosts {
                let sent = steps.iter().filter(|step| step.from == host).map(|step| step.bytes);
                assert_eq!(sent.sum::<u64>(), 2 * 7 * 1000);
            }
            for (i, step) in steps.iter().enumerate() {
                // A host passes on what it has received, and waits for nothing else.
                assert!(step.after.iter().all(|&j| j < i && steps[j].to == step.from), "{i}");
                assert_eq!(step.after.is_empty(), i < 8);
            }
        }
        assert_eq!(all_reduce_butterfly(6, 1), None);
        let random = permutation(9, 5, 1);
        let mut to: Vec<_> = random.iter().map(|step| step.to).collect();
        to.sort_unstable();
        assert_eq!(to, (0..9).collect::<Vec<_>>());
        assert_eq!(
            incast(4, 1, 1).len() + shift(4, 2, 1).len() + all_to_all(4, 1).len(),
            3 + 4 + 12
        );
    }
}
