//! Two hosts whose queue pairs are joined by a byte stream, which is cut as the test says.

use std::collections::VecDeque;

use feroce_engine::iwarp::{StreamEvent, StreamSetup};
use feroce_engine::{Config, QpAttr, QpType, TransportKind};
use feroce_mem::Access;
use feroce_train::{Burst, Instant, Scatter};
use feroce_wire::Qpn;

use crate::{Host, START, TestQp};

/// Bytes that one poll of a stream asks for.
const ROOM: usize = 4000;

/// One direction of a stream.
#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// The sender has closed it behind these bytes.
    is_closed: bool,
    /// The receiver knows that.
    is_over: bool,
}

/// Two hosts and a stream between them.
#[derive(Debug)]
pub struct Streams {
    /// The time.
    pub now: Instant,
    /// The initiator.
    pub a: Host,
    /// The responder.
    pub b: Host,
    /// How streams have ended, of the initiator and of the responder.
    pub ends: [Vec<StreamEvent>; 2],
    /// Payload is received into memory where the engines give it a place.
    pub may_land: bool,
    /// How many bytes were.
    pub landed: usize,
    qpns: Option<[Qpn; 2]>,
    directions: [Direction; 2],
}

impl Default for Streams {
    fn default() -> Self {
        Self::with(Config { transport: TransportKind::Iwarp, ..Config::default() })
    }
}

impl Streams {
    /// Two hosts of this configuration.
    pub fn with(config: Config) -> Self {
        Self {
            now: START,
            a: Host::with_config(1, config.clone()),
            b: Host::with_config(2, config),
            ends: Default::default(),
            may_land: false,
            landed: 0,
            qpns: None,
            directions: Default::default(),
        }
    }

    /// A queue pair on each host, joined by a stream.
    pub fn connect(&mut self, a: &StreamSetup, b: &StreamSetup) -> (TestQp, TestQp) {
        let qa = attached(&mut self.a, self.now, a);
        let qb = attached(&mut self.b, self.now, b);
        self.qpns = Some([qa.qpn, qb.qpn]);
        (qa, qb)
    }

    /// Carries bytes both ways until neither host has any to say. `cut` says how many of the bytes
    /// that wait TCP takes and delivers next; there is at least one.
    pub fn run(&mut self, mut cut: impl FnMut(usize) -> usize) {
        for _ in 0..1_000_000 {
            if !self.step(&mut cut) {
                return;
            }
        }
        panic!("the two hosts never stop sending");
    }

    /// One delivery in each direction; false: nothing moved.
    pub fn step(&mut self, cut: &mut dyn FnMut(usize) -> usize) -> bool {
        self.step_damaged(cut, &mut |_| {})
    }

    /// As [`Streams::step`]; `damage` changes what is delivered.
    pub fn step_damaged(
        &mut self,
        cut: &mut dyn FnMut(usize) -> usize,
        damage: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let qpns = self.qpns.expect("connected");
        let mut moved = false;
        self.now = self.now.plus_nanos(1000);
        for side in [0, 1] {
            let (sender, receiver) = match side {
                0 => (&mut self.a, &mut self.b),
                _ => (&mut self.b, &mut self.a),
            };
            let direction = &mut self.directions[side];
            while let Some(qpn) = sender.engine.poll_stream_ready(self.now) {
                let mut out = Burst::default();
                let is_over = sender.engine.poll_stream(self.now, qpn, ROOM, &mut out);
                moved |= !out.is_empty();
                direction.bytes.extend(out.copied(0));
                direction.is_closed |= is_over;
            }
            if !direction.bytes.is_empty() {
                moved = true;
                let waiting = direction.bytes.len();
                let some = cut(waiting).clamp(1, waiting);
                let mut arrived: Vec<u8> = direction.bytes.drain(..some).collect();
                damage(&mut arrived);
                sender.engine.handle_stream_sent(self.now, qpns[side], some);
                let mut rest = &arrived[..];
                while self.may_land && !rest.is_empty() {
                    let landed = land(receiver, self.now, qpns[1 - side], &mut rest);
                    if landed == 0 {
                        break;
                    }
                    self.landed += landed;
                }
                receiver.engine.handle_stream(self.now, qpns[1 - side], rest);
            } else if direction.is_closed && !direction.is_over {
                moved = true;
                direction.is_over = true;
                receiver.engine.handle_stream_end(self.now, qpns[1 - side], false);
            }
        }
        self.ends[0].extend(std::iter::from_fn(|| self.a.engine.poll_stream_event()));
        self.ends[1].extend(std::iter::from_fn(|| self.b.engine.poll_stream_event()));
        moved
    }

    /// Lets time pass until a timer of one of the hosts is due; false: they wait for none.
    pub fn sleep(&mut self) -> bool {
        let hosts = [&mut self.a, &mut self.b];
        let Some(next) = hosts.iter().filter_map(|host| host.engine.poll_timeout()).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for host in hosts {
            if host.engine.poll_timeout().is_some_and(|at| at <= self.now) {
                host.engine.handle_timeout(self.now);
            }
        }
        true
    }
}

/// Receives as a driver does that reads payload into memory: takes from `bytes` what the memory
/// has room for, and what stands behind it. Returns how many bytes went to memory; 0: nothing was
/// taken.
pub fn land(host: &mut Host, now: Instant, qpn: Qpn, bytes: &mut &[u8]) -> usize {
    let mut scatter = Scatter::default();
    host.engine.lend_scatter(now, qpn, &mut scatter);
    if scatter.is_empty() {
        return 0;
    }
    let landed = scatter.copy_in(bytes);
    host.engine.handle_stream_landed(now, qpn, landed);
    let (behind, rest) = bytes[landed..].split_at(scatter.behind.min(bytes.len() - landed));
    *bytes = rest;
    host.engine.handle_stream(now, qpn, behind);
    landed
}

/// A queue pair of iWARP whose stream is set up so; the test is its peer.
pub fn attached(host: &mut Host, now: Instant, setup: &StreamSetup) -> TestQp {
    let qp = host.create_qp(host.init_attr(QpType::Rc));
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    host.modify(now, qp.qpn, &QpAttr::init(access));
    host.engine.attach_stream(now, qp.qpn, setup).expect("a queue pair in INIT");
    qp
}
