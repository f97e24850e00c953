//! Reference measurements with plain sockets between the same two addresses.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;

use super::clock::{self, nanos};
use super::measure::{Figures, Row, Sample};
use super::spec::{Amount, Mode, Spec};
use super::stop;
use crate::size::filled;

/// Empty polls before the thread yields the processor.
const SPINS: u32 = 64;

/// Half round trips of datagrams between two sockets that are polled, as the adapters are.
pub(crate) fn udp(spec: &Spec, here: IpAddr, there: IpAddr, size: usize) -> anyhow::Result<Row> {
    ensure!(size <= 65_000, "--reference udp: a datagram holds no {size} bytes");
    let (a, b) = (UdpSocket::bind((here, 0))?, UdpSocket::bind((there, 0))?);
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    a.set_nonblocking(true)?;
    b.set_nonblocking(true)?;
    let done = AtomicBool::new(false);
    let mut sample = Sample::new();
    let (mut rounds, mut cpu_s) = (0_u64, 0.0);
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        let echo = std::thread::Builder::new().spawn_scoped(scope, || -> anyhow::Result<()> {
            let mut bytes = vec![0; size];
            while receive(&b, &mut bytes, &done)? {
                b.send(&bytes)?;
            }
            Ok(())
        })?;
        let measured = (|| -> anyhow::Result<()> {
            let mut bytes = vec![0; size];
            let (target, seconds) = limits(spec.amount);
            let (started, cpu_before) = (clock::now(), clock::cpu_s());
            let mut before = started;
            while rounds < target && (before - started).as_secs_f64() < seconds {
                a.send(&bytes)?;
                if stop::requested() || !receive(&a, &mut bytes, &done)? {
                    break;
                }
                let now = clock::now();
                sample.record(nanos(now - before) / 2);
                before = now;
                rounds += 1;
            }
            (elapsed, cpu_s) = (before - started, clock::cpu_s() - cpu_before);
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        let echoed = echo.join().unwrap_or_else(|_| bail!("the echo failed"));
        measured.and(echoed)
    })?;
    Ok(row(spec, ("udp", Mode::Lat), size, (rounds, elapsed.as_secs_f64(), cpu_s), &sample))
}

/// Polls for a datagram; false if no more will come.
fn receive(socket: &UdpSocket, bytes: &mut [u8], done: &AtomicBool) -> anyhow::Result<bool> {
    let mut turns = 0_u32;
    loop {
        match socket.recv(bytes) {
            Ok(_) => return Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            // The other end was closed first.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e.into()),
        }
        if done.load(Ordering::Relaxed) || stop::requested() {
            return Ok(false);
        }
        turns += 1;
        if turns > SPINS {
            std::thread::yield_now();
        }
    }
}

/// Bandwidth of one TCP stream written in pieces of `size` bytes.
pub(crate) fn tcp(spec: &Spec, here: IpAddr, there: IpAddr, size: usize) -> anyhow::Result<Row> {
    let listener = TcpListener::bind((there, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)
        .with_context(|| format!("no way from {here} to {there}"))?;
    // Some machines use a congestion control that paces TCP by default, which costs up to half the
    // bandwidth on a path with almost no delay. Where the process may not choose another, the
    // default stays.
    let _ = setsockopt(&out, TcpCongestion, &OsString::from("cubic"));
    let (mut incoming, _) = listener.accept()?;
    let (target, seconds) = limits(spec.amount);
    let mut sample = Sample::new();
    let (mut messages, mut cpu_s) = (0_u64, 0.0);
    let mut elapsed = Duration::ZERO;
    let (bytes, mut arrived) = (filled(0x5a, size)?, filled(0, size.max(1 << 17))?);
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().spawn_scoped(scope, move || {
            while incoming.read(&mut arrived).is_ok_and(|n| n > 0) {}
        })?;
        let (started, cpu_before) = (clock::now(), clock::cpu_s());
        let mut before = started;
        while messages < target && (before - started).as_secs_f64() < seconds && !stop::requested()
        {
            out.write_all(&bytes)?;
            let now = clock::now();
            sample.record(nanos(now - before));
            before = now;
            messages += 1;
        }
        out.shutdown(std::net::Shutdown::Write)?;
        let _ = reader.join();
        (elapsed, cpu_s) = (clock::now() - started, clock::cpu_s() - cpu_before);
        anyhow::Ok(())
    })?;
    Ok(row(spec, ("tcp", Mode::Bw), size, (messages, elapsed.as_secs_f64(), cpu_s), &sample))
}

fn limits(amount: Amount) -> (u64, f64) {
    match amount {
        Amount::Messages(n) => (n, f64::INFINITY),
        Amount::Seconds(s) => (u64::MAX, s),
    }
}

fn row(
    spec: &Spec,
    (op, mode): (&'static str, Mode),
    size: usize,
    (messages, elapsed_s, cpu_s): (u64, f64, f64),
    sample: &Sample,
) -> Row {
    let (messages, peer_cpu_s, lost) = (messages as f64, None, None);
    let figures = Figures { size, mtu: 0, messages, elapsed_s, cpu_s, peer_cpu_s, lost };
    Row { op, mode: mode.name(), qps: 1, ..Row::new(spec, figures, sample) }
}
