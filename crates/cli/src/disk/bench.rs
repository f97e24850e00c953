//! `feroce disk bench`: commands for a disk, many at a time, and how long they take.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use feroce_nvme::{Namespace as _, RemoteNamespace};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::args::BenchArgs;
use super::load::{Amount, Pattern};
use super::open::OpenDisk;
use super::report::{Figures, Row, Table, draw};
use crate::perf::{Sample, clock};
use crate::{plot, stop};

/// What to measure.
#[derive(Clone, Copy, Debug)]
struct Load {
    pattern: Pattern,
    /// Bytes of a command.
    size: usize,
    /// Commands at a time.
    depth: u16,
    /// First block, and how many commands fit behind it.
    first: u64,
    places: u64,
}

/// Numbers that look random, and are the same in each run.
struct Random(u64);

impl Random {
    /// A number less than `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// Measures.
pub(super) async fn run(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    ensure!(
        args.overwrite || !args.pattern.writes(),
        "{} writes to the disk: --overwrite if its contents are not needed",
        args.pattern
    );
    args.plot.as_deref().map_or(Ok(()), plot::prepare)?;
    stop::watch()?;
    // A queue has a place less than entries.
    let most = args.depth.iter().copied().max().unwrap_or(1);
    let each = most.div_ceil(args.queues).saturating_add(1);
    let open = OpenDisk::open_with(&args.disk, args.queues, each).await?;
    let rows = open.explain(measure_all(open.disk(), args, json).await)?;
    open.close().await?;
    match &args.plot {
        Some(path) if !rows.is_empty() => draw(path, &rows),
        _ => Ok(()),
    }
}

async fn measure_all(
    disk: &RemoteNamespace,
    args: &BenchArgs,
    json: bool,
) -> anyhow::Result<Vec<Row>> {
    let table = Table { json };
    table.head(args.disk.address);
    let mut rows = Vec::new();
    for &size in &args.size {
        for &depth in args.depth.iter().take_while(|_| !stop::requested()) {
            let load = load(disk, args, size, depth)?;
            let row = measure(disk, load, args.queues, args.amount()).await?;
            table.row(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What to do, within the part of the disk that the arguments name.
fn load(disk: &RemoteNamespace, args: &BenchArgs, size: usize, depth: u16) -> anyhow::Result<Load> {
    let block = u64::from(disk.block_size());
    ensure!(
        size > 0 && (size as u64).is_multiple_of(block),
        "--size: {size} is not a multiple of {block}, the bytes of a block"
    );
    let first = args.disk.offset / block;
    let behind = disk.blocks().saturating_sub(first).saturating_mul(block);
    let places = args.length.unwrap_or(behind).min(behind) / size as u64;
    ensure!(places > 0, "--length: the part of the disk has no room for {size} bytes");
    Ok(Load { pattern: args.pattern, size, depth, first, places })
}

/// Executes commands, `depth` at a time. The first ones, as many as go at a time, are not measured.
async fn measure(
    disk: &RemoteNamespace,
    load: Load,
    queues: u16,
    amount: Amount,
) -> anyhow::Result<Row> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut sample, mut started, mut ended) = (Sample::new(), 0_u64, 0_u64);
    let depth = u64::from(load.depth);
    let mut buffers: Vec<Vec<u8>> = (0..depth).map(|i| vec![i as u8; load.size]).collect();
    let mut running = FuturesUnordered::new();
    let (mut begin, mut cpu_before) = (clock::now(), clock::cpu_s());
    loop {
        let measured = ended.saturating_sub(depth);
        let is_over = match amount {
            Amount::Commands(n) => measured >= n,
            Amount::Time(time) => measured > 0 && clock::now() - begin >= time,
        };
        while let Some(buffer) = buffers.pop_if(|_| !is_over && !stop::requested()) {
            let place = match load.pattern {
                Pattern::Read | Pattern::Write => started % load.places,
                _ => random.below(load.places),
            };
            let writes = match load.pattern {
                Pattern::Randrw => random.below(2) == 0,
                pattern => pattern.writes(),
            };
            started += 1;
            running.push(command(disk, load, place, writes, buffer));
        }
        let Some((buffer, took)) = running.next().await.transpose()? else { break };
        buffers.push(buffer);
        ended += 1;
        if ended == depth {
            (begin, cpu_before) = (clock::now(), clock::cpu_s());
        } else if ended > depth {
            sample.record(clock::nanos(took));
        }
    }
    let figures = Figures {
        commands: ended.saturating_sub(depth),
        elapsed_s: (clock::now() - begin).as_secs_f64(),
        cpu_s: clock::cpu_s() - cpu_before,
    };
    Ok(Row::new(load.pattern, load.size, load.depth, queues, figures, &sample))
}

async fn command(
    disk: &RemoteNamespace,
    load: Load,
    place: u64,
    writes: bool,
    mut buffer: Vec<u8>,
) -> anyhow::Result<(Vec<u8>, Duration)> {
    let lba = load.first + place * (load.size as u64 / u64::from(disk.block_size()));
    let begin = clock::now();
    if writes {
        disk.write(lba, &buffer).await.context("cannot write the disk")?;
    } else {
        disk.read(lba, &mut buffer).await.context("cannot read the disk")?;
    }
    Ok((buffer, clock::now() - begin))
}
