//! What is done to queue pairs and queues while traffic runs.

use feroce_engine::{QpAttr, QpState};
use feroce_wire::Lkey;

use crate::flow::{End, Life, Mishap, bring_up};
use crate::node::Node;
use crate::oracle::Violation;
use crate::plan::Reach;
use crate::trace::Happening;
use crate::world::{Doing, World};

impl World {
    /// Queues may be resized at any time, and nothing in them is lost.
    pub(crate) fn resize(&mut self, node: usize) {
        self.trace.add(self.now, Happening::Did { what: "resizes queues of node", whom: node });
        let depth = self.dice.range(4096..=9000) as u32;
        let Node { engine, cqs, srqs, .. } = &mut self.nodes[node];
        for (id, poller) in cqs {
            let resized = engine.resize_cq(*id, poller, depth);
            assert_eq!(resized, Ok(()), "the completion queue of node {node} has room");
        }
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
                self.trace.add(self.now, Happening::Did { what: "destroys", whom: end });
                let End { node, qpn, .. } = self.ends[end];
                let destroyed = self.nodes[node].engine.destroy_qp(qpn);
                assert_eq!(destroyed, Ok(()), "a queue pair can be destroyed at any time");
                self.lose(end);
                self.pump(node);
            }
            Some(Mishap::Dereg) => {
                self.trace.add(self.now, Happening::Did { what: "deregisters", whom: end });
                let node = self.ends[end].node;
                // What the peer may reach at this end.
                let Reach { bytes, words, .. } = &self.reach[end ^ 1];
                for key in [bytes.mr.key, words.mr.key] {
                    // Windows may be bound to it, which is a reason to refuse.
                    let _ = self.nodes[node].engine.dereg_mr(Lkey(key));
                }
                self.pump(node);
            }
            Some(Mishap::Vanish) => {
                let node = self.ends[end].node;
                self.trace.add(self.now, Happening::Did { what: "falls silent: node", whom: node });
                self.wire.remove(node);
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
        self.trace.add(self.now, Happening::Did { what, whom: end });
        let End { node, qpn, .. } = self.ends[end];
        let result = self.nodes[node].engine.modify_qp(self.now, qpn, &QpAttr::to(state));
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
        bring_up(&mut self.nodes, pair, spec, self.now, &mut self.dice);
        for end in [first, first + 1] {
            let sent = self.ends[end ^ 1].next;
            let this = &mut self.ends[end];
            this.sends.restart();
            this.receives.forget();
            (this.next_recv, this.arrived) = (0, sent);
            (this.life, this.mishap) = (Life::Up, None);
            self.trace.add(self.now, Happening::Did { what: "connects again", whom: end });
            self.tick_soon(self.ends[end].node);
        }
        Ok(())
    }

    /// An end in SQE goes on. What it had posted is flushed by then.
    pub(crate) fn recover(&mut self, end: usize) -> Result<(), Violation> {
        let node = self.ends[end].node;
        self.poll(node)?;
        let left = self.ends[end].sends.outstanding();
        if left > 0
            && let Some(at) = self.nodes[node].pump_at
        {
            // While its link is busy, an engine hears of nothing that was posted.
            self.agenda.push(at.plus_nanos(1), Doing::Recover(end));
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
