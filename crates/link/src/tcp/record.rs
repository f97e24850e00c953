//! Captures and traces of streams.
//!
//! The kernel keeps the segments of TCP to itself. A capture has segments made up from the bytes
//! that passed: a handshake, the bytes in pieces of one segment each with right sequence numbers,
//! the end. Their order and times are those of the driver, and nothing in them is lost or sent
//! again. Bytes count as sent when they are given to TCP.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use feroce_train::Instant;

use super::dissect::{Dissector, End};
use super::segment::{ACK, FIN, MAX_PAYLOAD, PSH, RST, SYN, Segment};
use super::{StreamId, TcpEvent};
use crate::{Direction, LinkCounters, PcapFile, TraceFile};

/// Writes down what passes on the streams of a device.
#[derive(Debug, Default)]
pub struct StreamRecords {
    capture: Option<PcapFile>,
    trace: Option<TraceFile>,
    /// Peers of streams that are being opened.
    asked: BTreeMap<StreamId, SocketAddr>,
    talks: BTreeMap<StreamId, Talk>,
}

/// A connection.
#[derive(Debug)]
struct Talk {
    /// This end.
    own: End,
    local: SocketAddr,
    peer: SocketAddr,
    mss: usize,
    sent: Count,
    received: Count,
    dissector: Dissector,
}

/// What an end has sent.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// The next sequence number.
    next: u32,
    is_over: bool,
}

impl StreamRecords {
    /// Records in these files.
    pub fn new(capture: Option<PcapFile>, trace: Option<TraceFile>) -> Self {
        Self { capture, trace, ..Self::default() }
    }

    /// Whether nothing is written down.
    pub fn is_idle(&self) -> bool {
        self.capture.is_none() && self.trace.is_none()
    }

    /// This end opens a stream.
    pub fn connecting(&mut self, stream: StreamId, peer: SocketAddr) {
        if !self.is_idle() {
            self.asked.insert(stream, peer);
        }
    }

    /// Something has happened.
    pub fn event(&mut self, now: Instant, event: &TcpEvent<'_>) {
        if self.is_idle() {
            return;
        }
        match event {
            TcpEvent::Accepted { stream, local, peer, mss, .. } => {
                self.begin(now, *stream, End::Responder, (*local, *peer), *mss);
            }
            TcpEvent::Connected { stream, local, mss } => {
                if let Some(peer) = self.asked.remove(stream) {
                    self.begin(now, *stream, End::Initiator, (*local, peer), *mss);
                }
            }
            TcpEvent::Failed { stream, error } => {
                if let (Some(peer), Some(trace)) = (self.asked.remove(stream), &mut self.trace) {
                    let text = format_args!("{peer}: cannot connect: {error}");
                    trace.line(now, Direction::Received, text);
                    trace.write_out();
                }
            }
            TcpEvent::Data { stream, bytes } => {
                self.pass(now, *stream, Direction::Received, bytes);
            }
            TcpEvent::Sent { .. } | TcpEvent::Where { .. } | TcpEvent::Landed { .. } => {}
            TcpEvent::Ended { stream, error } => {
                let flags = if error.is_some() { RST | ACK } else { FIN | ACK };
                self.end(now, *stream, Direction::Received, flags);
            }
        }
    }

    /// This end has given bytes to TCP.
    pub fn sent(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        if !self.is_idle() {
            self.pass(now, stream, Direction::Sent, bytes);
        }
    }

    /// This end has closed a stream, or reset it.
    pub fn finished(&mut self, now: Instant, stream: StreamId, is_reset: bool) {
        let flags = if is_reset { RST | ACK } else { FIN | ACK };
        self.end(now, stream, Direction::Sent, flags);
        self.asked.remove(&stream);
        self.talks.remove(&stream);
    }

    fn begin(
        &mut self,
        now: Instant,
        stream: StreamId,
        own: End,
        (local, peer): (SocketAddr, SocketAddr),
        mss: usize,
    ) {
        let mss = mss.clamp(1, MAX_PAYLOAD);
        let (sent, received) = (Count::default(), Count::default());
        let dissector = Dissector::default();
        let talk = Talk { own, local, peer, mss, sent, received, dissector };
        let first = match own {
            End::Initiator => Direction::Sent,
            End::Responder => Direction::Received,
        };
        self.talks.insert(stream, talk);
        self.segment(now, stream, first, SYN, &[], "connection request");
        self.segment(now, stream, other(first), SYN | ACK, &[], "connection accepted");
        self.segment(now, stream, first, ACK, &[], "connection established");
        self.note(now, stream, first, "connected");
    }

    /// Bytes pass on a stream.
    fn pass(&mut self, now: Instant, stream: StreamId, direction: Direction, bytes: &[u8]) {
        let Some(mss) = self.talks.get(&stream).map(|talk| talk.mss) else { return };
        for piece in bytes.chunks(mss) {
            let Some(talk) = self.talks.get_mut(&stream) else { return };
            let end = match direction {
                Direction::Sent => talk.own,
                Direction::Received => talk.own.peer(),
            };
            let mut messages = Vec::new();
            talk.dissector.feed(end, piece, &mut |message| messages.push(message.to_string()));
            let comment = match messages.is_empty() {
                true => "inside a message".to_owned(),
                false => messages.join("; "),
            };
            self.segment(now, stream, direction, PSH | ACK, piece, &comment);
            messages.iter().for_each(|message| self.line(now, stream, direction, message));
        }
        self.write_trace();
    }

    /// An end closes its direction.
    fn end(&mut self, now: Instant, stream: StreamId, direction: Direction, flags: u8) {
        let Some(talk) = self.talks.get_mut(&stream) else { return };
        let reset = flags & RST != 0;
        let count = talk.count(direction);
        if std::mem::replace(&mut count.is_over, true) {
            return;
        }
        let what = if reset { "connection broken" } else { "connection closed" };
        self.segment(now, stream, direction, flags, &[], what);
        self.note(now, stream, direction, what);
    }

    /// Adds a segment to the capture.
    fn segment(
        &mut self,
        now: Instant,
        stream: StreamId,
        direction: Direction,
        flags: u8,
        payload: &[u8],
        comment: &str,
    ) {
        let Some(talk) = self.talks.get_mut(&stream) else { return };
        let ack = talk.count(other(direction)).next;
        let count = talk.count(direction);
        let seq = count.next;
        // A SYN or a FIN counts as one byte; a burst is far shorter than the numbers are long.
        let len = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        count.next = seq.wrapping_add(len);
        let (src, dst) = talk.ends(direction);
        if let Some(capture) = &mut self.capture {
            let segment = Segment { src, dst, seq, ack, flags };
            capture.raw(now, direction, comment, |out| segment.write(payload, out));
        }
    }

    /// Adds a line to the trace.
    fn line(&mut self, now: Instant, stream: StreamId, direction: Direction, what: &str) {
        let (Some(talk), Some(trace)) = (self.talks.get(&stream), &mut self.trace) else { return };
        let (src, dst) = talk.ends(direction);
        trace.line(now, direction, format_args!("{src} > {dst} {what}"));
    }

    fn note(&mut self, now: Instant, stream: StreamId, direction: Direction, what: &str) {
        self.line(now, stream, direction, what);
        self.write_trace();
    }

    fn write_trace(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.write_out();
        }
    }

    /// When [`StreamRecords::handle_timeout`] should be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.capture.as_ref().and_then(PcapFile::deadline)
    }

    /// Writes what has waited for long.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(capture) = &mut self.capture {
            capture.handle_timeout(now);
        }
    }

    /// The process is about to end: writes what waits.
    pub fn write_out(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.write_or_stop();
        }
    }

    /// This is the copy in a forked child: the files are the parent's.
    pub fn abandon(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.abandon();
        }
        (self.capture, self.trace) = (None, None);
    }

    /// What happened so far.
    pub fn counters(&self) -> LinkCounters {
        self.capture.as_ref().map_or_else(LinkCounters::new, PcapFile::counters)
    }
}

impl Talk {
    fn count(&mut self, direction: Direction) -> &mut Count {
        match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        }
    }

    /// From where to where.
    fn ends(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::Sent => (self.local, self.peer),
            Direction::Received => (self.peer, self.local),
        }
    }
}

fn other(direction: Direction) -> Direction {
    match direction {
        Direction::Sent => Direction::Received,
        Direction::Received => Direction::Sent,
    }
}
