//! What it costs to be watched: WRITE bandwidth and message rate of `feroce perf`, with and without
//! processes that look into its devices.
//!
//! Each row is one run of `feroce perf`, so that all figures come from the same processes on the
//! same processors. Times without watchers and times with them alternate: two without, one with.
//! The ratio of the third to the first is what watching leaves, that of the second to the first is
//! the control, which says how much the machine varies by itself. Their medians count. What was
//! sent is read from the device's own counters, at the beginning and end of each time. A watcher
//! does what `feroce top` does with a ladder open (a look, and the packets of up to four queue
//! pairs), and `feroce web` is asked for what its page and Prometheus ask for.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use feroce::watch;
use serde_json::Value;

/// Compares the throughput of a device that is watched with that of one that is not.
#[derive(Parser)]
struct Args {
    /// The command to measure
    #[arg(long, default_value = "target/release/feroce")]
    feroce: PathBuf,
    /// How often to measure twice without watchers and once with them; the medians count
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds with watchers, and without
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds between two looks: what `feroce top` and the page have by default. With less, what
    /// a look costs stands out from what the machine varies
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
}

/// A device records packets for so long after it was asked for them.
const LEASE: Duration = Duration::from_secs(3);

/// What is measured: name, arguments of `feroce perf`, and the setting `shared`.
const ROWS: [(&str, &str, &str); 4] = [
    ("WRITE 1 MiB, packets over UDP", "-s 1M", "off"),
    ("WRITE 8 B, packets over UDP", "-s 8", "off"),
    ("WRITE 1 MiB, shared memory", "-s 1M", "on"),
    ("WRITE 8 B, shared memory", "-s 8", "on"),
];

fn main() -> Result<()> {
    let args = Args::parse();
    for (name, options, shared) in ROWS {
        let mut perf = start_perf(&args, options, shared)?;
        let (mut ratios, mut control) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            std::thread::sleep(LEASE);
            let alone = rate(args.seconds)?;
            control.push(rate(args.seconds)? / alone);
            let watcher = Watcher::start(&args)?;
            ratios.push(rate(args.seconds)? / alone);
            ensure!(watcher.stop()? > 0, "{name}: the watcher has seen no device");
        }
        ensure!(perf.0.try_wait()?.is_none(), "`feroce perf` has ended before its time");
        drop(perf);
        println!("{name}: {}; control {}", summary(ratios), summary(control));
    }
    let Args { rounds, seconds, interval, .. } = args;
    println!(
        "medians, quartiles in brackets, of {rounds} rounds; times of {seconds} s; a look every \
         {interval} s"
    );
    Ok(())
}

/// The median of some ratios, and their quartiles.
fn summary(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (ratios.len() - 1) as f64;
        let (below, above) = (ratios[place.floor() as usize], ratios[place.ceil() as usize]);
        below + (above - below) * place.fract()
    };
    format!("{:.3} [{:.3} to {:.3}]", at(0.5), at(0.25), at(0.75))
}

/// Requests per second that the devices of this user start.
fn rate(seconds: f64) -> Result<f64> {
    let from = requests()?;
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let to = requests()?;
    ensure!(to > from, "no requests in {seconds} s");
    Ok((to - from) as f64 / begin.elapsed().as_secs_f64())
}

fn requests() -> Result<u64> {
    let seen = watch::look()?;
    ensure!(seen.silent.is_empty(), "processes {:?} do not answer", seen.silent);
    Ok(seen.devices.iter().flat_map(|device| &device.qps).map(|qp| qp.counters.requests).sum())
}

/// A process that ends with its owner, also if the measurement fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a `feroce perf write bw` that takes longer than the measurement, which ends it.
fn start_perf(args: &Args, options: &str, shared: &str) -> Result<Running> {
    let seconds = (args.seconds * 3.0 + LEASE.as_secs_f64() + 2.0) * f64::from(args.rounds + 1);
    let mut command = Command::new(&args.feroce);
    command.args(["perf", "write", "bw", "--both", "-D", &seconds.to_string()]);
    command.args(options.split(' ')).env("FEROCE_SHARED", shared).stdout(Stdio::null());
    Ok(Running(command.spawn().with_context(|| args.feroce.display().to_string())?))
}

/// A reader like `feroce top`, and a `feroce web` with a client.
struct Watcher {
    web: Running,
    end: Sender<()>,
    looks: JoinHandle<Result<usize>>,
}

impl Watcher {
    fn start(args: &Args) -> Result<Self> {
        let mut command = Command::new(&args.feroce);
        let mut web = Running(command.args(["--json", "web"]).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(web.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let url = serde_json::from_str::<Value>(&line)?["url"].clone();
        let url = url.as_str().context("an address")?.to_owned();
        let interval = Duration::from_secs_f64(args.interval);
        let (end, is_over) = channel();
        let looks = std::thread::spawn(move || {
            let mut seen = look(&url)?;
            while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                seen += look(&url)?;
            }
            Ok(seen)
        });
        Ok(Self { web, end, looks })
    }

    /// Ends it. Returns how many queue pairs it has seen the packets of.
    fn stop(self) -> Result<usize> {
        drop(self.end);
        let seen = self.looks.join().expect("it does not panic");
        drop(self.web);
        seen
    }
}

/// Looks once in all ways. Returns how many connected queue pairs there are.
fn look(url: &str) -> Result<usize> {
    let seen = watch::look()?;
    let mut qps = Vec::new();
    for device in &seen.devices {
        for qp in device.qps.iter().filter(|qp| qp.peer.is_some()).take(4) {
            // A device that was closed meanwhile does not answer.
            let _ = watch::packets(device, qp.qpn);
            qps.push((device.pid, device.device.clone(), qp.qpn));
        }
    }
    let query = qps.first().map_or_else(String::new, |(pid, device, qpn)| {
        format!("?pid={pid}&device={}&qpn={}", device.replace('@', "%40"), qpn.get())
    });
    get(url, &format!("look.json{query}"))?;
    get(url, "metrics")?;
    Ok(qps.len())
}

/// Asks `feroce web`.
fn get(url: &str, name: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").context("an address")?;
    let (authority, path) = rest.split_once('/').context("a path")?;
    let mut stream = TcpStream::connect(authority)?;
    write!(stream, "GET /{path}{name} HTTP/1.1\r\nHost: {authority}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
    Ok(())
}
