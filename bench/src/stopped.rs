//! What a peer process that is stopped in the middle of a copy costs the other queue pairs of a
//! device: the latency of messages on another queue pair, with and without such a peer.
//!
//! The peer writes long messages by direct access to the memory of this process all the time, so
//! that SIGSTOP nearly always finds it in a copy. It does so for certain if the deregistration of
//! that memory, which waits for the copy, is not over when the measurement is.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use feroce::{
    Access, Context, Cq, Cqe, Device, Endpoint, Gid, Lid, Mr, Pd, Pmtu, Psn, Qp, QpCap, Qpn,
    Remote, Rkey, SendOp, SendWr, WcStatus,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Of a write of the peer: the longest that goes by direct access.
const LONG: usize = 1 << 20;

/// Most rounds in which the peer may be stopped between two copies.
const MOST_MISSES: usize = 20;

/// Compares the latency of a queue pair beside a peer that is stopped in a copy with that beside a
/// peer that does nothing.
#[derive(Parser)]
struct Args {
    /// Rounds; the figures of the middle one are told.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Messages per round.
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Run the peer.
    #[arg(long, hide = true)]
    peer: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.peer {
        return peer();
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut misses = 0;
    while beside.len() < args.rounds {
        let Some(times) = round(args.messages)? else {
            misses += 1;
            ensure!(misses <= MOST_MISSES, "the peer is never stopped in a copy");
            continue;
        };
        alone.push(times[0]);
        beside.push(times[1]);
    }
    for (name, part) in [("median", 0), ("p99", 1)] {
        let middle = |rounds: &[[f64; 2]]| {
            let mut values: Vec<f64> = rounds.iter().map(|round| round[part]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (a, b) = (middle(&alone), middle(&beside));
        println!("{name}: {a:.2} us alone, {b:.2} us beside a stopped copy, ratio {:.2}", b / a);
    }
    println!("{} rounds, and {misses} in which the peer was stopped between copies", args.rounds);
    Ok(())
}

/// Median and 99th percentile without and with the stopped copy, in microseconds; `None`: the peer
/// was not in a copy.
fn round(messages: u64) -> Result<Option<[[f64; 2]; 2]>> {
    let (here, there) = (Host::new(1)?, Host::new(2)?);
    let (mut a, mut b) = (here.rc()?, there.rc()?);
    let (to, from) = (b.endpoint()?, a.endpoint()?);
    a.connect(&to)?;
    b.connect(&from)?;
    let target = here.pd.alloc_mr(LONG, ALL)?;
    let mut writer = here.rc()?;
    let mut peer = Peer::start()?;
    writer.connect(&understand(&peer.hear()?)?.0)?;
    peer.tell(&describe(&writer, &target)?)?;
    ensure!(peer.hear()? == "writing", "the peer ends");
    // The peer has been granted direct access, and does nothing.
    let pid = Pid::from_raw(peer.child.id().try_into()?);
    let alone = latencies(&here, &mut a, &there, &mut b, messages)?;
    peer.tell("go")?;
    ensure!(peer.hear()? == "gone", "the peer ends");
    kill(pid, Signal::SIGSTOP)?;
    let is_over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let dereg = scope.spawn(|| {
            let result = target.dereg();
            is_over.store(true, Ordering::Release);
            result
        });
        let times = latencies(&here, &mut a, &there, &mut b, messages);
        let was_in_copy = !is_over.load(Ordering::Acquire);
        kill(pid, Signal::SIGKILL)?;
        dereg.join().map_err(|_| anyhow!("the deregistration panicked"))??;
        times.map(|times| was_in_copy.then_some(times))
    })?;
    Ok(beside.map(|beside| [alone, beside]))
}

#[expect(clippy::disallowed_methods, reason = "the time that passes is what is measured")]
fn now() -> Instant {
    Instant::now()
}

/// Median and 99th percentile of the time from a SEND to its reception, in microseconds.
fn latencies(a: &Host, qa: &mut Qp, b: &Host, qb: &mut Qp, messages: u64) -> Result<[f64; 2]> {
    let mut times = Vec::with_capacity(usize::try_from(messages)?);
    for i in 0..messages {
        qb.post_recv([b.mr.recv(i, 0..8)])?;
        let begun = now();
        qa.post_send([SendWr::new(i, SendOp::Send, a.mr.data(0..8))])?;
        let received = b.poll();
        times.push(begun.elapsed());
        let sent = a.poll();
        let is_fine = [sent, received].iter().all(|done| done.status == WcStatus::Success);
        ensure!(is_fine, "a message failed: {sent:?}, {received:?}");
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 100];
    Ok([at(50), at(99)].map(|time: Duration| time.as_secs_f64() * 1e6))
}

/// The process that is stopped: writes without end.
fn peer() -> Result<()> {
    let host = Host::new(3)?;
    let source = host.pd.alloc_mr(LONG, ALL)?;
    let mut qp = host.rc()?;
    println!("{}", describe(&qp, &source)?);
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().context("the other process is gone")?.context("a line");
    let (peer, remote) = understand(&line()?)?;
    qp.connect(&peer)?;
    let mut write = || {
        qp.post_send([SendWr::new(1, SendOp::Write(remote), source.data(0..LONG))])?;
        let done = host.poll();
        ensure!(done.status == WcStatus::Success, "{done:?}");
        Ok(())
    };
    // The first ones are packets; then this process has been granted direct access.
    (0..20).try_for_each(|_| write())?;
    println!("writing");
    line()?;
    println!("gone");
    loop {
        write()?;
    }
}

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// An open device on the loopback interface with the usual objects.
struct Host {
    _context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Host {
    fn new(number: u8) -> Result<Self> {
        let context = Device::at([std::net::Ipv4Addr::new(127, 9, 0, number).into()]).open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let mr = pd.alloc_mr(4096, ALL)?;
        Ok(Self { _context: context, pd, cq, mr })
    }

    fn rc(&self) -> Result<Qp> {
        Ok(self.pd.rc_qp(&self.cq, &self.cq, QpCap::new(16, 16)).create()?)
    }

    fn poll(&self) -> Cqe {
        loop {
            if let Some(done) = self.cq.poll_one() {
                return done;
            }
        }
    }
}

/// The peer's process. It is killed when this is dropped.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--peer").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, input, output })
    }

    fn tell(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.input, "{text}")?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An end and memory, in a line.
fn describe(qp: &Qp, mr: &Mr) -> Result<String> {
    let Endpoint { gid, qpn, psn, mtu, .. } = qp.endpoint()?;
    let ip = std::net::Ipv4Addr::from(gid.as_ipv4().context("an IPv4 address")?);
    let Remote { addr, rkey } = mr.remote(0);
    Ok(format!("{ip} {} {} {} {addr} {}", qpn.get(), psn.get(), mtu.bytes(), rkey.0))
}

fn understand(text: &str) -> Result<(Endpoint, Remote)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [ip, qpn, psn, mtu, addr, rkey] = words[..] else {
        return Err(anyhow!("the peer says {text:?}"));
    };
    let ip: std::net::Ipv4Addr = ip.parse()?;
    let endpoint = Endpoint {
        gid: Gid::from_ipv4(ip.octets()),
        lid: Lid(0),
        qpn: Qpn::new(qpn.parse()?),
        psn: Psn::new(psn.parse()?),
        mtu: Pmtu::at_most(mtu.parse()?).context("an MTU")?,
    };
    Ok((endpoint, Remote { addr: addr.parse()?, rkey: Rkey(rkey.parse()?) }))
}
