//! The side channel, over which the two ends coordinate a measurement: JSON lines over TCP, or a
//! queue in memory if both ends are in this process.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use feroce::Gid;
use serde::{Deserialize, Serialize};

use super::spec::{Amount, Spec};
use super::stop;

/// Version of the protocol; it changes whenever the messages change.
pub(crate) const VERSION: u32 = 6;

/// Timeout for an answer of the other side, in units of 250 ms.
const PATIENCE: u32 = 120;

/// What is said of something else than `feroce perf` at the other end of the connection.
const STRANGER: &str = "it is not `feroce perf` of this version; if it is perftest, which uses \
     the same TCP port, run perftest at both ends (`feroce run -- ib_write_bw`), or `feroce perf` \
     at both";

/// What a side sends about one of its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct QpEnd {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
}

/// What a side sends about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ends {
    pub(crate) gid: [u8; 16],
    /// Local identifier of the port, on InfiniBand; 0 elsewhere.
    pub(crate) lid: u16,
    pub(crate) mtu: usize,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) qps: Vec<QpEnd>,
    /// Where the server listens, if the connection manager connects.
    pub(crate) port: Option<u16>,
}

impl Ends {
    /// Its address, for people.
    pub(crate) fn shown(&self) -> String {
        match self.lid {
            0 => Gid(self.gid).to_ip().to_string(),
            lid => format!("LID {lid}"),
        }
    }
}

/// The counts of one side in one measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages it sent, and for how long.
    pub(crate) sent: u64,
    pub(crate) elapsed_ns: u64,
    /// Messages it received, if it can count them.
    pub(crate) received: Option<u64>,
    /// Packets that its adapter sent and received.
    pub(crate) sent_pkts: u64,
    pub(crate) rcvd_pkts: u64,
    /// Processor time of its process in microseconds; absent if both sides are in one process.
    pub(crate) cpu_us: Option<u64>,
}

/// A message on the side channel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    /// The first message of the client.
    Hello { version: u32, spec: Spec },
    /// How to connect.
    Ends(Ends),
    /// The client begins a measurement.
    Start { size: usize, amount: Amount },
    /// The side is ready to begin.
    Ready,
    /// A side has posted so many receives on a queue pair again.
    Credits { qp: usize, receives: u64 },
    /// A thread of a side has sent so many messages, and no more will come.
    Done { thread: usize, sent: u64 },
    /// The counts of a side.
    Tally(Tally),
    /// All measurements are done.
    Bye,
    /// A side has failed.
    Error(String),
}

/// One end of the side channel.
#[derive(Debug)]
pub(crate) struct Side {
    out: Out,
    incoming: Receiver<Message>,
    /// Whether a wait ends when the user interrupts the program. A client completes the measurement
    /// that it began, and the server follows it; a server on its own must not wait forever.
    pub(crate) heeds_stop: bool,
}

#[derive(Debug)]
enum Out {
    Tcp(TcpStream),
    Memory(Sender<Message>),
}

impl Side {
    /// Two ends in this process.
    pub(crate) fn pair() -> (Self, Self) {
        let (a_out, b_in) = mpsc::channel();
        let (b_out, a_in) = mpsc::channel();
        let side = |out, incoming| Self { out: Out::Memory(out), incoming, heeds_stop: false };
        (side(a_out, a_in), side(b_out, b_in))
    }

    /// One end of a TCP connection. A thread reads from it, so that checking for a message costs no
    /// system call. A client has asked something, so that an end without an answer means that the
    /// other side is something else.
    pub(crate) fn tcp(stream: TcpStream, is_client: bool) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let (sender, incoming) = mpsc::channel();
        std::thread::Builder::new().name("perf-side".to_owned()).spawn(move || {
            // Others may send no line at all, and wait.
            let first = reader.fill_buf().map(|bytes| bytes.first().copied());
            let is_ours = match first {
                Ok(Some(byte)) => byte == b'{',
                Ok(None) | Err(_) => !is_client,
            };
            if !is_ours {
                let _ = sender.send(Message::Error(STRANGER.into()));
                return;
            }
            for line in reader.lines() {
                let Ok(line) = line else { return };
                let message =
                    serde_json::from_str(&line).unwrap_or_else(|_| Message::Error(STRANGER.into()));
                if sender.send(message).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { out: Out::Tcp(stream), incoming, heeds_stop: false })
    }

    /// Whether the other side is in this process.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.out, Out::Memory(_))
    }

    /// Sends a message to the other side.
    pub(crate) fn send(&mut self, message: Message) -> anyhow::Result<()> {
        match &mut self.out {
            Out::Memory(sender) => {
                sender.send(message).map_err(|_| anyhow::anyhow!("the other side is gone"))
            }
            Out::Tcp(stream) => {
                let mut line = serde_json::to_vec(&message)?;
                line.push(b'\n');
                stream.write_all(&line).context("side channel")
            }
        }
    }

    /// Waits for a message, without a timeout. Credits are of a measurement that is over.
    pub(crate) fn recv(&mut self) -> anyhow::Result<Message> {
        loop {
            match self.incoming.recv_timeout(Duration::from_millis(250)) {
                Ok(Message::Credits { .. }) => {}
                Ok(message) => return sound(message),
                Err(RecvTimeoutError::Timeout) if self.heeds_stop && stop::requested() => {
                    bail!("interrupted")
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the other side is gone"),
            }
        }
    }

    /// Waits for an answer, with a timeout.
    pub(crate) fn answer(&mut self) -> anyhow::Result<Message> {
        let mut left = PATIENCE;
        while left > 0 {
            match self.incoming.recv_timeout(Duration::from_millis(250)) {
                Ok(Message::Credits { .. }) => {}
                Ok(message) => return sound(message),
                Err(RecvTimeoutError::Timeout) => left -= 1,
                Err(RecvTimeoutError::Disconnected) => bail!("the other side is gone"),
            }
        }
        bail!("the other side does not answer")
    }

    /// Returns a message, if one has arrived.
    pub(crate) fn try_recv(&mut self) -> anyhow::Result<Option<Message>> {
        match self.incoming.try_recv() {
            Ok(message) => sound(message).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the other side is gone"),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The reading thread also holds the connection; the shutdown ends the thread and the
        // connection.
        if let Out::Tcp(stream) = &self.out {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Turns an error message of the other side into an error.
fn sound(message: Message) -> anyhow::Result<Message> {
    match message {
        Message::Error(why) => bail!("the other side: {why}"),
        message => Ok(message),
    }
}

/// The error for a message that is not expected in this state.
pub(crate) fn unexpected(message: &Message) -> anyhow::Error {
    anyhow::anyhow!("the other side sent something unexpected: {message:?}")
}
