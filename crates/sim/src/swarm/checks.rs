//! Every completion is compared with what the plan says must come of the request.

use feroce_engine::{Cqe, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus};
use feroce_wire::Gid;

use crate::oracle::Violation;
use crate::swarm::app::{RECV, SHARED};
use crate::swarm::flow::{Kind, Life, Mishap};
use crate::swarm::step::{Expected, Step};
use crate::swarm::world::{Doing, World};

fn bad(what: String) -> Result<(), Violation> {
    Err(Violation::new("completions", what))
}

impl World {
    /// A completion was polled at a node.
    pub(super) fn on_completion(&mut self, node: usize, cqe: &Cqe) -> Result<(), Violation> {
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
        if let Some((key, wrong)) = this.used_after_end(index) {
            let what = format!("end {end} #{wrong} used key {:#x} after it had ended", key.0);
            return Err(Violation::new("memory", what));
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
        // This end has noticed; its peer notices by a timeout or an error of its own.
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
            let at = self.kernel.now().plus_nanos(self.dice.range(1_000..=100_000));
            self.kernel.schedule(at, Doing::Recover(end));
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
                let what = format!("end {end} received what its peer did not send: {cqe:?}");
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
        let source = self.kernel.hosts[peer.node].gid;
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
