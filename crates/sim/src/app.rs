//! The applications: they post, poll, and compare what they get with what must be.

use feroce_engine::{
    Cqe, Notify, PostError, RecvWr, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus,
};
use feroce_train::{Ext, Path, Payload, Single, Train, TrainOps};
use feroce_wire::{Bth, Gid};

use crate::flow::{Kind, Life, Mishap};
use crate::oracle::Violation;
use crate::plan::{Expected, Step};
use crate::swarm::Sabotage;
use crate::trace::Happening;
use crate::world::{Doing, World};

/// Marks the work request id of a receive, and of a receive from a shared queue.
const RECV: u64 = 1 << 63;
const SHARED: u64 = 1 << 62;

/// The train that a packet is.
fn train_of(path: Path, bytes: Vec<u8>) -> Train {
    let (bth, _) = Bth::parse(&bytes).expect("a packet has a BTH");
    Train {
        path,
        bth,
        ops: TrainOps::all(bth.opcode),
        count: 1,
        stride: 0,
        payload_len: 0,
        head: Ext::NONE,
        body: Ext::NONE,
        tail: Ext::NONE,
        lease: None,
        payload: Payload::Packets { len: bytes.len(), bytes },
    }
}

fn bad(what: String) -> Result<(), Violation> {
    Err(Violation::new("completions", what))
}

impl World {
    /// The application of `node` gets to run.
    pub(crate) fn tick(&mut self, node: usize) -> Result<(), Violation> {
        self.poll(node)?;
        if self.nodes[node].style.sleeps {
            for (_, poller) in &self.nodes[node].cqs {
                poller.arm(Notify::Next);
            }
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
            while let Some(cqe) = self.nodes[node].cqs[i].1.poll() {
                self.trace.add(self.now, Happening::Completed { node, cqe });
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

    /// Whether the next step of an end waits for nothing.
    fn is_released(&self, end: usize) -> bool {
        let end = &self.ends[end];
        let Some(Step { after: Some((other, step)), .. }) = end.steps.get(end.next) else {
            return true;
        };
        // On a flow that breaks, what it waits for may never come.
        self.ends[*other].done[*step] || end.life != Life::Up
    }

    fn post_sends(&mut self, end: usize) {
        let most = self.dice.size(1..=8);
        for _ in 0..most {
            let this = &self.ends[end];
            if this.is_posted() || !this.may_post() || !self.is_released(end) {
                break;
            }
            let (node, now) = (self.ends[end].node, self.now);
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
            self.trace.add(now, Happening::Posted { node, end, index, op, len });
            if self.dice.chance(0.5) && !self.express(end) {
                self.ends[end].sq.ring();
            }
        }
        self.ends[end].sq.ring();
    }

    /// Sends what was staged last at once, if the engine does so. False: the doorbell must be rung.
    fn express(&mut self, end: usize) -> bool {
        let Self { ends, nodes, wire, trace, deliveries, now, .. } = self;
        let (this, now) = (&mut ends[end], *now);
        let (number, node) = (this.node, &mut nodes[this.node]);
        // Whoever waits for its link sends nothing meanwhile.
        if !node.style.express || node.pump_at.is_some() {
            return false;
        }
        this.sq.show();
        let mut send = |packet: Single<'_>| {
            let mut bytes = vec![0; packet.len];
            (packet.write)(&mut bytes);
            wire.carry(now, number, &train_of(*packet.path, bytes), trace, deliveries);
            true
        };
        node.engine.express(|| now, this.qpn, &mut send)
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
            self.trace.add(self.now, Happening::Receives { node, count });
        }
        if more && room {
            let at = self.now.plus_nanos(self.dice.range(100..=delay.clamp(100, 1_000_000)));
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
            self.trace.add(self.now, Happening::Receives { node, count });
        }
        if more && room {
            let at = self.now.plus_nanos(self.dice.range(100..=20_000));
            self.want_tick(node, at);
        }
    }

    fn on_completion(&mut self, node: usize, cqe: &Cqe) -> Result<(), Violation> {
        let Some(end) = self.ends.iter().position(|e| e.node == node && e.qpn == cqe.qpn) else {
            return bad(format!("a completion names an unknown queue pair: {cqe:?}"));
        };
        let index = (cqe.wr_id & 0xffff_ffff) as usize;
        let outcome = match cqe.status {
            WcStatus::Success => format!("{:?} {:?}", self.ends[end].kind, cqe.opcode),
            status => format!("{status:?} after {:?}", self.ends[end].mishap),
        };
        *self.outcomes.entry(outcome).or_insert(0) += 1;
        let is_recv = cqe.wr_id & RECV != 0;
        let digest = &mut self.ends[end].digests[usize::from(is_recv)];
        let word = cqe.wr_id ^ (u64::from(cqe.byte_len) << 20) ^ u64::from(cqe.imm.0) << 7;
        let word = word ^ (cqe.status as u64) << 50 ^ (cqe.opcode as u64) << 56;
        *digest = (*digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(19);
        if is_recv {
            self.on_received(end, index, cqe)
        } else if cqe.wr_id >> 32 == end as u64 {
            self.on_sent(end, index, cqe)
        } else {
            bad(format!("end {end} completed a request of another queue pair: {cqe:?}"))
        }
    }

    fn on_sent(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let this = &mut self.ends[end];
        let named = |v: Violation| Violation { what: format!("end {end}: {}", v.what), ..v };
        this.sends.complete(index, cqe.status).map_err(named)?;
        if cqe.status != WcStatus::Success {
            return self.on_failed_send(end, index, cqe);
        }
        for done in &mut this.done[..=index] {
            *done = true;
        }
        let step = &this.steps[index];
        if cqe.opcode != step.opcode {
            return bad(format!("end {end} #{index}: {:?} for {:?}", cqe.opcode, step.wr.op));
        }
        let waiting = self.ends[end ^ 1].node;
        self.tick_soon(waiting);
        self.check_fetched(end, index, cqe)
    }

    /// What a read or atomic brought back is there when its completion is.
    fn check_fetched(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let this = &self.ends[end];
        let Some(fetched) = &this.steps[index].fetched else {
            return Ok(());
        };
        if cqe.byte_len as usize != fetched.len {
            return bad(format!("end {end} #{index}: {} bytes, not {}", cqe.byte_len, fetched.len));
        }
        let memory = &self.nodes[this.node].memory;
        let real = memory.real_gathered(&fetched.pieces, fetched.len);
        match &fetched.what {
            Expected::Anything => Ok(()),
            Expected::Bytes(bytes) if *bytes == real => Ok(()),
            Expected::Bytes(_) => Err(Violation::new(
                "memory",
                format!("end {end} #{index}: {:?} brought back wrong bytes", cqe.opcode),
            )),
            &Expected::Count { node, counter } => {
                let value = u64::from_ne_bytes(real[..].try_into().unwrap_or([0; 8]));
                self.nodes[node].counted[counter].push(value);
                let pieces = fetched.pieces.clone();
                self.nodes[this.node].memory.expect_scattered(&pieces, &real);
                Ok(())
            }
        }
    }

    fn on_failed_send(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let this = &self.ends[end];
        let Some(mishap) = this.mishap else {
            return bad(format!("end {end} #{index} failed on a good flow: {}", cqe.status));
        };
        let allowed = match mishap {
            Mishap::BadRemote => vec![WcStatus::RemoteAccess],
            Mishap::BadLocal => vec![WcStatus::LocalProtection],
            Mishap::SendError => return self.on_send_error(end, index, cqe),
            Mishap::ShortReceive => vec![WcStatus::RemoteInvalidRequest],
            Mishap::NoReceives => vec![WcStatus::RnrRetryExceeded],
            Mishap::Dereg => vec![WcStatus::RemoteAccess, WcStatus::MwBind],
            Mishap::Error | Mishap::Reset | Mishap::Destroy | Mishap::Vanish => vec![],
        };
        // A peer that failed does not answer any more.
        let always = [WcStatus::Flushed, WcStatus::RetryExceeded];
        if !allowed.contains(&cqe.status) && !always.contains(&cqe.status) {
            return bad(format!("end {end} #{index}: {} after {mishap:?}", cqe.status));
        }
        // Somebody notices, and the other end hears of it by and by.
        if self.ends[end].life == Life::Up {
            self.ends[end].life = Life::Down;
            self.tick_soon(self.ends[end].node);
        }
        Ok(())
    }

    /// A send of an unreliable service failed; the receive queue goes on.
    fn on_send_error(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let expected = match self.ends[end].life {
            Life::Up => WcStatus::LocalProtection,
            _ => WcStatus::Flushed,
        };
        if cqe.status != expected {
            return bad(format!("end {end} #{index}: {}, not {expected}", cqe.status));
        }
        if self.ends[end].life == Life::Up {
            self.ends[end].life = Life::Halted;
            let at = self.now.plus_nanos(self.dice.range(1_000..=100_000));
            self.agenda.push(at, Doing::Recover(end));
        }
        Ok(())
    }

    fn on_received(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let (node, srq) = (self.ends[end].node, self.ends[end].srq);
        let named = |v: Violation| Violation { what: format!("end {end}: {}", v.what), ..v };
        let is_shared = cqe.wr_id & SHARED != 0;
        let pieces = match srq {
            Some(i) if is_shared && (cqe.wr_id >> 32) & 0xff == i as u64 => {
                let shared = &mut self.nodes[node].srqs[i];
                shared.ledger.complete(index).map_err(named)?;
                shared.recvs[index].pieces.clone()
            }
            None if !is_shared => {
                self.ends[end].receives.complete(index).map_err(named)?;
                self.ends[end].recvs[index].pieces.clone()
            }
            _ => return bad(format!("end {end}: a receive of another queue: {cqe:?}")),
        };
        if cqe.status != WcStatus::Success {
            return self.on_failed_receive(end, index, cqe);
        }
        let arrived = if self.ends[end].kind.is_reliable() {
            self.next_arrival(end, cqe)?
        } else {
            self.find_arrival(end, cqe, &pieces)?
        };
        self.check_arrival(end, arrived, cqe, &pieces)
    }

    fn on_failed_receive(&mut self, end: usize, index: usize, cqe: &Cqe) -> Result<(), Violation> {
        let allowed = match self.ends[end].mishap {
            None => return bad(format!("end {end} receive #{index} failed: {}", cqe.status)),
            Some(Mishap::ShortReceive) => cqe.status == WcStatus::LocalLength,
            Some(_) => false,
        };
        if !allowed && cqe.status != WcStatus::Flushed {
            return bad(format!("end {end} receive #{index}: {}", cqe.status));
        }
        if self.ends[end].life == Life::Up {
            self.ends[end].life = Life::Down;
        }
        Ok(())
    }

    /// Which step of the peer must be the one that arrived: the next that consumes a receive.
    fn next_arrival(&mut self, end: usize, cqe: &Cqe) -> Result<usize, Violation> {
        let peer = &self.ends[end ^ 1];
        let from = self.ends[end].arrived;
        let next = (from..peer.next).find(|&i| peer.steps[i].wr.op.consumes_receive());
        let Some(step) = next else {
            let what = format!("end {end} received what was never sent: {cqe:?}");
            return Err(Violation::new("completions", what));
        };
        self.ends[end].arrived = step + 1;
        Ok(step)
    }

    /// Which step of the peer arrived on an unreliable flow: one whose bytes are exactly these.
    fn find_arrival(
        &mut self,
        end: usize,
        cqe: &Cqe,
        pieces: &[(usize, usize)],
    ) -> Result<usize, Violation> {
        let (this, peer) = (&self.ends[end], &self.ends[end ^ 1]);
        let memory = &self.nodes[this.node].memory;
        let grh = if this.kind == Kind::Ud { 40 } else { 0 };
        let bytes = memory.real_gathered(pieces, cqe.byte_len as usize);
        let may_repeat = self.knobs.faults.duplicate > 0.0;
        let found = (0..peer.next).find(|&i| {
            let step = &peer.steps[i];
            let fresh = may_repeat || !step.seen;
            let same = match (&step.wr.op, cqe.opcode) {
                (SendOp::Send | SendOp::SendImm(_), WcOpcode::Recv) => {
                    bytes.get(grh..) == Some(&step.payload[..])
                }
                (SendOp::WriteImm(..), WcOpcode::RecvWriteImm) => {
                    cqe.byte_len as usize == step.payload.len()
                }
                _ => false,
            };
            let solicited = step.wr.flags.contains(SendFlags::SOLICITED);
            fresh && same && imm_of(&step.wr.op) == imm_in(cqe) && cqe.solicited == solicited
        });
        match found {
            Some(step) => {
                self.ends[end ^ 1].steps[step].seen = true;
                Ok(step)
            }
            None => {
                let what = format!("end {end} received what nobody sent: {cqe:?}");
                Err(Violation::new("messages", what))
            }
        }
    }

    /// A message arrived: is it what was sent?
    fn check_arrival(
        &mut self,
        end: usize,
        step: usize,
        cqe: &Cqe,
        pieces: &[(usize, usize)],
    ) -> Result<(), Violation> {
        let node = self.ends[end].node;
        let (kind, peer) = (self.ends[end].kind, &self.ends[end ^ 1]);
        let Step { wr, payload, target, .. } = &peer.steps[step];
        let grh = if kind == Kind::Ud { 40 } else { 0 };
        let is_write = matches!(wr.op, SendOp::WriteImm(..));
        let opcode = if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
        let facts = [
            ("opcode", cqe.opcode == opcode),
            ("length", cqe.byte_len as usize == payload.len() + grh),
            ("immediate", imm_of(&wr.op) == imm_in(cqe)),
            ("source", cqe.src_qp == peer.qpn),
            ("solicited", cqe.solicited == wr.flags.contains(SendFlags::SOLICITED)),
            ("key", inv_of(&wr.op) == inv_in(cqe)),
        ];
        if let Some((what, _)) = facts.iter().find(|(_, holds)| !holds) {
            return bad(format!(
                "end {end} got #{step} {:?} with the wrong {what}: {cqe:?}",
                wr.op
            ));
        }
        let source = self.nodes[peer.node].gid;
        let memory = &mut self.nodes[node].memory;
        let (real, what) = match (is_write, target) {
            (true, Some(at)) => (memory.real(*at, payload.len()), "wrote"),
            (true, None) => return Ok(()),
            (false, _) => {
                let mut bytes = memory.real_gathered(pieces, payload.len() + grh);
                let area: Vec<u8> = bytes.drain(..grh).collect();
                if !area.is_empty() && !names_source(&area, source) {
                    return bad(format!("end {end} got #{step} from elsewhere: {area:02x?}"));
                }
                (bytes, "sent")
            }
        };
        if real != *payload {
            let what = format!("end {end} got #{step}, but not the bytes that the peer {what}");
            return Err(Violation::new("memory", what));
        }
        if !is_write {
            memory.expect_scattered(pieces, &real);
        }
        Ok(())
    }
}

/// Whether the header area before a datagram names the sender.
fn names_source(area: &[u8], source: Gid) -> bool {
    match source.as_ipv4() {
        Some(ip) => area[20] >> 4 == 4 && area[32..36] == ip,
        None => area[0] >> 4 == 6 && area[8..24] == source.0,
    }
}

fn imm_of(op: &SendOp) -> Option<u32> {
    match op {
        SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => Some(imm.0),
        _ => None,
    }
}

fn imm_in(cqe: &Cqe) -> Option<u32> {
    cqe.flags.contains(WcFlags::WITH_IMM).then_some(cqe.imm.0)
}

fn inv_of(op: &SendOp) -> Option<u32> {
    match op {
        SendOp::SendInv(rkey) => Some(rkey.0),
        _ => None,
    }
}

fn inv_in(cqe: &Cqe) -> Option<u32> {
    cqe.flags.contains(WcFlags::WITH_INV).then_some(cqe.invalidated.0)
}
