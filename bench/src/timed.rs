//! What is measured with a clock. Absolute figures are of this machine at this moment; ratios
//! are taken between neighbours in time, so that load from elsewhere falls on both.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use crate::Effort;
use crate::pair::{DEPTH, Pair, Verb, bulk, round_robin, small_writes};
use crate::report::{Figure, Wanted};

const MIB: usize = 1 << 20;

/// Seconds of processor time that `work` takes. There is one thread and it never waits, so this is
/// the time on the clock less what the machine gave to others.
fn seconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let start = now();
    work();
    now() - start
}

/// 8-byte WRITEs per second.
pub(crate) fn writes(effort: Effort) -> Vec<Figure> {
    let count = 32 * DEPTH;
    let mut pair = Pair::new(MIB, 1);
    let mut figure = |name: &str, depth: u32, signal_every: u32| {
        small_writes(&mut pair, count, depth, signal_every);
        let samples = (0..effort.samples())
            .map(|_| {
                let time = seconds(|| small_writes(&mut pair, count, depth, signal_every));
                f64::from(count) / time / 1e6
            })
            .collect();
        pair.assert_clean();
        Figure::new(format!("8-byte WRITE, {name}"), "M/s", samples)
    };
    vec![
        figure("128 deep, each signalled", DEPTH, 1).wanted(Wanted::AtLeast(3.0)),
        figure("128 deep, every 64th signalled", DEPTH, 64).wanted(Wanted::AtLeast(3.0)),
        figure("1 deep, each acknowledged", 1, 1),
    ]
}

/// 1 MiB messages against memcpy.
pub(crate) fn bandwidth(effort: Effort) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (memory, place) in [(MIB, "in cache"), (64 * MIB, "in memory")] {
        for (verb, name) in [(Verb::Write, "WRITE"), (Verb::Read, "READ")] {
            let (speeds, ratios, copies) = against_memcpy(effort, verb, memory);
            let name = format!("1 MiB {name}, {place}");
            let ratio = Figure::new(format!("{name}: of memcpy"), "ratio", ratios);
            figures.push(ratio.wanted(Wanted::AtLeast(0.5)));
            figures.push(Figure::new(format!("{name}: speed"), "GB/s", speeds));
            figures.push(Figure::new(format!("{name}: memcpy beside it"), "GB/s", copies));
        }
    }
    figures
}

/// Alternates transfers and copies between memories of the same size: GB/s of the transfers,
/// their ratios to the copies next to them, GB/s of the copies.
fn against_memcpy(effort: Effort, verb: Verb, memory: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    // As many as go without a look at the completions between them, twice.
    let count = 8;
    let mut pair = Pair::new(memory, 1);
    let (from, mut to) = (vec![1_u8; memory], vec![2_u8; memory]);
    let (mut there, mut here) = (0, 0);
    let mut transfer = || seconds(|| bulk(&mut pair, verb, count as u32, MIB as u32, &mut there));
    let mut copy = || {
        seconds(|| {
            for _ in 0..count {
                let at = here;
                here = (here + MIB) % memory;
                to[at..at + MIB].copy_from_slice(&from[at..at + MIB]);
                black_box(&mut to);
            }
        })
    };
    transfer();
    copy();
    let speed = |time: f64| (count * MIB) as f64 / time / 1e9;
    let (mut speeds, mut ratios, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.samples() / 3 {
        let (ours, theirs) = (transfer(), copy());
        speeds.push(speed(ours));
        ratios.push(theirs / ours);
        copies.push(speed(theirs));
    }
    pair.assert_clean();
    (speeds, ratios, copies)
}

/// The cost of a message with many connections over that with few.
pub(crate) fn scale(effort: Effort) -> Vec<Figure> {
    const FEW: usize = 10;
    const MANY: usize = 10_000;
    let count = 4000;
    let (mut few, mut many) = (Pair::new(MIB, FEW), Pair::new(MIB, MANY));
    let (mut next_few, mut next_many) = (0, 0);
    round_robin(&mut few, count, FEW as u32, &mut next_few);
    // Each connection once at least, so that its queues have their memory.
    round_robin(&mut many, MANY as u32, FEW as u32, &mut next_many);
    let (mut costs_few, mut costs_many, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.samples() {
        let with_few = seconds(|| round_robin(&mut few, count, FEW as u32, &mut next_few));
        let with_many = seconds(|| round_robin(&mut many, count, FEW as u32, &mut next_many));
        costs_few.push(with_few / f64::from(count) * 1e9);
        costs_many.push(with_many / f64::from(count) * 1e9);
        ratios.push(with_many / with_few);
    }
    few.assert_clean();
    many.assert_clean();
    vec![
        Figure::new("8-byte WRITE, 10 QPs in turn", "ns", costs_few),
        Figure::new("8-byte WRITE, 10000 QPs in turn", "ns", costs_many),
        Figure::new("cost with 10000 QPs over 10", "ratio", ratios),
    ]
}
