//! Plain UDP: the performance of the sockets below feroce in a program that does nothing else.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};
use serde_json::json;

use crate::clock::now;

/// Where servers listen.
pub(crate) const PORT: u16 = 5202;

/// Receive buffer asked for: that of feroce.
const RCVBUF: usize = 8 << 20;
/// A datagram of this length says that there are no more.
const LAST: usize = 1;
/// How often that datagram is sent, because datagrams get lost.
const LAST_TIMES: u32 = 20;
/// How long a flow may pause before it counts as ended, and an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Empty polls before a polling thread yields its processor, as in `feroce perf`.
const SPINS: u32 = 64;

/// One end of a measurement.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Role {
    /// Count what arrives.
    Sink,
    /// Send as fast as it goes.
    Source { server: Ipv4Addr, seconds: f64, size: u16, per_call: usize },
    /// Send everything back.
    Echo { wait: Wait },
    /// Measure half round trips.
    Ping { server: Ipv4Addr, seconds: f64, size: u16, wait: Wait },
}

/// What to do until a datagram comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Wait {
    Polling,
    Blocking,
    /// Polling, and each message is two packets that leave in one call and arrive in one: what a
    /// WRITE of 8 bytes and the acknowledgement of the one before take at least.
    Train,
}

/// Length of the first packet of such a message.
const FIRST: u16 = 40;

impl Role {
    /// Plays it. What was measured is printed as one JSON object.
    pub(crate) fn play(self) -> anyhow::Result<()> {
        match self {
            Self::Sink => sink(),
            Self::Source { server, seconds, size, per_call } => {
                source(server, Duration::try_from_secs_f64(seconds)?, size, per_call)
            }
            Self::Echo { wait } => echo(wait),
            Self::Ping { server, seconds, size, wait } => {
                ping(server, Duration::try_from_secs_f64(seconds)?, size.into(), wait)
            }
        }
    }
}

/// Counts datagrams from the first to the last, merged by the kernel where it can.
fn sink() -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    // A buffer above the system's limit needs a privilege, as it does for feroce.
    setsockopt(&socket, RcvBufForce, &RCVBUF).or_else(|_| setsockopt(&socket, RcvBuf, &RCVBUF))?;
    setsockopt(&socket, UdpGroSegment, &true).context("no UDP_GRO")?;
    let mut buffer = vec![0; 1 << 16];
    let mut control = nix::cmsg_space!(i32);
    let (mut bytes, mut datagrams) = (0_u64, 0_u64);
    let mut span: Option<(Instant, Instant)> = None;
    loop {
        let mut into = [IoSliceMut::new(&mut buffer)];
        let fd = socket.as_raw_fd();
        let received =
            match recvmsg::<SockaddrIn>(fd, &mut into, Some(&mut control), MsgFlags::empty()) {
                Ok(message) => message,
                Err(nix::Error::EAGAIN) => break,
                Err(e) => return Err(e.into()),
            };
        if received.bytes == LAST {
            break;
        }
        let segment = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
            _ => None,
        });
        bytes += received.bytes as u64;
        datagrams += segment.map_or(1, |size| received.bytes.div_ceil(size)) as u64;
        let at = now();
        match &mut span {
            Some((_, last)) => *last = at,
            None => {
                span = Some((at, at));
                socket.set_read_timeout(Some(PATIENCE))?;
            }
        }
    }
    let seconds = span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    println!("{}", json!({"bytes": bytes, "datagrams": datagrams, "seconds": seconds}));
    Ok(())
}

/// Sends datagrams of `size` bytes, `per_call` of them in each call.
fn source(server: Ipv4Addr, limit: Duration, size: u16, per_call: usize) -> anyhow::Result<()> {
    ensure!(usize::from(size) > LAST && per_call > 0, "nothing to send");
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let to = SockaddrIn::from(SocketAddrV4::new(server, PORT));
    let train = vec![0x5a; usize::from(size) * per_call];
    let from = [IoSlice::new(&train)];
    let segments = [ControlMessage::UdpGsoSegments(&size)];
    let control = if per_call > 1 { &segments[..] } else { &[] };
    let (started, mut calls) = (now(), 0_u64);
    while now() - started < limit {
        sendmsg(socket.as_raw_fd(), &from, control, MsgFlags::empty(), Some(&to))?;
        calls += 1;
    }
    for _ in 0..LAST_TIMES {
        socket.send_to(&[0; LAST], (server, PORT))?;
    }
    println!("{}", json!({"datagrams": calls * per_call as u64}));
    Ok(())
}

fn echo(wait: Wait) -> anyhow::Result<()> {
    let socket = wait.open(PORT)?;
    let mut buffer = vec![0; 1 << 16];
    // The server answers the first client only.
    let (n, from) = socket.recv_from(&mut buffer)?;
    socket.connect(from)?;
    wait.send(&socket, &buffer[..n])?;
    wait.prepare(&socket)?;
    loop {
        let n = wait.receive(&socket, &mut buffer)?;
        if n == LAST {
            return Ok(());
        }
        wait.send(&socket, &buffer[..n])?;
    }
}

fn ping(server: Ipv4Addr, limit: Duration, size: usize, wait: Wait) -> anyhow::Result<()> {
    ensure!(size > LAST, "a datagram so short ends the measurement");
    let socket = wait.open(0)?;
    socket.connect((server, PORT))?;
    wait.prepare(&socket)?;
    let (message, mut buffer) = (vec![0x5a; size], vec![0; 1 << 16]);
    let mut halves_ns = Vec::with_capacity(1 << 20);
    let started = now();
    let mut before = started;
    while before - started < limit {
        wait.send(&socket, &message)?;
        wait.receive(&socket, &mut buffer)?;
        let at = now();
        halves_ns.push((at - before).as_nanos() / 2);
        before = at;
    }
    for _ in 0..LAST_TIMES {
        // The echo server ends at the first of them.
        if socket.send(&[0; LAST]).is_err() {
            break;
        }
    }
    halves_ns.sort_unstable();
    let of_100 = |part: usize| halves_ns.get(halves_ns.len() * part / 100).copied();
    let us = |part| of_100(part).unwrap_or_default() as f64 / 1e3;
    println!("{}", json!({"round_trips": halves_ns.len(), "p50_us": us(50), "p99_us": us(99)}));
    Ok(())
}

impl Wait {
    fn open(self, port: u16) -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        if self == Self::Train {
            setsockopt(&socket, UdpGroSegment, &true).context("no UDP_GRO")?;
        }
        Ok(socket)
    }

    fn send(self, socket: &UdpSocket, message: &[u8]) -> anyhow::Result<()> {
        if self == Self::Train {
            let segments = [ControlMessage::UdpGsoSegments(&FIRST)];
            let from = [IoSlice::new(message)];
            sendmsg::<SockaddrIn>(socket.as_raw_fd(), &from, &segments, MsgFlags::empty(), None)?;
        } else {
            socket.send(message)?;
        }
        Ok(())
    }

    fn prepare(self, socket: &UdpSocket) -> std::io::Result<()> {
        match self {
            Self::Polling | Self::Train => socket.set_nonblocking(true),
            Self::Blocking => socket.set_read_timeout(Some(PATIENCE)),
        }
    }

    fn receive(self, socket: &UdpSocket, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let mut since = None;
        let mut looks = 0_u32;
        loop {
            match socket.recv(buffer) {
                Ok(n) => return Ok(n),
                Err(e) if self != Self::Blocking && e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e).context("no answer"),
            }
            looks += 1;
            if looks > SPINS {
                let since = *since.get_or_insert_with(now);
                ensure!(now() - since < PATIENCE, "no answer within {PATIENCE:?}");
                std::thread::yield_now();
            }
        }
    }
}
