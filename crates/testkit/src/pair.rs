//! Two hosts, the time, and a wire that loses nothing.

use feroce_engine::{Config, QpAttr, QpInitAttr, QpType};
use feroce_train::Instant;
use feroce_wire::{Pmtu, Psn};

use crate::{Host, TestQp, bring_up, datagram_qp};

/// When tests start.
pub const START: Instant = Instant::from_nanos(1_000_000);

/// Two hosts and the time.
#[derive(Debug)]
pub struct Pair {
    /// The time.
    pub now: Instant,
    /// Host 1.
    pub a: Host,
    /// Host 2.
    pub b: Host,
    /// Path MTU of connections.
    pub mtu: Pmtu,
}

impl Default for Pair {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Pair {
    /// Two hosts with engines configured so.
    pub fn new(config: Config) -> Self {
        Self {
            now: START,
            a: Host::with_config(1, config.clone()),
            b: Host::with_config(2, config),
            mtu: Pmtu::B1024,
        }
    }

    /// Two connected queue pairs in RTS.
    pub fn connect(&mut self, qp_type: QpType) -> (TestQp, TestQp) {
        let (ia, ib) = (self.a.init_attr(qp_type), self.b.init_attr(qp_type));
        self.connect_with(ia, ib, QpAttr::default())
    }

    /// The same, with attributes that override the defaults where the transition takes them.
    pub fn connect_with(
        &mut self,
        ia: QpInitAttr,
        ib: QpInitAttr,
        with: QpAttr,
    ) -> (TestQp, TestQp) {
        let mut qa = self.a.create_qp(ia);
        let mut qb = self.b.create_qp(ib);
        qa.first_psn = Psn::new(0x00ff_fff0);
        qb.first_psn = Psn::new(0x100);
        let (ga, gb) = (self.a.gid, self.b.gid);
        bring_up(&mut self.a, self.now, &qa, (gb, qb.qpn, qb.first_psn), self.mtu, &with);
        bring_up(&mut self.b, self.now, &qb, (ga, qa.qpn, qa.first_psn), self.mtu, &with);
        (qa, qb)
    }

    /// Two datagram queue pairs in RTS.
    pub fn datagrams(&mut self) -> (TestQp, TestQp) {
        (datagram_qp(&mut self.a, self.now), datagram_qp(&mut self.b, self.now))
    }

    /// Carries packets both ways until neither host has any to send.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let from_a = self.a.transmit(self.now);
            let from_b = self.b.transmit(self.now);
            if from_a.is_empty() && from_b.is_empty() {
                return;
            }
            self.now = self.now.plus_nanos(1000);
            for p in from_a {
                self.b.receive(self.now, &p);
            }
            for p in from_b {
                self.a.receive(self.now, &p);
            }
        }
        panic!("the two hosts never stop sending");
    }

    /// Advances the time by `ns` and serves the timers of both hosts.
    pub fn wait(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        self.a.engine.handle_timeout(self.now);
        self.b.engine.handle_timeout(self.now);
    }
}
