//! `feroce disk stat`: what hosts do with the disks of a target.

use std::time::Duration;

use anyhow::Context as _;
use feroce::cm::Manager;
use feroce_nvme::Host;
use feroce_nvme::wire::Health;
use serde_json::json;

use super::args::StatArgs;
use super::executor::sleep;
use super::open::subsystem;
use super::options;
use crate::perf::clock;
use crate::stop;

/// Prints what a target has counted, once or again and again.
pub(super) async fn run(args: &StatArgs, json: bool) -> anyhow::Result<()> {
    stop::watch()?;
    let (manager, options) = (Manager::new(), options(&args.host)?);
    let nqn = subsystem(&manager, args.address, args.nqn.as_ref(), &options).await?;
    let host = Host::connect(&manager, args.address, &nqn, &options).await;
    let host = host.with_context(|| format!("cannot connect to {nqn} at {}", args.address))?;
    let mut before = host.health().await.context("the target does not tell what it counts")?;
    let Some(interval) = args.interval.and_then(|s| Duration::try_from_secs_f64(s).ok()) else {
        total(&before, json);
        return Ok(host.disconnect().await?);
    };
    if !json {
        println!(
            "{:>9} {:>9} {:>11} {:>12} {:>7}",
            "reads/s", "writes/s", "read MB/s", "write MB/s", "errors"
        );
    }
    let mut asked_at = clock::now();
    let mut left = args.count;
    while left != Some(0) && !stop::requested() {
        sleep(interval).await;
        let (now, at) = (host.health().await?, clock::now());
        rates(&before, &now, (at - asked_at).as_secs_f64(), json);
        (before, asked_at) = (now, at);
        left = left.map(|n| n - 1);
    }
    Ok(host.disconnect().await?)
}

fn total(health: &Health, json: bool) {
    let Health { read_bytes, written_bytes, reads, writes, media_errors } = health;
    if json {
        let line = json!({
            "reads": reads, "read_bytes": read_bytes, "writes": writes,
            "written_bytes": written_bytes, "media_errors": media_errors,
        });
        println!("{line}");
        return;
    }
    println!("{reads} reads of {read_bytes} bytes");
    println!("{writes} writes of {written_bytes} bytes");
    println!("{media_errors} errors of the medium");
    println!("Bytes are counted in units of 512000.");
}

fn rates(before: &Health, now: &Health, seconds: f64, json: bool) {
    let per_s = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
    let (reads, writes) = (per_s(before.reads, now.reads), per_s(before.writes, now.writes));
    let read = per_s(before.read_bytes, now.read_bytes);
    let written = per_s(before.written_bytes, now.written_bytes);
    let errors = now.media_errors.saturating_sub(before.media_errors);
    if json {
        let line = json!({
            "reads_per_s": reads, "read_bytes_per_s": read, "writes_per_s": writes,
            "written_bytes_per_s": written, "media_errors": errors,
        });
        println!("{line}");
        return;
    }
    println!("{reads:>9.0} {writes:>9.0} {:>11.1} {:>12.1} {errors:>7}", read / 1e6, written / 1e6);
}
