//! Runs seeds of random networks: `fabrics FIRST COUNT`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> =
        std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let Some([first, count]) = numbers.as_deref().and_then(|n| <[u64; 2]>::try_from(n).ok()) else {
        eprintln!("usage: fabrics FIRST COUNT");
        return ExitCode::from(2);
    };
    let (mut failures, mut deadlocks, mut pauses, mut dropped) = (0, 0, 0, 0);
    for seed in first..first.saturating_add(count) {
        match feroce_sim::check_fabric(seed) {
            Ok(outcome) => {
                deadlocks += u32::from(outcome.deadlock.is_some());
                pauses += outcome.pause_count();
                dropped += outcome.totals.dropped_all().packets;
            }
            Err(what) => {
                println!("{what}");
                failures += 1;
            }
        }
    }
    println!("{count} seeds, {failures} failures");
    println!("{deadlocks} deadlocks, {pauses} pauses, {dropped} packets dropped");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
