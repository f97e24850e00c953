//! Plain TCP: the latency of the sockets below iWARP in a program that does nothing else.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::clock::now;

/// Where servers listen.
pub(crate) const PORT: u16 = 5203;

/// Bytes of a message.
const SIZE: usize = 8;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Empty polls before a polling thread yields its processor, as in `feroce perf`.
const SPINS: u32 = 64;
/// Round trips that are not counted.
const WARM_UP: u32 = 1000;

/// One end of a measurement.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Role {
    /// Send everything back.
    Echo,
    /// Measure half round trips.
    Ping { server: Ipv4Addr, seconds: f64 },
}

impl Role {
    /// Plays it. What was measured is printed as one JSON object.
    pub(crate) fn play(self) -> anyhow::Result<()> {
        match self {
            Self::Echo => echo(),
            Self::Ping { server, seconds } => ping(server, Duration::try_from_secs_f64(seconds)?),
        }
    }
}

fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}

/// Takes a message; false: the peer has closed.
fn receive(mut socket: &TcpStream, message: &mut [u8; SIZE]) -> anyhow::Result<bool> {
    let (mut filled, mut looks, mut since) = (0, 0_u32, None);
    while filled < SIZE {
        match socket.read(&mut message[filled..]) {
            Ok(0) => return Ok(false),
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e).context("no answer"),
        }
        looks += 1;
        if looks > SPINS {
            let since = *since.get_or_insert_with(now);
            ensure!(now() - since < PATIENCE, "no answer within {PATIENCE:?}");
            std::thread::yield_now();
        }
    }
    Ok(true)
}

fn echo() -> anyhow::Result<()> {
    let (mut socket, _) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?.accept()?;
    prepare(&socket)?;
    let mut message = [0; SIZE];
    while receive(&socket, &mut message)? {
        // Eight bytes always fit: the peer waits for them.
        socket.write_all(&message)?;
    }
    Ok(())
}

fn ping(server: Ipv4Addr, limit: Duration) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect((server, PORT))?;
    prepare(&socket)?;
    let mut message = [7; SIZE];
    let mut times = Vec::new();
    let begun = now();
    for number in 0_u32.. {
        let sent = now();
        socket.write_all(&message)?;
        ensure!(receive(&socket, &mut message)?, "the server has closed");
        let received = now();
        if number >= WARM_UP {
            times.push((received - sent).as_secs_f64() * 1e6 / 2.0);
        }
        if received - begun >= limit && !times.is_empty() {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    println!("{}", json!({"p50_us": times[times.len() / 2], "round_trips": times.len()}));
    Ok(())
}
