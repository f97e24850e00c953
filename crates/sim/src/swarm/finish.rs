//! What must be true at the end of a run.

use feroce_engine::{Engine, QpState, SendOp};
use feroce_mem::Dereg;

use crate::oracle::Violation;
use crate::swarm::Sabotage;
use crate::swarm::flow::{End, Kind, Life};
use crate::swarm::world::World;

impl World {
    /// The last check of every oracle.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        if self.sabotage == Some(Sabotage::StrayByte) {
            self.nodes[0].memory.region.write_at(0, &[0xa5, 0x5a]).expect("inside the region");
        }
        for end in 0..self.ends.len() {
            self.check_end(end)?;
        }
        for node in 0..self.nodes.len() {
            self.check_counters(node)?;
            self.nodes[node].memory.check(node)?;
            if !self.nodes[node].ended.iter().all(Dereg::is_quiet) {
                let what = format!("node {node}: a registration that has ended is in use");
                return Err(Violation::new("quiescence", what));
            }
            let engines = self.kernel.hosts[node].shards.iter().map(|shard| &shard.engine);
            if let Some(at) = engines.filter_map(Engine::poll_timeout).min() {
                let what = format!("node {node} still wants to be called, at {at:?}");
                return Err(Violation::new("quiescence", what));
            }
        }
        self.check_clean()?;
        for node in 0..self.nodes.len() {
            if self.kernel.hosts[node].shards.len() > 1 {
                self.tear_down(node)?;
            }
        }
        Ok(())
    }

    fn check_end(&self, i: usize) -> Result<(), Violation> {
        let end = &self.ends[i];
        let peer = &self.ends[i ^ 1];
        if end.life == Life::Gone {
            return Ok(());
        }
        if !end.is_posted() || end.sends.outstanding() > 0 {
            return Err(Violation::new("liveness", self.stuck()));
        }
        let state = self.state(i);
        let expected = match end.life {
            Life::Down => QpState::Err,
            _ => QpState::Rts,
        };
        if state != Some(expected) {
            let what = format!("end {i} is in {state:?}, not in {expected:?}");
            return Err(Violation::new("state", what));
        }
        if end.life == Life::Down && end.receives.outstanding() > 0 {
            let what = format!("end {i}: {} receives not flushed", end.receives.outstanding());
            return Err(Violation::new("completions", what));
        }
        let shares = end.srq.is_some() && end.kind != Kind::Xrc;
        if end.last_reached != (shares && end.life == Life::Down) {
            let what = format!("end {i}: last receive reached: {}", end.last_reached);
            return Err(Violation::new("events", what));
        }
        if end.mishap.is_none() && end.kind.is_reliable() {
            let more = peer.steps[end.arrived..].iter();
            let missing = more.filter(|s| s.wr.op.consumes_receive()).count();
            // A flow that was connected again has all its receives again.
            let left = end.receives.outstanding() > 0 && self.specs[i / 2].mishap.is_none();
            if missing > 0 || left {
                let what = format!("end {i}: {missing} messages did not arrive");
                return Err(Violation::new("completions", what));
            }
        }
        self.check_unreliable_writes(i, end)
    }

    /// Every byte that an unreliable write covers has its old or its new value.
    fn check_unreliable_writes(&self, i: usize, end: &End) -> Result<(), Violation> {
        let memory = &self.nodes[self.ends[i ^ 1].node].memory;
        for (index, step) in end.steps.iter().enumerate() {
            let (Some(at), SendOp::Write(_) | SendOp::WriteImm(..)) = (step.target, &step.wr.op)
            else {
                continue;
            };
            let real = memory.real(at, step.payload.len());
            let before = memory.expected(at, step.payload.len());
            let mixed = real.iter().zip(before).zip(&step.payload);
            if mixed.into_iter().any(|((real, old), new)| real != old && real != new) {
                let what = format!("end {i} #{index} left bytes that are neither old nor new");
                return Err(Violation::new("memory", what));
            }
        }
        Ok(())
    }

    /// Every fetch-and-add on a counter returns another number, and none is left out.
    fn check_counters(&mut self, node: usize) -> Result<(), Violation> {
        for (i, counted) in self.nodes[node].counted.iter_mut().enumerate() {
            counted.sort_unstable();
            if !counted.iter().copied().eq(0..counted.len() as u64) {
                let what = format!("node {node}, counter {i}: fetched {counted:?}");
                return Err(Violation::new("atomics", what));
            }
        }
        Ok(())
    }

    /// Without faults, no packet is dropped, and none but late ACK requests is sent twice.
    fn check_clean(&self) -> Result<(), Violation> {
        if !self.knobs.is_clean() {
            return Ok(());
        }
        let shards = || {
            let hosts = self.kernel.hosts.iter().enumerate();
            hosts.flat_map(|(i, host)| host.shards.iter().map(move |shard| (i, &shard.engine)))
        };
        let questions: u64 = shards().map(|(_, engine)| engine.counters().late_ack_requests).sum();
        for (i, engine) in shards() {
            let (counters, drops) = (engine.counters(), engine.drops());
            let unready = counters.send_rnr_err + counters.rcvd_rnr_err;
            let odd = [
                ("drops", drops.total()),
                ("retries", counters.completer_retry_err),
                ("duplicates", counters.duplicate_request.saturating_sub(questions)),
                ("gaps", counters.out_of_seq_request),
                ("timeouts", counters.local_ack_timeout_err),
            ];
            if let (0, Some((what, n))) = (unready, odd.iter().find(|(_, n)| *n > 0)) {
                let what = format!("node {i}: {n} {what} on a perfect wire: {drops:?}");
                return Err(Violation::new("clean", what));
            }
        }
        Ok(())
    }
}
