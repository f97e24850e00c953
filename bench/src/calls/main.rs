//! Calls of `feroce-rpc` against those of other libraries: an echo of 64 bytes, one at a time and
//! 32 at a time, and a fetch of 1 MiB, between two processes of this machine.
//!
//! Both processes have the same runtime, and TCP connections have `TCP_NODELAY`. The libraries
//! alternate, round by round, because a shared machine is not the same from one minute to the next;
//! a figure is the best of all rounds. Ratios are of `feroce-rpc` to the other.
//!
//! `--anchors` measures beside them what no library for calls does: echoes by active messages of
//! UCX, whose program spins, and the rate of READs of 1 MiB by `feroce perf`.

mod feroce;
mod grpc;
mod tarpc;
mod tcp;
mod ucx;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::Value;

/// Bytes in an echo.
const LEN: usize = 64;
/// Calls under way at a time, where many are.
const MANY: usize = 32;
/// Bytes to fetch.
const BLOB: usize = 1 << 20;
/// Fetches under way at a time, where many are.
const FETCHES: usize = 4;
/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compares libraries for calls.
#[derive(Parser)]
struct Args {
    /// Rounds of each library.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each kind of call in a round.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Runtime of both processes.
    #[arg(long, value_enum, default_value = "current")]
    runtime: Runtime,
    /// Only these libraries.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Library>,
    /// Only these calls.
    #[arg(long, value_enum, value_delimiter = ',')]
    calls: Vec<Calls>,
    /// Measure UCX and this `feroce perf` as well.
    #[arg(long, value_name = "FEROCE")]
    anchors: Option<PathBuf>,
    /// Serve calls of this library.
    #[arg(long, hide = true)]
    serve: Option<Library>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Runtime {
    /// tokio, on one thread.
    Current,
    /// tokio, on as many threads as there are processors.
    Multi,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Library {
    /// feroce-rpc.
    Feroce,
    /// Frames over TCP: a length, a number, a body.
    Tcp,
    /// tarpc over TCP, with bincode.
    Tarpc,
    /// tonic, unary calls of bytes.
    Tonic,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Calls {
    /// Echoes, one at a time.
    One,
    /// Echoes, 32 at a time.
    Many,
    /// Fetches.
    Fetch,
}

/// A client of any library. Cheap to clone.
#[derive(Clone)]
enum Client {
    Feroce(feroce::Client),
    Tcp(tcp::Client),
    Tarpc(tarpc::Client),
    Tonic(grpc::Client),
}

impl Client {
    async fn connect(library: Library, to: SocketAddr) -> Result<Self> {
        Ok(match library {
            Library::Feroce => Self::Feroce(feroce::Client::connect(to).await?),
            Library::Tcp => Self::Tcp(tcp::Client::connect(to).await?),
            Library::Tarpc => Self::Tarpc(tarpc::Client::connect(to).await?),
            Library::Tonic => Self::Tonic(grpc::Client::connect(to).await?),
        })
    }

    async fn echo(&self, body: &[u8]) -> Result<()> {
        let is_same = match self {
            Self::Feroce(client) => client.echo(body).await?,
            Self::Tcp(client) => client.call(tcp::ECHO, body).await? == body,
            Self::Tarpc(client) => client.echo(body).await? == body,
            Self::Tonic(client) => client.echo(body).await? == body,
        };
        ensure!(is_same, "the echo is not what was sent");
        Ok(())
    }

    async fn fetch(&self) -> Result<()> {
        let len = match self {
            Self::Feroce(client) => client.fetch().await?,
            Self::Tcp(client) => client.call(tcp::FETCH, &[]).await?.len(),
            Self::Tarpc(client) => client.fetch().await?.len(),
            Self::Tonic(client) => client.fetch().await?.len(),
        };
        ensure!(len == BLOB, "{len} bytes were fetched");
        Ok(())
    }
}

/// What one round has measured.
#[derive(Clone, Copy, Debug)]
struct Figures {
    echo_us: f64,
    echoes_per_s: f64,
    fetch_us: f64,
    fetches_per_s: f64,
}

impl Figures {
    fn best(self, other: Self) -> Self {
        Self {
            echo_us: self.echo_us.min(other.echo_us),
            echoes_per_s: self.echoes_per_s.max(other.echoes_per_s),
            fetch_us: self.fetch_us.min(other.fetch_us),
            fetches_per_s: self.fetches_per_s.max(other.fetches_per_s),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut builder = match args.runtime {
        Runtime::Current => tokio::runtime::Builder::new_current_thread(),
        Runtime::Multi => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build()?;
    match args.serve {
        Some(Library::Feroce) => return runtime.block_on(feroce::serve()),
        Some(Library::Tcp) => return runtime.block_on(tcp::serve()),
        Some(Library::Tarpc) => return runtime.block_on(tarpc::serve()),
        Some(Library::Tonic) => return runtime.block_on(grpc::serve()),
        None => {}
    }
    let libraries = match &*args.only {
        [] => Library::value_variants(),
        some => some,
    };
    let mut best: Vec<Option<Figures>> = vec![None; libraries.len()];
    let mut anchors = Anchors::default();
    for round_number in 0..args.rounds {
        if let Some(feroce) = &args.anchors {
            anchors.measure(feroce, round_number as u16)?;
        }
        for (&library, best) in libraries.iter().zip(&mut best) {
            let figures = round(library, &args, &runtime)?;
            *best = Some(best.map_or(figures, |best| best.best(figures)));
        }
    }
    print(libraries, &best);
    if args.anchors.is_some() {
        anchors.print(best.first().copied().flatten());
    }
    Ok(())
}

/// What is measured beside the libraries.
#[derive(Debug)]
struct Anchors {
    /// Microseconds of an echo by UCX, over each transport.
    ucx_us: [f64; UCX.len()],
    /// Gbit/s of READs of 1 MiB.
    read: f64,
}

/// Transports of UCX: their names, and how many times the time of its echo ours may take.
const UCX: [(&str, f64); 2] = [("tcp", 1.0), ("shm", 2.0)];
/// Which part of the rate of READs fetches reach at least.
const LEAST_OF_READS: f64 = 0.8;

impl Default for Anchors {
    fn default() -> Self {
        Self { ucx_us: [f64::MAX; UCX.len()], read: 0.0 }
    }
}

impl Anchors {
    fn measure(&mut self, feroce: &Path, round: u16) -> Result<()> {
        for (n, ((transport, _), best)) in (0..).zip(UCX.into_iter().zip(&mut self.ucx_us)) {
            *best = best.min(ucx::echo_us(transport, round * UCX.len() as u16 + n)?);
        }
        self.read = self.read.max(reads(feroce)?);
        Ok(())
    }

    fn print(&self, ours: Option<Figures>) {
        let Some(ours) = ours else { return };
        let verdict = |is_met| if is_met { "met" } else { "missed" };
        for ((transport, most), theirs) in UCX.into_iter().zip(self.ucx_us) {
            let ratio = ours.echo_us / theirs;
            let verdict = verdict(ratio <= most);
            println!(
                "echo by UCX over {transport}: {theirs:.1} us, ratio {ratio:.2} (at most {most}: \
                 {verdict})"
            );
        }
        let gbits = |per_s: f64| BLOB as f64 * 8.0 / 1e9 * per_s;
        println!("READs of 1 MiB by `feroce perf read bw`: {:.1} Gbit/s", self.read);
        for (at_a_time, per_s) in [(1, 1e6 / ours.fetch_us), (FETCHES, ours.fetches_per_s)] {
            let (fetches, ratio) = (gbits(per_s), gbits(per_s) / self.read);
            println!(
                "fetches of 1 MiB, {at_a_time} at a time: {fetches:.1} Gbit/s, ratio {ratio:.2} \
                 (at least {LEAST_OF_READS}: {})",
                verdict(ratio >= LEAST_OF_READS)
            );
        }
    }
}

/// Gbit/s of READs of 1 MiB, by two processes of `feroce perf`.
fn reads(feroce: &Path) -> Result<f64> {
    let perf = |words: &[&str]| {
        let mut command = Command::new(feroce);
        command.args(["perf", "read", "bw"]).args(words).stdin(Stdio::null());
        command
    };
    let mut server = perf(&[]);
    let _peer = Peer(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let blob = BLOB.to_string();
    let begun = now();
    // The client fails until the server listens.
    let output = loop {
        let output = perf(&["-s", &blob, "-D", "1", "--json", "127.0.0.1"]).output()?;
        let is_early = !output.status.success() && begun.elapsed() < PATIENCE;
        if !is_early {
            break output;
        }
    };
    let said: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    said["gbit_per_s"].as_f64().with_context(|| said.to_string())
}

fn print(libraries: &[Library], best: &[Option<Figures>]) {
    println!(
        "{:<8} {:>14} {:>6} {:>16} {:>6} {:>15} {:>6}",
        "", "echo p50 [us]", "ratio", "32 echoes [k/s]", "ratio", "fetch p50 [us]", "ratio"
    );
    let first = best.first().copied().flatten();
    for (library, figures) in libraries.iter().zip(best) {
        let (Some(figures), Some(first)) = (figures, first) else { continue };
        println!(
            "{:<8} {:>14.1} {:>6.2} {:>16.1} {:>6.2} {:>15.0} {:>6.2}",
            format!("{library:?}").to_lowercase(),
            figures.echo_us,
            first.echo_us / figures.echo_us,
            figures.echoes_per_s / 1e3,
            first.echoes_per_s / figures.echoes_per_s,
            figures.fetch_us,
            first.fetch_us / figures.fetch_us
        );
    }
    println!("ratios: of the first row to this one; less is better for times, more for rates");
}

/// Ends with the round.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn round(library: Library, args: &Args, runtime: &tokio::runtime::Runtime) -> Result<Figures> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        Ok::<_, anyhow::Error>(value.context("a name")?.get_name().to_owned())
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--serve", &name(library.to_possible_value())?]);
    command.args(["--runtime", &name(args.runtime.to_possible_value())?]).stdout(Stdio::piped());
    let mut peer = Peer(command.spawn()?);
    let mut line = String::new();
    BufReader::new(peer.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let to = line.trim().parse().with_context(|| format!("{library:?} does not serve"))?;
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let time_of = |calls| {
        let is_wanted = args.calls.is_empty() || args.calls.contains(&calls);
        if is_wanted { time } else { Duration::ZERO }
    };
    let times = [Calls::One, Calls::Many, Calls::Fetch].map(time_of);
    // As a task, so that a runtime of several threads uses them.
    runtime.block_on(async { tokio::spawn(measure(library, to, times)).await? })
}

async fn measure(library: Library, to: SocketAddr, times: [Duration; 3]) -> Result<Figures> {
    let client = Client::connect(library, to).await?;
    let body = [7; LEN];
    // The first few find cold caches.
    for _ in 0..100 {
        client.echo(&body).await?;
    }
    let [one, many, fetch] = times;
    Ok(Figures {
        echo_us: echo_us(&client, &body, one).await?,
        echoes_per_s: per_s(
            &client,
            MANY,
            many,
            move |client| async move { client.echo(&body).await },
        )
        .await?,
        fetch_us: fetch_us(&client, fetch).await?,
        fetches_per_s: per_s(&client, FETCHES, fetch, |client| async move { client.fetch().await })
            .await?,
    })
}

async fn echo_us(client: &Client, body: &[u8], time: Duration) -> Result<f64> {
    let mut echoes = Vec::new();
    let begun = now();
    while begun.elapsed() < time {
        let begin = now();
        client.echo(body).await?;
        echoes.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(echoes))
}

/// Calls per second, so many at a time.
async fn per_s<F, Fut>(client: &Client, callers: usize, time: Duration, call: F) -> Result<f64>
where
    F: Fn(Client) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let begun = now();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut count = 0_u64;
                while begun.elapsed() < time {
                    call(client.clone()).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut count = 0;
    for caller in callers {
        count += caller.await??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

async fn fetch_us(client: &Client, time: Duration) -> Result<f64> {
    let mut fetches = Vec::new();
    let begun = now();
    while begun.elapsed() < time {
        let begin = now();
        client.fetch().await?;
        fetches.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(fetches))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::disallowed_methods, reason = "the time that passes is what is measured")]
fn now() -> Instant {
    Instant::now()
}
