//! The side channel: how the two ends agree. JSON lines over TCP, or a queue in memory where both
//! ends are in this process.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::spec::{Amount, Spec};
use super::stop;

/// Changes whenever the messages change.
pub(crate) const VERSION: u32 = 2;

/// How long the other side may take to answer, in quarters of a second.
const PATIENCE: u32 = 120;

/// What a side tells about one of its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
}

/// What a side tells about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ends {
    pub(crate) gid: [u8; 16],
    pub(crate) mtu: usize,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) qps: Vec<Peer>,
}

/// What a side did in one measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages it sent, and for how long.
    pub(crate) sent: u64,
    pub(crate) elapsed_ns: u64,
    /// Messages it received, where it can tell.
    pub(crate) received: Option<u64>,
    /// Packets that its adapter sent and received.
    pub(crate) sent_pkts: u64,
    pub(crate) rcvd_pkts: u64,
    /// Processor time of its process in microseconds, if that is not the process of both sides.
    pub(crate) cpu_us: Option<u64>,
}

/// A line on the side channel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    /// The client introduces itself.
    Hello { version: u32, spec: Spec },
    /// How to connect.
    Ends(Ends),
    /// The client begins a measurement.
    Start { size: usize, amount: Amount },
    /// Go.
    Ready,
    /// A side has sent so many messages, and no more will come.
    Done { sent: u64 },
    /// What a side did.
    Tally(Tally),
    /// All is measured.
    Bye,
    /// A side cannot go on.
    Error(String),
}

/// One end of the side channel.
#[derive(Debug)]
pub(crate) struct Side {
    out: Out,
    incoming: Receiver<Message>,
    /// Whether a wait ends when the user wants to stop. The client ends what it began, and the
    /// server with it; a server alone must not wait for ever.
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

    /// One end of a TCP connection. A thread reads from it, so that looking for a message costs
    /// no system call.
    pub(crate) fn tcp(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        let (sender, incoming) = mpsc::channel();
        std::thread::Builder::new().name("perf-side".to_owned()).spawn(move || {
            for line in reader.lines() {
                let Ok(line) = line else { return };
                let message = serde_json::from_str(&line).unwrap_or_else(|_| {
                    Message::Error("it is not `feroce perf` that answers".into())
                });
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

    /// Says something to the other side.
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

    /// Waits for a message, as long as it takes.
    pub(crate) fn recv(&mut self) -> anyhow::Result<Message> {
        loop {
            match self.incoming.recv_timeout(Duration::from_millis(250)) {
                Ok(message) => return sound(message),
                Err(RecvTimeoutError::Timeout) if self.heeds_stop && stop::requested() => {
                    bail!("interrupted")
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the other side is gone"),
            }
        }
    }

    /// Waits for an answer that should be on its way.
    pub(crate) fn answer(&mut self) -> anyhow::Result<Message> {
        for _ in 0..PATIENCE {
            match self.incoming.recv_timeout(Duration::from_millis(250)) {
                Ok(message) => return sound(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the other side is gone"),
            }
        }
        bail!("the other side does not answer")
    }

    /// A message, if one has come.
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
        // The reading thread holds the connection, too; this ends both.
        if let Out::Tcp(stream) = &self.out {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Turns what the other side complains of into an error.
fn sound(message: Message) -> anyhow::Result<Message> {
    match message {
        Message::Error(why) => bail!("the other side: {why}"),
        message => Ok(message),
    }
}

/// A message that does not fit here.
pub(crate) fn unexpected(message: &Message) -> anyhow::Error {
    anyhow::anyhow!("the other side sent something unexpected: {message:?}")
}
