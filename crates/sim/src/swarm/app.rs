//! The applications: they post what was planned, and poll.

use feroce_engine::{PostError, RecvWr};

use crate::kernel::Happening;
use crate::oracle::Violation;
use crate::swarm::Sabotage;
use crate::swarm::flow::{End, Life};
use crate::swarm::shards::Cq;
use crate::swarm::step::Step;
use crate::swarm::world::World;

/// Marks the work request id of a receive, and of a receive from a shared queue.
pub(super) const RECV: u64 = 1 << 63;
pub(super) const SHARED: u64 = 1 << 62;

impl World {
    /// The application of `node` runs.
    pub(crate) fn tick(&mut self, node: usize) -> Result<(), Violation> {
        self.poll(node)?;
        if self.nodes[node].habits.sleeps {
            self.nodes[node].cqs.iter_mut().for_each(Cq::arm);
            self.poll(node)?;
        }
        for i in 0..self.nodes[node].srqs.len() {
            self.post_shared(node, i);
        }
        for end in 0..self.ends.len() {
            if self.ends[end].node == node {
                self.post_receives(end);
                self.post_sends(end);
            }
        }
        self.pump(node);
        Ok(())
    }

    pub(crate) fn poll(&mut self, node: usize) -> Result<(), Violation> {
        for i in 0..self.nodes[node].cqs.len() {
            while let Some(cqe) = self.nodes[node].cqs[i].take_one(&mut self.for_shards) {
                self.kernel.record(Happening::Completed { node, cqe });
                if self.sabotage == Some(Sabotage::LoseCompletion) {
                    self.sabotage = None;
                    continue;
                }
                self.on_completion(node, &cqe)?;
                if self.sabotage == Some(Sabotage::DoubleCompletion) {
                    self.sabotage = None;
                    self.on_completion(node, &cqe)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the application could post something that it could not post before.
    pub(crate) fn can_post(&mut self, node: usize) -> bool {
        (0..self.ends.len()).any(|end| {
            self.ends[end].node == node
                && self.ends[end].may_post()
                && self.ends[end].next < self.ends[end].steps.len()
                && self.is_released(end)
                && self.ends[end].sq.free() > 0
        })
    }

    /// Whether the next step of an end waits for no other step.
    fn is_released(&self, end: usize) -> bool {
        let end = &self.ends[end];
        let Some(Step { after: Some((other, step)), .. }) = end.steps.get(end.next) else {
            return true;
        };
        // On a flow that fails, the step that it waits for may never complete.
        self.ends[*other].done[*step] || end.life != Life::Up
    }

    fn post_sends(&mut self, end: usize) {
        let most = self.dice.size(1..=8);
        for _ in 0..most {
            let this = &self.ends[end];
            if this.is_posted() || !this.may_post() || !self.is_released(end) {
                break;
            }
            let node = self.ends[end].node;
            let this = &mut self.ends[end];
            let index = this.next;
            let wr = this.steps[index].wr.clone();
            let (op, len) = (wr.op, wr.data.len());
            match this.sq.stage(wr) {
                Ok(()) => {}
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("end {end} cannot post #{index}: {error}"),
            }
            this.next += 1;
            let signaled = this.steps[index].is_signaled() || this.sq_sig_all;
            this.sends.post(index, signaled);
            self.kernel.record(Happening::Posted { node, end, index, op, len });
            if self.dice.chance(0.5) && !self.fast_path(end) {
                self.ends[end].sq.ring();
            }
        }
        self.ends[end].sq.ring();
    }

    /// Sends the request that was staged last directly, if the engine does so. False: the doorbell
    /// must be rung.
    fn fast_path(&mut self, end: usize) -> bool {
        let place = self.place(end);
        let End { node, qpn, sq, .. } = &mut self.ends[end];
        let host = &self.kernel.hosts[*node];
        // While its link is busy, a shard sends nothing.
        if !host.style.fast_path || host.shards[place.shard].link_free_at().is_some() {
            return false;
        }
        sq.show();
        self.kernel.send_directly(place, *qpn)
    }

    pub(crate) fn post_receives(&mut self, end: usize) {
        let delay = self.ends[end].recv_delay_ns;
        let waits = delay == u64::MAX && self.ends[end].life == Life::Up;
        if waits || !self.ends[end].may_post() {
            return;
        }
        let most = if delay == 0 { usize::MAX } else { self.dice.size(0..=2) };
        let this = &mut self.ends[end];
        let Some(rq) = this.rq.as_mut() else { return };
        let mut count = 0;
        while count < most && this.next_recv < this.recvs.len() {
            let index = this.next_recv;
            let wr_id = RECV | (end as u64) << 32 | index as u64;
            let wr = RecvWr { wr_id, sges: this.recvs[index].wr.sges.clone() };
            match rq.post(wr) {
                Ok(_) => this.receives.post(index),
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("end {end} cannot post receive #{index}: {error}"),
            }
            this.next_recv += 1;
            count += 1;
        }
        let (node, more) = (this.node, this.next_recv < this.recvs.len());
        let room = rq.free() > 0;
        if count > 0 {
            self.kernel.record(Happening::Receives { node, count });
        }
        if more && room {
            let at =
                self.kernel.now().plus_nanos(self.dice.range(100..=delay.clamp(100, 1_000_000)));
            self.want_tick(node, at);
        }
    }

    pub(crate) fn post_shared(&mut self, node: usize, i: usize) {
        let most = if self.knobs.calm { usize::MAX } else { self.dice.size(0..=4) };
        let shared = &mut self.nodes[node].srqs[i];
        let mut count = 0;
        while count < most && shared.next < shared.recvs.len() {
            let index = shared.next;
            let wr_id = RECV | SHARED | (i as u64) << 32 | index as u64;
            let wr = RecvWr { wr_id, sges: shared.recvs[index].wr.sges.clone() };
            match shared.queue.post(wr) {
                Ok(()) => shared.ledger.post(index),
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("node {node} cannot post shared receive #{index}: {error}"),
            }
            shared.next += 1;
            count += 1;
        }
        let (more, room) = (shared.next < shared.recvs.len(), shared.queue.free() > 0);
        if count > 0 {
            self.kernel.record(Happening::Receives { node, count });
        }
        if more && room {
            let at = self.kernel.now().plus_nanos(self.dice.range(100..=20_000));
            self.want_tick(node, at);
        }
    }
}
