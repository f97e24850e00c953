//! A queue pair of iWARP whose peer is the test.

use feroce_engine::iwarp::{StreamEnd, StreamSetup};
use feroce_engine::{Config, TransportKind};
use feroce_train::{Burst, Instant};
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Tagged, Untagged};
use feroce_wire::iwarp::fpdu::{Deframer, Framer, Piece};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};

use crate::{Host, START, TestQp, attached};

/// A host with one queue pair, and the stream to it.
#[derive(Debug)]
pub struct StreamPeer {
    /// The time.
    pub now: Instant,
    /// The host.
    pub host: Host,
    /// Its queue pair.
    pub qp: TestQp,
    framer: Framer,
    deframer: Deframer,
    /// The stream of the host is over.
    pub is_over: bool,
}

impl StreamPeer {
    /// A host that has agreed on this.
    pub fn new(setup: &StreamSetup) -> Self {
        Self::with(Config { transport: TransportKind::Iwarp, ..Config::default() }, setup)
    }

    /// A host of this configuration that has agreed on this.
    pub fn with(config: Config, setup: &StreamSetup) -> Self {
        Self::at(Host::with_config(1, config), setup)
    }

    /// A new queue pair of this host, which has agreed on this.
    pub fn at(mut host: Host, setup: &StreamSetup) -> Self {
        let qp = attached(&mut host, START, setup);
        let (framer, deframer) = (Framer::new(setup.crc, false), Deframer::new(setup.crc));
        Self { now: START, host, qp, framer, deframer, is_over: false }
    }

    /// The bytes of a segment.
    pub fn segment(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.framer.wire_len(header.len() + payload.len())];
        let fill = |at: usize, out: &mut [u8]| out.copy_from_slice(&payload[at..at + out.len()]);
        let _ = self.framer.emit(header, payload.len(), &mut out, fill);
        out
    }

    /// Sends a segment to the host.
    pub fn say(&mut self, header: &Header, payload: &[u8]) {
        let bytes = self.segment(header, payload);
        self.say_bytes(&bytes);
    }

    /// Sends bytes to the host.
    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.host.engine.handle_stream(self.now, self.qp.qpn, bytes);
    }

    /// The segments that the host sends.
    pub fn hear(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut segments: Vec<(Header, Vec<u8>)> = Vec::new();
        while let Some(qpn) = self.host.engine.poll_stream_ready(self.now) {
            let mut out = Burst::default();
            self.is_over |= self.host.engine.poll_stream(self.now, qpn, 4000, &mut out);
            self.host.engine.handle_stream_sent(self.now, qpn, out.len());
            let out = out.copied(0);
            let mut arrived = &out[..];
            while let Some(piece) = self.deframer.next(&mut arrived).unwrap() {
                match piece {
                    Piece::Header { header, .. } => segments.push((header, Vec::new())),
                    Piece::Payload(bytes) => segments.last_mut().unwrap().1.extend(bytes),
                    Piece::End => {}
                }
            }
        }
        segments
    }

    /// How the stream has ended for the host.
    pub fn end(&mut self) -> Option<StreamEnd> {
        self.host.engine.poll_stream_event().map(|event| event.end)
    }
}

/// Header of a WRITE in one segment.
pub fn write(stag: Rkey, offset: u64) -> Header {
    Header::Tagged(Tagged { control: Control::new(RdmaOp::WRITE, true), stag, offset })
}

/// Header of a SEND in one segment.
pub fn send(msn: u32) -> Untagged {
    Untagged {
        control: Control::new(RdmaOp::SEND, true),
        invalidate: Rkey(0),
        queue: QueueNumber::SEND,
        msn,
        mo: 0,
    }
}

/// Header and payload of a READ request.
pub fn read_request(msn: u32, request: &ReadRequest) -> (Header, [u8; ReadRequest::LEN]) {
    let control = Control::new(RdmaOp::READ_REQUEST, true);
    let queue = QueueNumber::READ_REQUEST;
    let mut payload = [0; ReadRequest::LEN];
    request.emit(&mut payload);
    (Header::Untagged(Untagged { control, queue, ..send(msn) }), payload)
}
