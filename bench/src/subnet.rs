//! An InfiniBand fabric on one machine: how fast programs of verbs are over its switches, beside
//! packets through shared memory, and how long opensm takes to bring a large one up.
//!
//! Debian's perftest and opensm run as they are, so the figures have what programs see. Rows
//! alternate and the best run counts, so that a machine whose speed changes favours no row.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use feroce::{Access, Context, Cq, Device, Mr, Pd, Qp, QpCap, SendOp, SendWr, Settings, WcStatus};

/// Measures an InfiniBand fabric: needs opensm and perftest.
#[derive(Parser)]
struct Args {
    /// The command to measure
    #[arg(long, default_value = "target/release/feroce")]
    feroce: PathBuf,
    /// How often to measure; the best run counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Measures in this process: messages between two hosts of a fabric, or between two addresses
    #[arg(long, hide = true, num_args = 2, value_names = ["FROM", "TO"])]
    between: Option<Vec<String>>,
}

/// Switches between the two hosts of a chain.
const CHAINS: [usize; 2] = [1, 4];
/// Leaves, spines, and hosts of a leaf.
const TREES: [(usize, usize, usize); 2] = [(8, 8, 16), (32, 16, 32)];
/// What is claimed: part of the bandwidth through shared memory, microseconds that a switch adds,
/// seconds for the first tree.
const LEAST_PART: f64 = 0.5;
const MOST_PER_SWITCH: f64 = 3.0;
const MOST_SECONDS: f64 = 3.0;
/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);

const BANDWIDTH: &str = "ib_write_bw -s 1048576 -n 5000 --report_gbits -F";
const LATENCY: &str = "ib_write_lat -s 8 -n 50000 -F";

/// Hosts at the ends of a chain of switches.
fn chain(switches: usize) -> String {
    let mut text = String::from("Hca 1 \"Host1\"\nHca 1 \"Host2\"\n");
    for n in 1..=switches {
        let _ = writeln!(text, "Switch 4 \"S{n}\"");
        if n == 1 {
            text += "[1] \"Host1\"[1]\n";
        }
        let _ = match n == switches {
            true => writeln!(text, "[2] \"Host2\"[1]"),
            false => writeln!(text, "[2] \"S{}\"[1]", n + 1),
        };
    }
    text
}

/// Leaves with hosts, each connected with every spine.
fn tree((leaves, spines, hosts): (usize, usize, usize)) -> String {
    let mut text = String::new();
    for leaf in 1..=leaves {
        let _ = writeln!(text, "Switch {} \"Leaf{leaf}\"", hosts + spines);
        for host in 1..=hosts {
            let _ = writeln!(text, "[{host}] \"Host{}\"[1]", (leaf - 1) * hosts + host);
        }
        for spine in 1..=spines {
            let _ = writeln!(text, "[{}] \"Spine{spine}\"[{leaf}]", hosts + spine);
        }
    }
    for spine in 1..=spines {
        let _ = writeln!(text, "Switch {leaves} \"Spine{spine}\"");
    }
    for host in 1..=leaves * hosts {
        let _ = writeln!(text, "Hca 1 \"Host{host}\"");
    }
    text
}

/// A fabric that opensm has brought up, which ends with the value.
struct Fabric<'a> {
    feroce: &'a Path,
    folder: &'a Path,
}

impl<'a> Fabric<'a> {
    /// Brings a fabric up, and says how long that took.
    #[expect(clippy::disallowed_methods, reason = "the time that passes is what is measured")]
    fn up(feroce: &'a Path, folder: &'a Path, net: &str) -> Result<(Self, f64)> {
        let fabric = Self { feroce, folder };
        fs::write(folder.join("fabric.net"), net)?;
        let before = Instant::now();
        let output = fabric.command(&["fabric", "up", "--sm", "fabric.net"]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok((fabric, before.elapsed().as_secs_f64()))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.feroce);
        command.args(words).current_dir(self.folder).env("XDG_RUNTIME_DIR", self.folder);
        command.stdin(Stdio::null());
        command
    }

    /// A program on one of the two hosts of a chain.
    fn program(&self, host: &str, words: &str) -> Command {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.command(&[&["fabric", "run", "-n", host, "--"], &words[..]].concat())
    }
}

impl Drop for Fabric<'_> {
    fn drop(&mut self) {
        let _ = self.command(&["fabric", "down"]).output();
    }
}

/// A server, which ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test of perftest between two ends, and reads a column of its table.
#[expect(clippy::disallowed_methods, reason = "it waits for another process")]
fn measure(make: impl Fn(bool, &str) -> Command, test: &str, column: usize) -> Result<f64> {
    let _server = Server(make(true, test).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let began = Instant::now();
    // The client fails until the server listens.
    let output: Output = loop {
        let output = make(false, &format!("{test} 127.0.0.1")).output()?;
        if output.status.success() {
            break output;
        }
        ensure!(began.elapsed() < PATIENCE, "{}", String::from_utf8_lossy(&output.stdout));
        sleep(Duration::from_millis(50));
    };
    let text = String::from_utf8(output.stdout)?;
    let mut lines =
        text.lines().filter(|line| line.starts_with(" 1048576") || line.starts_with(" 8 "));
    let row = lines.next().with_context(|| text.clone())?;
    let value = row.split_whitespace().nth(column).with_context(|| text.clone())?;
    Ok(value.parse()?)
}

/// Two addresses of this machine, for a process that is at both.
const ADDRESSES: [&str; 2] = ["127.0.0.61", "127.0.0.62"];
/// Messages of one measurement in one process.
const MESSAGES: u32 = 40_000;
/// How often they are measured; the best counts.
const REPEATS: u32 = 8;
/// Receives that each end has posted.
const RECEIVES: u64 = 16;

/// An end of a connection inside this process.
struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
        let mr = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(32, 32)).create()?;
        Ok(Self { qp, cq, mr, _pd: pd })
    }

    /// Polls until a message has arrived, and posts its receive again.
    fn take(&mut self) -> Result<()> {
        loop {
            let Some(cqe) = self.cq.poll_one() else { continue };
            ensure!(cqe.status == WcStatus::Success, "{:?}", cqe.status);
            if cqe.wr_id < RECEIVES {
                return Ok(self.qp.post_recv([self.mr.recv(cqe.wr_id, 0..64)])?);
            }
        }
    }
}

/// The device of this process at an address, or on a host of the fabric in which it runs.
fn device(name: &str) -> Result<Context> {
    let Ok(address) = name.parse() else {
        let settings = Settings { host: Some(name.to_owned()), ..Settings::load()? };
        let device = Device::list_with(&settings)?.into_iter().next();
        return Ok(device.context("no device")?.open_with(settings)?);
    };
    Ok(Device::at([address]).open()?)
}

/// Microseconds of a message of 8 bytes from one end to the other. One thread is at both ends, so
/// that the process of a fabric has a processor of its own where there are two.
#[expect(clippy::disallowed_methods, reason = "the time that passes is what is measured")]
fn between(names: &[String]) -> Result<f64> {
    let contexts = names.iter().map(|name| device(name)).collect::<Result<Vec<_>>>()?;
    let mut ends = contexts.iter().map(End::new).collect::<Result<Vec<_>>>()?;
    for (own, other) in [(0, 1), (1, 0)] {
        let endpoint = ends[other].qp.endpoint()?;
        ends[own].qp.connect(&endpoint)?;
        for id in 0..RECEIVES {
            let end = &mut ends[own];
            end.qp.post_recv([end.mr.recv(id, 0..64)])?;
        }
    }
    let mut best = f64::MAX;
    for _ in 0..REPEATS {
        let before = Instant::now();
        for n in 0..MESSAGES {
            let (from, to) = (n as usize % 2, (n as usize + 1) % 2);
            let end = &mut ends[from];
            end.qp.post_send([SendWr::new(RECEIVES, SendOp::Send, end.mr.data(0..8))])?;
            ends[to].take()?;
        }
        best = best.min(before.elapsed().as_secs_f64() * 1e6 / f64::from(MESSAGES));
    }
    Ok(best)
}

/// Measures in a process that runs in a fabric, or beside it.
fn in_one_process(mut command: Command) -> Result<f64> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let why = || format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    text.trim().parse().with_context(why)
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(names) = &args.between {
        println!("{}", between(names)?);
        return Ok(());
    }
    let feroce = fs::canonicalize(&args.feroce)?;
    let folder = std::env::temp_dir().join(format!("feroce-subnet-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let measured = run(&args, &feroce, &folder);
    fs::remove_dir_all(&folder)?;
    measured
}

fn run(args: &Args, feroce: &Path, folder: &Path) -> Result<()> {
    // Packets, because faults may be switched on.
    let shared = |_: bool, words: &str| {
        let mut command = Command::new(feroce);
        command.args(["run", "--"]).args(words.split_whitespace()).env("FEROCE_FAULT", "off");
        command
    };
    // Bandwidth and latency: through shared memory, and over each chain.
    let mut best = [(0.0_f64, f64::MAX); 1 + CHAINS.len()];
    // And of messages between two ends in one process: beside the fabric, and over one switch.
    let mut pair = [f64::MAX; 2];
    let this = std::env::current_exe()?;
    let between =
        |names: [&str; 2]| format!("{} --between {} {}", this.display(), names[0], names[1]);
    let mut seconds = [f64::MAX; TREES.len()];
    for _ in 0..args.rounds {
        let (bandwidth, latency) = (measure(shared, BANDWIDTH, 3)?, measure(shared, LATENCY, 4)?);
        best[0] = (best[0].0.max(bandwidth), best[0].1.min(latency));
        pair[0] = pair[0].min(in_one_process(shared(true, &between(ADDRESSES)))?);
        for (best, switches) in best[1..].iter_mut().zip(CHAINS) {
            let (fabric, _) = Fabric::up(feroce, folder, &chain(switches))?;
            let over = |is_server: bool, words: &str| {
                fabric.program(if is_server { "Host2" } else { "Host1" }, words)
            };
            let (bandwidth, latency) = (measure(over, BANDWIDTH, 3)?, measure(over, LATENCY, 4)?);
            *best = (best.0.max(bandwidth), best.1.min(latency));
            if switches == 1 {
                let words = between(["Host1", "Host2"]);
                pair[1] = pair[1].min(in_one_process(fabric.program("Host1", &words))?);
            }
        }
        for (best, size) in seconds.iter_mut().zip(TREES) {
            *best = best.min(Fabric::up(feroce, folder, &tree(size))?.1);
        }
    }
    let (bandwidth, latency) = best[0];
    println!("shared memory, by packets: WRITE 1 MiB {bandwidth:.2} Gbit/s, 8 B {latency:.2} us");
    for ((over, us), switches) in best[1..].iter().zip(CHAINS) {
        let (part, added) = (over / bandwidth, (us - latency) / switches as f64);
        println!(
            "{switches} switches: WRITE 1 MiB {over:.2} Gbit/s, {part:.2} of it (at least \
             {LEAST_PART}: {}); 8 B {us:.2} us, {added:.2} us more for each switch (at most \
             {MOST_PER_SWITCH}: {})",
            verdict(part >= LEAST_PART),
            verdict(added <= MOST_PER_SWITCH)
        );
    }
    let [apart, over] = pair;
    println!(
        "both ends in one thread: SEND 8 B {apart:.2} us by packets, {over:.2} us over one switch, \
         {:.2} us more (at most {MOST_PER_SWITCH}: {})",
        over - apart,
        verdict(over - apart <= MOST_PER_SWITCH)
    );
    for (taken, (leaves, spines, hosts)) in seconds.into_iter().zip(TREES) {
        let (hosts, switches) = (leaves * hosts, leaves + spines);
        print!("{hosts} hosts, {switches} switches: up after {taken:.2} s");
        match hosts {
            128 => println!(" (at most {MOST_SECONDS}: {})", verdict(taken <= MOST_SECONDS)),
            _ => println!(),
        }
    }
    println!("best of {} rounds", args.rounds);
    Ok(())
}
