//! What is done to queue pairs and queues while traffic runs.

use feroce_engine::{QpAttr, QpState};
use feroce_wire::{Lkey, Rkey};

use crate::kernel::Happening;
use crate::oracle::Violation;
use crate::swarm::flow::{End, Life, Mishap, bring_up};
use crate::swarm::node::Node;
use crate::swarm::reach::Reach;
use crate::swarm::shards::deregister;
use crate::swarm::world::{Doing, World};

impl World {
    /// Queues may be resized at any time, and nothing in them is lost.
    pub(crate) fn resize(&mut self, node: usize) {
        self.kernel.record(Happening::Did { what: "resizes queues of node", whom: node });
        let depth = self.dice.range(4096..=9000) as u32;
        let Node { cqs, srqs, .. } = &mut self.nodes[node];
        let host = &mut self.kernel.hosts[node];
        for cq in cqs {
            let resized = cq.resize(host, depth);
            assert_eq!(resized, Ok(()), "the completion queue of node {node} has room");
        }
        let engine = host.first();
        for shared in srqs {
            // Refused if more receives wait.
            let depth = if self.knobs.calm { 4096 } else { self.dice.range(8..=64) as u32 };
            let _ = engine.resize_srq(shared.id, &mut shared.queue, depth);
            let _ = engine.set_srq_limit(shared.id, self.dice.range(0..=8) as u32);
        }
        self.pump(node);
    }

    pub(crate) fn strike(&mut self, end: usize) {
        match self.ends[end].mishap {
            Some(Mishap::Error) => self.hang_up(end),
            Some(Mishap::Reset) => {
                self.set_state(end, QpState::Reset, "resets");
                self.lose(end);
            }
            Some(Mishap::Destroy) => {
                self.kernel.record(Happening::Did { what: "destroys", whom: end });
                let End { node, qpn, .. } = self.ends[end];
                let destroyed = self.engine(end).destroy_qp(qpn);
                assert_eq!(destroyed, Ok(()), "a queue pair can be destroyed at any time");
                self.lose(end);
                self.pump(node);
            }
            Some(Mishap::Dereg) => {
                self.kernel.record(Happening::Did { what: "deregisters", whom: end });
                let node = self.ends[end].node;
                // What the peer may reach at this end.
                let Reach { bytes, words, .. } = &self.reach[end ^ 1];
                let host = &mut self.kernel.hosts[node];
                for key in [bytes.mr.key, words.mr.key] {
                    // Windows may be bound to it, which is a reason to refuse.
                    if let Ok(ended) = deregister(host, Lkey(key), self.sabotage) {
                        self.nodes[node].ended.extend(ended);
                        let peer = &mut self.ends[end ^ 1];
                        peer.ended.push((Rkey(key), peer.next));
                    }
                }
                self.pump(node);
            }
            Some(Mishap::Vanish) => {
                let node = self.ends[end].node;
                self.kernel.record(Happening::Did { what: "falls silent: node", whom: node });
                self.kernel.fabric.remove(node);
            }
            _ => {}
        }
    }

    /// The queue pair of `end` is gone and so is everything posted.
    fn lose(&mut self, end: usize) {
        self.ends[end].life = Life::Gone;
    }

    /// Moves an end to ERR.
    pub(crate) fn hang_up(&mut self, end: usize) {
        if self.ends[end].life == Life::Up {
            self.set_state(end, QpState::Err, "hangs up");
            self.ends[end].life = Life::Down;
            self.tick_soon(self.ends[end].node);
        }
    }

    pub(crate) fn set_state(&mut self, end: usize, state: QpState, what: &'static str) {
        self.kernel.record(Happening::Did { what, whom: end });
        let End { node, qpn, .. } = self.ends[end];
        let now = self.kernel.now();
        let result = self.engine(end).modify_qp(now, qpn, &QpAttr::to(state));
        assert_eq!(result, Ok(()), "end {end} {what}");
        self.pump(node);
    }

    /// Connects a flow again, of which one end was reset. From here on it must work.
    pub(crate) fn revive(&mut self, first: usize) -> Result<(), Violation> {
        for end in [first, first + 1] {
            // What completed before is reported before.
            self.poll(self.ends[end].node)?;
            self.set_state(end, QpState::Reset, "resets");
        }
        let pair = &mut self.ends[first..first + 2];
        let spec = &self.specs[first / 2];
        let now = self.kernel.now();
        bring_up(&mut self.kernel.hosts, &self.nodes, pair, spec, now, &mut self.dice);
        for end in [first, first + 1] {
            let sent = self.ends[end ^ 1].next;
            let this = &mut self.ends[end];
            this.sends.restart();
            this.receives.forget();
            (this.next_recv, this.arrived) = (0, sent);
            (this.life, this.mishap) = (Life::Up, None);
            self.kernel.record(Happening::Did { what: "connects again", whom: end });
            self.tick_soon(self.ends[end].node);
        }
        Ok(())
    }

    /// An end in SQE goes on. What it had posted is flushed by then.
    pub(crate) fn recover(&mut self, end: usize) -> Result<(), Violation> {
        let place = self.place(end);
        let node = place.host;
        if self.kernel.hosts[node].shards.len() > 1 {
            // One of several may not have seen yet what was posted.
            self.kernel.pump(place);
        }
        self.poll(node)?;
        let left = self.ends[end].sends.outstanding();
        if left > 0
            && let Some(at) = self.kernel.hosts[node].shards[place.shard].link_free_at()
        {
            // While its link is busy, an engine does not see what was posted.
            self.kernel.schedule(at.plus_nanos(1), Doing::Recover(end));
            return Ok(());
        }
        if left > 0 {
            let what = format!("end {end} is in SQE, and {left} sends are not flushed");
            return Err(Violation::new("completions", what));
        }
        self.ends[end].sends.restart();
        self.ends[end].life = Life::Up;
        self.set_state(end, QpState::Rts, "recovers");
        self.tick_soon(node);
        Ok(())
    }
}
