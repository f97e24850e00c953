//! Arbitrary bytes as the stream of a peer, to a queue pair of iWARP that works meanwhile.

use feroce_engine::iwarp::{
    Begin, HandshakeConfig, Initiator, ReadyToReceive, Reply, Responder, StreamSetup,
};
use feroce_engine::{Config, Remote, SendOp, SendWr, TransportKind};
use feroce_mem::Access;
use feroce_testkit::Mr;
use feroce_testkit::stream_peer::StreamPeer;
use feroce_wire::iwarp::ddp::{Header, Tagged};
use feroce_wire::{Imm, Rkey};

use crate::input::Input;

/// Memory of the host: what the peer may write, what receives and READs may change, and the rest.
const OPEN: std::ops::Range<usize> = 0x1000..0x2000;
const OWN: std::ops::Range<usize> = 0x3000..0x8000;
const MEMORY: usize = 0x10000;

/// Actions of one input at most.
const MAX_ACTIONS: usize = 200;

/// The first byte is how the stream was set up; then each byte chooses what happens: bytes arrive
/// as they are, a segment with right framing and perhaps a right key arrives, a request or receive
/// is posted, the host sends. In the end the stream breaks.
///
/// Nothing may panic, memory may change only where the peer has a right or the host has asked for
/// it, and when the stream has ended everything that was posted has completed.
pub fn engine_iwarp(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.u8();
    handshake(bytes);
    let kinds = [ReadyToReceive::Send, ReadyToReceive::Write, ReadyToReceive::Read];
    let kind = kinds[usize::from(how >> 4) % kinds.len()];
    let begin = match (how >> 2) & 3 {
        0 => Begin::Send,
        1 => Begin::Announce(kind),
        2 => Begin::Await(Some(kind)),
        _ => Begin::Await(None),
    };
    let (crc, markers) = (how & 1 != 0, false);
    let (ird, ord, max_ulpdu) = (3, 2, 120);
    let iwarp_extensions = how & 2 != 0;
    let config = Config { transport: TransportKind::Iwarp, iwarp_extensions, ..Config::default() };
    let setup = StreamSetup { crc, markers, ird, ord, max_ulpdu, begin };
    let mut world = World::new(config, &setup);
    for _ in 0..MAX_ACTIONS {
        if input.is_empty() {
            break;
        }
        world.act(&mut input);
    }
    world.finish();
}

/// Both sides of the handshake.
fn handshake(bytes: &[u8]) {
    let config = HandshakeConfig::default();
    let (mut initiator, _) = Initiator::new(config, b"").expect("short private data");
    if let Ok(Some(Reply::Accepted { setup, .. })) = initiator.handle(&mut &*bytes) {
        assert!(setup.crc && setup.ord <= config.ord);
    }
    if let Ok(Some(request)) = Responder::new(config).handle(&mut &*bytes) {
        let accepted = request.accept(b"yes").map(|(setup, _)| setup.ord);
        assert!(accepted.is_ok_and(|ord| ord <= config.ord) || request.reads().is_some());
    }
}

struct World {
    peer: StreamPeer,
    open: Mr,
    before: Vec<u8>,
    /// Receives and signalled requests that were posted, and completions.
    posted: usize,
    completed: usize,
}

impl World {
    fn new(config: Config, setup: &StreamSetup) -> Self {
        let mut peer = StreamPeer::with(config, setup);
        let host = &mut peer.host;
        host.fill(0, MEMORY, 1);
        let region = std::sync::Arc::clone(&host.region);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let place = (OPEN.start, OPEN.len());
        let open = Mr::register(&mut host.engine, host.pd, &region, place, Some(0x1000), access);
        let before = host.read(0, MEMORY);
        Self { peer, open, before, posted: 0, completed: 0 }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 | 1 => {
                let len = usize::from(input.u8());
                self.peer.say_bytes(input.bytes(len));
            }
            2..=4 => self.segment(input),
            5 => self.post(input),
            6 => self.receive(),
            _ => {
                let _ = self.peer.hear();
            }
        }
    }

    /// A segment with right framing; the key may be replaced by a valid one.
    fn segment(&mut self, input: &mut Input<'_>) {
        let Ok((header, _)) = Header::parse(input.bytes(Header::MAX_LEN)) else { return };
        let header = match header {
            Header::Tagged(tagged) if input.flag() => {
                let offset = 0x1000 + tagged.offset % 0x1100;
                Header::Tagged(Tagged { stag: self.open.rkey(), offset, ..tagged })
            }
            other => other,
        };
        let len = usize::from(input.u8());
        let payload = input.bytes(len).to_vec();
        self.peer.say(&header, &payload);
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let (at, len) = (OWN.start as u64 + 0x1000, u32::from(input.u8()) * 3);
        let remote = Remote { addr: 0, rkey: Rkey(7) };
        let ops = [
            SendOp::Send,
            SendOp::Write(remote),
            SendOp::Read(remote),
            // Only with the extensions.
            SendOp::WriteImm(remote, Imm(5)),
            SendOp::FetchAdd { remote, add: 1 },
        ];
        let op = input.pick(&ops);
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len };
        let wr = SendWr::new(1, op, self.peer.host.data(at, len));
        self.posted += usize::from(self.peer.qp.sq.post(wr).is_ok());
    }

    fn receive(&mut self) {
        let wr = self.peer.host.recv(2, OWN.start as u64, 200);
        let rq = self.peer.qp.rq.as_mut().expect("a receive queue");
        self.posted += usize::from(rq.post(wr).is_ok());
    }

    fn finish(mut self) {
        let _ = self.peer.hear();
        self.peer.host.engine.handle_stream_end(self.peer.now, self.peer.qp.qpn, true);
        let _ = self.peer.hear();
        self.completed += self.peer.host.poll_all().len();
        assert_eq!(self.completed, self.posted, "everything completes when the stream ends");
        let after = self.peer.host.read(0, MEMORY);
        for (at, (before, after)) in self.before.iter().zip(&after).enumerate() {
            let may_change = OPEN.contains(&at) || OWN.contains(&at);
            assert!(may_change || before == after, "byte {at:#x} has changed");
        }
    }
}
