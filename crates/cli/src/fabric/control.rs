//! Commands to a fabric that runs: what they say, and how they reach the thread that runs it.
//!
//! A command is a line of JSON over a socket, and so is the reply. A thread for each connection
//! reads the command, hands it to the fabric, and writes the reply, so that the fabric waits for no
//! one.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use nix::sys::eventfd::EventFd;
use serde::{Deserialize, Serialize};

use super::report::Status;
use super::subnet::SubnetStatus;

/// A command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Command {
    /// Say what there is and what happened.
    Status,
    /// Change a link, which a port names.
    Link { port: String, change: Change },
    /// Send copies of the packets that pass a port.
    Pcap { port: String },
    /// End.
    Down,
}

/// What happens to a link.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    Up,
    Down,
    /// Probability that a packet is lost.
    Loss(f64),
    /// Bits per second.
    Rate(u64),
}

/// The reply to a command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    Done,
    Status(Box<Status>),
    Subnet(Box<SubnetStatus>),
    Refused(String),
}

/// A command that waits for its reply.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) command: Command,
    pub(super) reply: Sender<Reply>,
    /// Where copies of packets go.
    pub(super) packets: SyncSender<Vec<u8>>,
}

/// Copies of packets that wait to be written: those of a few milliseconds at 10 Gb/s. More are left
/// out.
const MAX_PACKETS: usize = 4096;

/// How often a thread without packets to write checks that the reader is still there.
const LOOK: Duration = Duration::from_millis(100);

/// How long a fabric may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens for commands. The result has them, and `wake` is written for each.
pub(super) fn listen(path: &Path, wake: &Arc<EventFd>) -> anyhow::Result<Receiver<Order>> {
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
    let (orders, receiver) = channel();
    let wake = Arc::clone(wake);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (orders, wake) = (orders.clone(), Arc::clone(&wake));
            // A connection for which there is no thread is closed, which its command reports.
            let _ = thread::Builder::new().name("command".to_owned()).spawn(move || {
                let _ = serve(stream, &orders, &wake);
            });
        }
    })?;
    Ok(receiver)
}

fn serve(mut stream: UnixStream, orders: &Sender<Order>, wake: &EventFd) -> anyhow::Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let (reply, replies) = channel();
    let (packets, copies) = sync_channel(MAX_PACKETS);
    let answer = match serde_json::from_str(&line) {
        Ok(command) => {
            orders.send(Order { command, reply, packets })?;
            wake.write(1)?;
            replies.recv()?
        }
        Err(e) => Reply::Refused(format!("{e}; is it of another version?")),
    };
    serde_json::to_writer(&stream, &answer)?;
    stream.write_all(b"\n")?;
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    loop {
        match copies.recv_timeout(LOOK) {
            Ok(packet) => stream.write_all(&packet)?,
            Err(RecvTimeoutError::Timeout) if stream.read(&mut [0]).is_ok() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Gives a command to the fabric that listens at `path`. Copies of packets follow the reply.
pub(super) fn command(
    path: &Path,
    name: &str,
    command: &Command,
) -> anyhow::Result<(Reply, BufReader<UnixStream>)> {
    let stream = UnixStream::connect(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            anyhow!("no fabric {name} runs: start it with `feroce fabric up --name {name} FILE`")
        }
        _ => anyhow!("{}: {e}", path.display()),
    })?;
    // A fabric that is stopped does not answer.
    stream.set_read_timeout(Some(PATIENCE))?;
    serde_json::to_writer(&stream, command)?;
    (&stream).write_all(b"\n")?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => anyhow!("the fabric {name} does not answer: is it stopped?"),
        _ => e.into(),
    })?;
    // Packets may be rare.
    reader.get_ref().set_read_timeout(None)?;
    if line.is_empty() {
        bail!("the fabric {name} ended meanwhile");
    }
    Ok((serde_json::from_str(&line).context("the fabric is of another version")?, reader))
}
