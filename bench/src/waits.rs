//! What the ways to wait for a completion cost: an echo between two processes, both of which poll,
//! block ([`Cq::wait`](feroce::Cq::wait)) or await ([`Cq::next`](feroce::Cq::next)) on tokio.
//!
//! The ways alternate, round by round, because a shared machine is not the same from one minute to
//! the next; a figure is the least of the medians of all rounds. Ratios are to `wait`. With
//! `--pause-us`, the client sleeps before each message, so that both sides have gone to sleep when
//! it comes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Parser, ValueEnum};
use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{Access, Cqe, Device, Mr, QpCap, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use nix::sys::resource::{UsageWho, getrusage};

/// Receives that each side has posted.
const RECEIVES: u64 = 8;
const LEN: usize = 64;

/// Compares the ways to wait for a completion.
#[derive(Parser)]
struct Args {
    /// Rounds of each way.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Messages per round.
    #[arg(long, default_value_t = 5000)]
    messages: u64,
    /// How long the client sleeps before each message.
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// Only these ways.
    #[arg(long, value_enum)]
    way: Vec<Way>,
    /// Echo messages in this way.
    #[arg(long, hide = true)]
    echo: Option<Way>,
}

/// How a program waits for its next completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    /// `Cq::poll_one` in a loop.
    Poll,
    /// `Cq::wait`.
    Wait,
    /// `Cq::next().await` on tokio's current-thread runtime.
    NextCurrent,
    /// `Cq::next().await` in a task of tokio's multi-thread runtime.
    NextMulti,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(way) = args.echo {
        return run(way, echo(way));
    }
    let all = [Way::Wait, Way::NextCurrent, Way::NextMulti, Way::Poll];
    let ways = if args.way.is_empty() { &all[..] } else { &args.way[..] };
    let mut least: Vec<Option<Figures>> = vec![None; ways.len()];
    for _ in 0..args.rounds {
        for (way, least) in ways.iter().zip(&mut least) {
            let figures = round(*way, &args)?;
            if least.is_none_or(|least| figures.p50_us < least.p50_us) {
                *least = Some(figures);
            }
        }
    }
    let base = ways.iter().position(|&way| way == Way::Wait).and_then(|i| least[i]);
    println!("way            p50 us   p99 us  sleeps  cpu us  ratio");
    for (way, figures) in ways.iter().zip(least.into_iter().flatten()) {
        let Figures { p50_us, p99_us, sleeps, cpu_us } = figures;
        let ratio = base.map_or(f64::NAN, |base| p50_us / base.p50_us);
        let name = format!("{way:?}");
        println!("{name:<13} {p50_us:>7.2} {p99_us:>8.2} {sleeps:>7.2} {cpu_us:>7.2} {ratio:>6.2}");
    }
    Ok(())
}

/// Of one round, at the client, per message.
#[derive(Clone, Copy, Debug)]
struct Figures {
    p50_us: f64,
    p99_us: f64,
    /// How often a thread of the process has gone to sleep.
    sleeps: f64,
    cpu_us: f64,
}

/// Runs what waits in this way: a task of a runtime, or the thread itself.
fn run<T: Send + 'static>(
    way: Way,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut builder = match way {
        Way::NextMulti => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build()?;
    runtime.block_on(async { tokio::spawn(work).await.map_err(|e| anyhow!("{e}"))? })
}

/// Waits for the next completion of the connection.
async fn next(way: Way, connection: &Connection) -> Result<Cqe> {
    let cq = connection.recv_cq();
    let cqe = match way {
        Way::Poll => loop {
            if let Some(cqe) = cq.poll_one() {
                break cqe;
            }
        },
        Way::Wait => cq.wait()?,
        Way::NextCurrent | Way::NextMulti => cq.next().await,
    };
    Ok(cqe)
}

fn manager() -> Result<Manager> {
    Ok(Manager::with([Device::at(["127.0.0.1".parse()?]).open()?])?)
}

fn cap() -> QpCap {
    QpCap { max_inline: 64, ..QpCap::new(64, 64) }
}

fn memory(connection: &mut Connection) -> Result<Mr> {
    let mr = connection.pd().alloc_mr(LEN * 64, Access::LOCAL_WRITE)?;
    connection.post_recv((0..RECEIVES).map(|i| mr.recv(i, receive(i))))?;
    Ok(mr)
}

fn receive(i: u64) -> std::ops::Range<usize> {
    let begin = LEN * usize::try_from(i + 1).unwrap_or(0);
    begin..begin + LEN
}

/// Sends what stands at the beginning of the memory.
fn send(connection: &mut Connection, mr: &Mr, number: u64) -> Result<()> {
    // Every 16th is signalled, so that the queue empties.
    let mut wr = SendWr::new(0, SendOp::Send, mr.data(0..LEN));
    if !number.is_multiple_of(16) {
        wr.flags -= SendFlags::SIGNALED;
    }
    Ok(connection.post_one(wr)?)
}

/// The process that echoes, until its client has gone.
async fn echo(way: Way) -> Result<()> {
    let listener = Listener::bind(&manager()?, "127.0.0.1:0".parse()?)?;
    println!("{}", listener.local_addr());
    let mut peer = listener.accept()?.cap(cap()).accept()?;
    let mr = memory(&mut peer)?;
    let mut number = 0;
    loop {
        let cqe = next(way, &peer).await?;
        if cqe.status != WcStatus::Success {
            return Ok(());
        }
        peer.post_recv([mr.recv(cqe.wr_id, receive(cqe.wr_id))])?;
        while peer.send_cq().take_one().is_some() {}
        send(&mut peer, &mr, number)?;
        number += 1;
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

fn round(way: Way, args: &Args) -> Result<Figures> {
    let name = way.to_possible_value().context("a way")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--echo", name.get_name()]).stdout(Stdio::piped());
    let mut peer = Peer(command.spawn()?);
    let mut line = String::new();
    BufReader::new(peer.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let to = line.trim().parse()?;
    let (messages, pause) = (args.messages, Duration::from_micros(args.pause_us));
    run(way, async move {
        let mut connection = Connector::new(&manager()?).cap(cap()).connect(to)?;
        let mr = memory(&mut connection)?;
        // The first few find cold caches, and a connection that is not quite there.
        exchange(way, &mut connection, &mr, messages / 10, pause).await?;
        exchange(way, &mut connection, &mr, messages, pause).await
    })
}

async fn exchange(
    way: Way,
    connection: &mut Connection,
    mr: &Mr,
    messages: u64,
    pause: Duration,
) -> Result<Figures> {
    let mut times = Vec::with_capacity(usize::try_from(messages)?);
    let before = usage()?;
    for number in 0..messages {
        if !pause.is_zero() {
            // Blocking or not, the thread is away from the queue.
            tokio::time::sleep(pause).await;
        }
        let begun = now();
        send(connection, mr, number)?;
        let cqe = next(way, connection).await?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        let is_fine = cqe.status == WcStatus::Success && cqe.opcode == WcOpcode::Recv;
        ensure!(is_fine, "no echo: {cqe:?}");
        connection.post_recv([mr.recv(cqe.wr_id, receive(cqe.wr_id))])?;
        while connection.send_cq().take_one().is_some() {}
    }
    let after = usage()?;
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[times.len() * part / 100];
    let per_message = |value: f64| value / messages as f64;
    Ok(Figures {
        p50_us: at(50),
        p99_us: at(99),
        sleeps: per_message(after.0 - before.0),
        cpu_us: per_message(after.1 - before.1),
    })
}

/// Voluntary context switches and microseconds of processor time of this process so far.
fn usage() -> Result<(f64, f64)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let times = [usage.user_time(), usage.system_time()];
    let us = times.map(|time| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64);
    Ok((usage.voluntary_context_switches() as f64, us.iter().sum()))
}

#[expect(clippy::disallowed_methods, reason = "the time that passes is what is measured")]
fn now() -> Instant {
    Instant::now()
}
