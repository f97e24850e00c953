//! Windows and fast registrations: one end binds them, the other uses them, either invalidates
//! them.

use std::sync::Arc;

use feroce_engine::{Data, Remote, SendFlags, SendOp};
use feroce_mem::{Bind, MwType};
use feroce_testkit::ALL;
use feroce_wire::{Lkey, Rkey};

use crate::swarm::plan::Planner;
use crate::swarm::reach::{Area, Reach, Token};

impl Planner<'_> {
    /// The peer of `side` binds a key to part of what `side` may write, `side` uses it, and it is
    /// taken back.
    pub(crate) fn window_cycle(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        let (owner, user) = (self.first + (side ^ 1), self.first + side);
        let (token, old) = self.token(side ^ 1, reach)?;
        let tag = (old as u8).wrapping_add(self.dice.small(1..=255));
        let key = (old & !0xff) | u32::from(tag);
        let Area { at, len, mr } = reach.bytes;
        let part = self.dice.size(1..=len);
        let start = at + self.dice.size(0..=len - part);
        let zero_based = token == Token::Two && self.dice.chance(0.5);
        let iova = match token {
            Token::Fast => self.dice.any() >> 2,
            _ if zero_based => 0,
            _ => mr.remote(start).addr,
        };
        let access = ALL - feroce_mem::Access::LOCAL_WRITE - feroce_mem::Access::MW_BIND;
        let op = match token {
            Token::Fast => {
                let access = access | feroce_mem::Access::LOCAL_WRITE;
                let (offset, len) = (start as u64, part as u64);
                SendOp::Reg { key: Lkey(key), offset, len, iova, access }
            }
            Token::One | Token::Two => SendOp::BindMw {
                mw: Rkey(old),
                new_rkey: Rkey(key),
                binding: Bind {
                    mr: Lkey(mr.key),
                    addr: mr.remote(start).addr,
                    len: part as u64,
                    access,
                    zero_based,
                },
            },
        };
        let bind = self.push_simple(side ^ 1, op, Data::EMPTY, Vec::new());
        self.mark(owner, bind, reach.windows.free_after.take());
        let remote =
            |at: usize| Remote { addr: iova.wrapping_add((at - start) as u64), rkey: Rkey(key) };
        let mut last = (user, 0);
        for i in 0..self.dice.size(1..=3) {
            let index = if self.dice.chance(0.6) {
                self.write_via(side, reach, start, part, &remote)?
            } else {
                reach.read = true;
                self.read_via(side, start, part, &remote)?
            };
            self.mark(user, index, (i == 0).then_some((owner, bind)));
            last = (user, index);
        }
        reach.windows.token = Some((token, key));
        reach.windows.free_after = Some(match token {
            Token::One => last,
            _ if self.dice.chance(0.5) => self.invalidate(side, key)?,
            _ => {
                let op = SendOp::LocalInv(Rkey(key));
                let index = self.push_simple(side ^ 1, op, Data::EMPTY, Vec::new());
                self.mark(owner, index, Some(last));
                (owner, index)
            }
        });
        Some(())
    }

    /// `side` invalidates the key of its peer with a send.
    fn invalidate(&mut self, side: usize, key: u32) -> Option<(usize, usize)> {
        let (owner, user) = (self.first + (side ^ 1), self.first + side);
        let most = if self.ends[owner].srq.is_some() { self.srq_len } else { self.longest };
        let len = self.len(most);
        let (data, payload) = self.gather(side, len);
        self.receive(side, len)?;
        let index = self.push_simple(side, SendOp::SendInv(Rkey(key)), data, payload);
        // Reads through the key must complete before it is invalidated.
        self.ends[user].steps[index].wr.flags |= SendFlags::FENCE;
        self.mark(user, index, None);
        Some((user, index))
    }

    /// Step `index` of `end` reports its completion and waits for `after`.
    fn mark(&mut self, end: usize, index: usize, after: Option<(usize, usize)>) {
        let step = &mut self.ends[end].steps[index];
        step.wr.flags |= SendFlags::SIGNALED;
        step.after = after;
    }

    /// The key in use between the two, made if need be.
    fn token(&mut self, owner: usize, reach: &Reach) -> Option<(Token, u32)> {
        if let Some(token) = reach.windows.token {
            return Some(token);
        }
        let end = &self.ends[self.first + owner];
        let (node, engine) = (&self.nodes[end.node], self.hosts[end.node].first());
        let pd = node.domains[end.domain].pd;
        let token = self.dice.pick(&[Token::One, Token::Two, Token::Fast]);
        let key = match token {
            Token::One => engine.alloc_mw(pd, MwType::One).ok()?.0,
            Token::Two => engine.alloc_mw(pd, MwType::Two).ok()?.0,
            Token::Fast => engine.alloc_mr(pd, Arc::clone(&node.memory.region)).ok()?.0,
        };
        Some((token, key))
    }
}
