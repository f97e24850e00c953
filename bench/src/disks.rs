//! Remote disks: 4 KiB random reads and 128 KiB sequential reads of a disk in memory that another
//! process of this machine serves, by `feroce disk` against Debian's tgt and libiscsi over TCP, and
//! against `feroce perf write bw`.
//!
//! The rows alternate, round by round, because a shared machine is not the same from one minute to
//! the next; a figure is the best of all rounds. Ratios are of the disk in memory to the row.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::Value;

/// Bytes of a disk, as an argument and as a number.
const SIZE: (&str, u64) = ("64M", 64 << 20);

/// Where feroce serves, and the port and the control number of tgt, which no other is likely to
/// have.
const FEROCE: &str = "127.0.0.1:44200";
const PORTAL: &str = "127.0.0.1:32600";
const CONTROL: &str = "77";
const TARGET: &str = "iqn.2026-11.feroce:bench";

/// Compares remote disks.
#[derive(Parser)]
struct Args {
    /// The command `feroce`, as it is measured.
    #[arg(long)]
    feroce: PathBuf,
    /// Rounds of each row.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each figure.
    #[arg(long, default_value_t = 1)]
    seconds: u32,
}

/// What serves the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Row {
    /// `feroce disk serve --memory`: data is copied once.
    Memory,
    /// With `--direct`: it is not.
    Direct,
    /// A file in memory.
    File,
    /// tgt, a file in memory.
    Tgt,
    /// No disk: `feroce perf write bw` with messages of 128 KiB.
    Write,
}

const ROWS: [Row; 5] = [Row::Memory, Row::Direct, Row::File, Row::Tgt, Row::Write];

/// What one round has measured; each is better if greater.
#[derive(Clone, Copy, Default, Debug)]
struct Figures {
    /// Commands per second, with one and with 32 under way.
    random: [f64; 2],
    mib_per_s: f64,
}

impl Figures {
    fn best(self, other: Self) -> Self {
        Self {
            random: [self.random[0].max(other.random[0]), self.random[1].max(other.random[1])],
            mib_per_s: self.mib_per_s.max(other.mib_per_s),
        }
    }
}

/// Ends with the round.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file in memory that ends with the measurement.
struct Disk(PathBuf);

impl Disk {
    fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/dev/shm/feroce-bench-{}.img", std::process::id()));
        // All of it is there: a hole would be faster.
        std::fs::write(&path, vec![1; usize::try_from(SIZE.1)?])?;
        Ok(Self(path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let disk = Disk::new()?;
    let mut best = ROWS.map(|_| Figures::default());
    for _ in 0..args.rounds {
        for (row, best) in ROWS.into_iter().zip(&mut best) {
            let figures = match row {
                Row::Memory => feroce(&args, &["--memory", SIZE.0])?,
                Row::Direct => feroce(&args, &["--memory", SIZE.0, "--direct"])?,
                Row::File => feroce(&args, &[disk.0.to_str().context("a path")?])?,
                Row::Tgt => tgt(&args, &disk.0)?,
                Row::Write => write(&args)?,
            };
            *best = best.best(figures);
        }
    }
    print(&best);
    Ok(())
}

fn print(best: &[Figures]) {
    println!(
        "{:<8} {:>14} {:>6} {:>14} {:>6} {:>16} {:>6}",
        "", "4K depth 1 [/s]", "ratio", "depth 32 [/s]", "ratio", "128K [MiB/s]", "ratio"
    );
    let Some(first) = best.first().copied() else { return };
    for (row, figures) in ROWS.iter().zip(best) {
        let Figures { random: [one, many], mib_per_s } = *figures;
        println!(
            "{:<8} {one:>14.0} {:>6.2} {many:>14.0} {:>6.2} {mib_per_s:>16.0} {:>6.2}",
            format!("{row:?}").to_lowercase(),
            first.random[0] / one,
            first.random[1] / many,
            first.mib_per_s / mib_per_s,
        );
    }
    println!("ratios: of the first row to this one; more is better");
}

fn feroce(args: &Args, disk: &[&str]) -> Result<Figures> {
    let mut command = Command::new(&args.feroce);
    command.args(["--json", "disk", "serve", "--listen", FEROCE]).args(disk);
    let mut peer = Peer(command.stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    BufReader::new(peer.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
    ensure!(line.contains("address"), "`feroce disk serve` does not serve: {line}");
    let measure = |words: &str, field: &str| {
        let mut command = Command::new(&args.feroce);
        command.args(["--json", "disk", "bench", FEROCE, "-D", &args.seconds.to_string()]);
        figure(command.args(words.split(' ')), field)
    };
    Ok(Figures {
        random: [
            measure("--pattern randread --size 4K --depth 1", "commands_per_s")?,
            measure("--pattern randread --size 4K --depth 32", "commands_per_s")?,
        ],
        mib_per_s: measure("--pattern read --size 128K --depth 16", "mib_per_s")?,
    })
}

/// A field of what a command prints as JSON.
fn figure(command: &mut Command, field: &str) -> Result<f64> {
    let text = said(command)?;
    let value: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    value[field].as_f64().with_context(|| format!("no {field}: {text}"))
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

fn tgt(args: &Args, disk: &Path) -> Result<Figures> {
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", CONTROL, "--iscsi", &format!("portal={PORTAL}")]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _peer = Peer(command.spawn().context("tgtd, of the package tgt")?);
    let admin = |words: &str| {
        let mut command = Command::new("tgtadm");
        command.args(["-C", CONTROL, "--lld", "iscsi"]).args(words.split(' '));
        said(&mut command)
    };
    let target = format!("--op new --mode target --tid 1 -T {TARGET}");
    let mut tries = 0;
    while let Err(e) = admin(&target) {
        tries += 1;
        ensure!(tries < 50, "tgtd does not come up: {e}");
        park_timeout(Duration::from_millis(100));
    }
    let file = disk.to_str().context("a path")?;
    admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {file} --bstype rdwr"))?;
    admin("--op bind --mode target --tid 1 -I ALL")?;
    let measure = |words: &str, unit: &str| {
        let mut command = Command::new("iscsi-perf");
        command.args(words.split(' ')).args(["-t", &args.seconds.max(2).to_string()]);
        let text = said(command.arg(format!("iscsi://{PORTAL}/{TARGET}/1")))?;
        // `iops average 12361 (48 MB/s)`, after the lines of each second.
        let average = text.rsplit("iops average ").next().unwrap_or_default();
        let mut numbers = average.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        let iops = numbers.next().and_then(|n| n.parse::<f64>().ok());
        iops.with_context(|| format!("iscsi-perf says no {unit}: {text}"))
    };
    Ok(Figures {
        random: [measure("-r -m 1 -b 8", "iops")?, measure("-r -m 32 -b 8", "iops")?],
        // An operation is 256 blocks of 512 bytes.
        mib_per_s: measure("-m 16 -b 256", "iops")? / 8.0,
    })
}

fn write(args: &Args) -> Result<Figures> {
    let mut command = Command::new(&args.feroce);
    command.args(["--json", "perf", "write", "bw", "--both", "-s", "131072", "-D"]);
    let gbit_per_s = figure(command.arg(args.seconds.to_string()), "gbit_per_s")?;
    Ok(Figures { random: [f64::NAN; 2], mib_per_s: gbit_per_s * 1e9 / 8.0 / f64::from(1 << 20) })
}
