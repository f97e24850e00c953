//! A connection manager between a consumer and a network that do what the input says.

use std::collections::BTreeMap;

use feroce_cm::rdma::{PortSpace, connect_data, sidr_data};
use feroce_cm::{
    Accept, Accepts, Ask, Config, ConnId, Connect, Event, Manager, Peer, Reply, Serves, Transmit,
};
use feroce_train::Instant;
use feroce_wire::cm::{RejReason, ServiceId};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Gid, Qkey, Qpn};

use crate::input::Input;

const US: Gid = Gid::from_ipv4([10, 0, 0, 1]);
const THEM: Gid = Gid::from_ipv4([10, 0, 0, 2]);
const MAX_ACTIONS: usize = 256;
const LIMIT: usize = 24;

/// What the consumer knows of a connection.
#[derive(Default)]
struct Known {
    ended: bool,
    destroyed: bool,
}

struct World {
    manager: Manager,
    now: Instant,
    known: BTreeMap<ConnId, Known>,
    /// What the manager sent, to come back changed.
    sent: Vec<Transmit>,
}

/// Every byte chooses what happens next: a call of the consumer, a datagram (from the input, or
/// one that the manager sent itself, from the other side or changed), or time that passes.
///
/// Nothing may panic, every connection ends at most once and says nothing after it was destroyed,
/// memory stays bounded, and when everything is destroyed and time has passed, nothing is left.
pub fn cm_manager(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let config = Config {
        seed: 1,
        max_half_open: LIMIT,
        max_remembered: LIMIT,
        patience_ns: 1_000_000,
        max_early: LIMIT,
        answers_per_second: 100,
        max_queued: 64,
        ..Config::default()
    };
    let mut manager = Manager::new(config);
    let now = Instant::from_nanos(1_000_000_000);
    for service in services() {
        let is_udp = service.as_ip().is_some_and(|(space, _)| space == PortSpace::Udp);
        let serves = if is_udp { Serves::Datagrams } else { Serves::Connections };
        manager.listen(now, service, Accepts::Any, serves, 8).expect("the service is free");
    }
    let mut world = World { manager, now, known: BTreeMap::new(), sent: Vec::new() };
    for _ in 0..MAX_ACTIONS {
        if input.is_empty() {
            break;
        }
        world.action(&mut input);
        world.drain();
    }
    world.finish();
}

fn services() -> [ServiceId; 3] {
    let ip = ServiceId::ip;
    [ip(PortSpace::Tcp, 7), ip(PortSpace::Udp, 7), ServiceId(0x1234)]
}

impl World {
    fn action(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.u8() % 16 {
            0 => self.connect(input),
            1 => self.ask(input),
            2 => {
                let accept = Accept { qpn: Qpn::new(input.u8().into()), ..Accept::default() };
                let _ = self.conn(input).map(|c| self.manager.accept(now, c, &accept));
            }
            3 => {
                let reason = RejReason(input.u8().into());
                let _ = self.conn(input).map(|c| self.manager.reject(now, c, reason, &[7; 148]));
            }
            4 => {
                let _ = self.conn(input).map(|c| self.manager.ready(c));
            }
            5 => {
                let _ = self.conn(input).map(|c| self.manager.establish(c));
            }
            6 => {
                let _ = self.conn(input).map(|c| self.manager.disconnect(now, c));
            }
            7 => {
                let qpn = Qpn::new(input.u8().into());
                let reply = Reply { qpn, qkey: Qkey(1), private_data: [0; 136] };
                let _ = self.conn(input).map(|c| self.manager.reply(now, c, &reply));
            }
            8 => {
                if let Some(conn) = self.conn(input) {
                    self.manager.destroy(now, conn);
                    self.known.entry(conn).or_default().destroyed = true;
                }
            }
            9 | 10 => self.pass(u64::from(input.u8()) << 26),
            11 => {
                let mad = input.bytes(MAD_LEN).to_vec();
                self.deliver(input.flag(), &mad);
            }
            _ => self.reflect(input),
        }
    }

    /// One of the connections that the consumer has heard of.
    fn conn(&self, input: &mut Input<'_>) -> Option<ConnId> {
        let at = input.below(self.known.len().max(1));
        self.known.keys().nth(at).copied()
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let (src, dst) = (([10, 0, 0, 1], 9).into(), ([10, 0, 0, 2], 7).into());
        let connect = Connect {
            peer: Peer::new(US, THEM),
            service: input.pick(&services()),
            qpn: Qpn::new(input.u8().into()),
            private_data: connect_data(src, dst, b"x").expect("it fits"),
            ..Connect::default()
        };
        let conn = self.manager.connect(self.now, &connect);
        self.known.insert(conn, Known::default());
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let (src, dst) = (([10, 0, 0, 1], 9).into(), ([10, 0, 0, 2], 7).into());
        let ask = Ask {
            peer: Peer::new(US, THEM),
            service: input.pick(&services()),
            private_data: sidr_data(src, dst, b"x").expect("it fits"),
        };
        let conn = self.manager.ask(self.now, &ask);
        self.known.insert(conn, Known::default());
    }

    /// Something that was sent comes back, as if the other side had said it: identifiers change
    /// sides, paths turn round, and the input changes some bytes.
    fn reflect(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.sent.len().max(1));
        let Some(sent) = self.sent.get(at) else { return };
        let mut mad = sent.bytes;
        let how = input.u8();
        if how & 1 == 0 {
            let (ids, rest) = mad[24..].split_at_mut(4);
            ids.swap_with_slice(&mut rest[..4]);
        }
        if mad[17] == 0x10 && how & 2 == 0 {
            let (from, to) = mad[24 + 56..].split_at_mut(16);
            from.swap_with_slice(&mut to[..16]);
        }
        if how & 4 != 0 {
            // Another message: what answers what is a matter of the attribute.
            mad[17] = 0x10 + input.u8() % 11;
        }
        for _ in 0..how >> 5 {
            mad[input.below(MAD_LEN)] = input.u8();
        }
        self.deliver(how & 8 == 0, &mad);
    }

    fn deliver(&mut self, from_peer: bool, mad: &[u8]) {
        let remote = if from_peer { THEM } else { US };
        self.manager.handle_mad(self.now, Peer::new(US, remote), mad);
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        self.manager.handle_timeout(self.now);
        let next = self.manager.poll_timeout();
        assert!(next.is_none_or(|at| at > self.now), "due at {next:?}, now it is {:?}", self.now);
    }

    fn drain(&mut self) {
        while let Some(mad) = self.manager.poll_mad() {
            feroce_wire::fuzzing::mad(&mad.bytes);
            if self.sent.len() < 64 {
                self.sent.push(mad);
            }
        }
        while let Some(event) = self.manager.poll_event() {
            let known = self.known.entry(event.conn()).or_default();
            assert!(!known.destroyed, "{event:?} after the end");
            match event {
                Event::TimewaitExit { .. } => assert!(known.ended),
                Event::Request(incoming) => self.manager.taken(incoming.listener),
                Event::SidrRequest(incoming) => self.manager.taken(incoming.listener),
                event => {
                    assert!(!known.ended, "{event:?} after the end");
                    known.ended = event.is_final();
                }
            }
        }
        // What the consumer asked for, and as much again of each kind of what it did not.
        assert!(self.manager.len() <= MAX_ACTIONS + 2 * LIMIT);
    }

    fn finish(mut self) {
        for _ in 0..100 {
            // A request that was held while its peer was asked becomes a connection only now.
            let left = self.known.iter().filter(|(_, known)| !known.destroyed);
            let left: Vec<ConnId> = left.map(|(conn, _)| *conn).collect();
            for conn in left {
                self.manager.destroy(self.now, conn);
                self.known.entry(conn).or_default().destroyed = true;
            }
            self.drain();
            // Longer than anything may take, in steps that are longer than any interval.
            self.pass(600_000_000_000);
        }
        assert!(self.manager.is_empty(), "{:?}", self.manager);
    }
}
