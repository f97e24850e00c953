//! What it costs to be watched: WRITE bandwidth and message rate of `feroce perf`, with and without
//! processes that look into its devices.
//!
//! Runs alternate, and medians are compared, so that a machine whose speed changes favours neither.
//! A watcher does what `feroce top` does with a ladder open (a look, and the packets of up to four
//! queue pairs), and `feroce web` is asked for what its page and Prometheus ask for.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

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
    /// Runs of each kind; the median counts
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of a run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds between two looks: what `feroce top` and the page have by default
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
}

/// What is measured: name, arguments of `feroce perf`, the setting `shared`, the field of the
/// result, and its unit.
const ROWS: [(&str, &str, &str, &str, &str); 4] = [
    ("WRITE 1 MiB, packets over UDP", "-s 1M", "off", "gbit_per_s", "Gbit/s"),
    ("WRITE 8 B, packets over UDP", "-s 8", "off", "msg_per_s", "messages/s"),
    ("WRITE 1 MiB, shared memory", "-s 1M", "on", "gbit_per_s", "Gbit/s"),
    ("WRITE 8 B, shared memory", "-s 8", "on", "msg_per_s", "messages/s"),
];

fn main() -> Result<()> {
    let args = Args::parse();
    for (name, options, shared, field, unit) in ROWS {
        let (mut alone, mut watched) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            alone.push(perf(&args, options, shared, field)?);
            let watcher = Watcher::start(&args)?;
            watched.push(perf(&args, options, shared, field)?);
            ensure!(watcher.stop()? > 0, "{name}: the watcher has seen no device");
        }
        let (a, b) = (median(&mut alone), median(&mut watched));
        println!("{name}: {a:.4e} {unit} alone, {b:.4e} watched, ratio {:.3}", b / a);
    }
    let Args { rounds, seconds, interval, .. } = args;
    println!(
        "medians of {rounds} runs of {seconds} s each, alternating; a look every {interval} s"
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A figure of `feroce perf write bw`.
fn perf(args: &Args, options: &str, shared: &str, field: &str) -> Result<f64> {
    let mut command = Command::new(&args.feroce);
    command.args(["--json", "perf", "write", "bw", "--both", "-D", &args.seconds.to_string()]);
    command.args(options.split(' ')).env("FEROCE_SHARED", shared).stderr(Stdio::inherit());
    let output = command.output().with_context(|| args.feroce.display().to_string())?;
    ensure!(output.status.success(), "`feroce perf` fails");
    let text = String::from_utf8(output.stdout)?;
    let figures = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = figures.filter_map(|value| value[field].as_f64()).last();
    found.with_context(|| format!("no {field} in {text}"))
}

/// A reader like `feroce top`, and a `feroce web` with a client.
struct Watcher {
    web: Child,
    end: Sender<()>,
    looks: JoinHandle<Result<usize>>,
}

impl Watcher {
    fn start(args: &Args) -> Result<Self> {
        let mut command = Command::new(&args.feroce);
        let mut web = command.args(["--json", "web"]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(web.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let url = serde_json::from_str::<Value>(&line)?["url"].clone();
        let url = url.as_str().context("an address")?.to_owned();
        let interval = Duration::from_secs_f64(args.interval);
        let (end, is_over) = channel();
        let looks = std::thread::spawn(move || {
            let mut seen = 0;
            while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                seen += look(&url)?;
            }
            Ok(seen)
        });
        Ok(Self { web, end, looks })
    }

    /// Ends it. Returns how many queue pairs it has seen the packets of.
    fn stop(mut self) -> Result<usize> {
        drop(self.end);
        let seen = self.looks.join().expect("it does not panic");
        self.web.kill()?;
        self.web.wait()?;
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
