//! Programs: what the ends of a flow post, and what the model makes of it.
//!
//! Programs are drawn completely before anything runs, in one order over both ends of a flow.
//! Reliable connections execute requests in order and exactly once, and every byte is written by
//! one end of one flow only, so the model can be carried forward while drawing: what is in memory
//! in the end, and what every read and atomic brings back, is known before the first packet
//! leaves. Only where receives go is found out as they complete, because shared receive queues
//! are taken from in any order.
//!
//! A read may see what a later write wrote (IBTA vol1 10.8.3.3), so the next change to an area
//! that was read carries a fence.

use feroce_engine::{
    Data, FlushKind, RecvWr, Remote, SendFlags, SendOp, SendWr, SgeList, WcOpcode,
};
use feroce_mem::Access;
use feroce_testkit::ALL;
use feroce_train::InlineBytes;
use feroce_wire::Imm;

use crate::dice::Dice;
use crate::kernel::Host;
use crate::swarm::flow::{End, Kind, Mishap};
use crate::swarm::node::{COUNTERS, Node, SRQ_DOMAIN};
use crate::swarm::reach::{Area, Reach, Windows};
use crate::swarm::step::{Expected, Fetched, Recv, Step};

/// Draws the program of the flow whose ends are `first` and `first + 1`.
pub(crate) struct Planner<'a> {
    pub(crate) dice: &'a mut Dice,
    pub(crate) hosts: &'a mut [Host],
    pub(crate) nodes: &'a mut [Node],
    pub(crate) ends: &'a mut [End],
    pub(crate) first: usize,
    pub(crate) longest: usize,
    pub(crate) pmtu: usize,
    /// Longest message into a shared receive queue.
    pub(crate) srq_len: usize,
    /// Whether to use counters that flows share.
    pub(crate) counts: bool,
    /// Whether to use operations that not every adapter has.
    pub(crate) extensions: bool,
}

const WORDS: usize = 6;

impl Planner<'_> {
    /// Draws about `steps` steps. The areas returned keep their registrations known.
    pub(crate) fn draw(&mut self, steps: usize) -> Option<[Reach; 2]> {
        let mut reach = [self.reach(0)?, self.reach(1)?];
        for _ in 0..steps {
            let side =
                if self.ends[self.first].kind == Kind::Xrc { 0 } else { self.dice.size(0..=1) };
            let room = self.nodes[self.ends[self.first].node].memory.left();
            let room = room.min(self.nodes[self.ends[self.first + 1].node].memory.left());
            if room < 3 * self.longest {
                break;
            }
            match self.ends[self.first].kind {
                Kind::Rc | Kind::Xrc => self.reliable_step(side, &mut reach[side])?,
                Kind::Uc | Kind::Ud => self.unreliable_step(side)?,
            }
        }
        // A message that fails may consume a receive that another flow needs.
        let shares = self.ends[self.first..].iter().any(|end| end.srq.is_some());
        if !self.ends[self.first].kind.is_reliable() || (self.is_unsure() && shares) {
            self.spare_receives(0)?;
            self.spare_receives(1)?;
        }
        Some(reach)
    }

    fn node_of(&mut self, side: usize) -> &mut Node {
        &mut self.nodes[self.ends[self.first + side].node]
    }

    /// Whether what happens to memory of this flow cannot be foreseen.
    fn is_unsure(&self) -> bool {
        self.ends[self.first].mishap.is_some()
    }

    fn reach(&mut self, side: usize) -> Option<Reach> {
        let domain = self.ends[self.first + (side ^ 1)].domain;
        let len = self.dice.size(self.longest / 4..=self.longest).max(64);
        let bytes = self.area(side ^ 1, domain, len, ALL)?;
        let access = ALL - Access::MW_BIND;
        let words = self.area(side ^ 1, domain, 8 * WORDS, access)?;
        Some(Reach { bytes, words, read: false, windows: Windows::default() })
    }

    fn area(&mut self, side: usize, domain: usize, len: usize, access: Access) -> Option<Area> {
        let unsure = self.is_unsure();
        let number = self.ends[self.first + side].node;
        let node = &mut self.nodes[number];
        let at = node.memory.take(len, true, self.dice)?;
        if unsure {
            node.memory.forget(at, len);
        }
        let host = &mut self.hosts[number];
        let mr = node.register(host, domain, (at, len), access, self.dice);
        Some(Area { at, len, mr })
    }

    /// A length that may be interesting, at most `most`.
    pub(crate) fn len(&mut self, most: usize) -> usize {
        let len = match self.dice.range(0..=9) {
            0 => 0,
            1 | 2 => self.dice.size(1..=64),
            3..=6 => {
                let packets = self.dice.size(1..=(most / self.pmtu).max(1));
                (packets * self.pmtu + self.dice.size(0..=8)).saturating_sub(4)
            }
            7 => most,
            _ => self.dice.size(0..=most),
        };
        len.min(most)
    }

    /// Splits `len` into the lengths of at most `most` pieces.
    fn split(&mut self, len: usize, most: usize) -> Vec<usize> {
        let many = if self.dice.chance(0.1) { 32 } else { 4 };
        let count = self.dice.size(0..=most.min(many));
        let mut lens = Vec::new();
        let mut left = len;
        while left > 0 || lens.len() < count {
            let is_last = lens.len() + 1 >= count.max(1) || lens.len() + 1 == most;
            let piece = if is_last { left } else { self.dice.size(0..=left) };
            lens.push(piece);
            left -= piece;
        }
        lens
    }

    /// `len` bytes out of the pool of `side`, and what they are.
    pub(crate) fn gather(&mut self, side: usize, len: usize) -> (Data, Vec<u8>) {
        let (domain, max_sge, max_inline) = {
            let end = &self.ends[self.first + side];
            (end.domain, end.max_sge, end.max_inline)
        };
        let lens = self.split(len, max_sge);
        let pool = self.node_of(side).domains[domain].pool;
        let mut payload = Vec::with_capacity(len);
        let mut sges = Vec::with_capacity(lens.len());
        for len in lens {
            let at = pool.at + self.dice.size(0..=pool.len - len);
            payload.extend_from_slice(self.node_of(side).memory.expected(at, len));
            sges.push(pool.sge(at, len));
        }
        if len <= max_inline && self.dice.chance(0.3) {
            return (Data::Inline(InlineBytes::new(&payload)), payload);
        }
        (Data::Sges(SgeList::new(&sges)), payload)
    }

    /// Fresh memory of `side` for `len` bytes in at most `most` pieces.
    pub(crate) fn landing(
        &mut self,
        side: usize,
        domain: usize,
        len: usize,
        most: usize,
    ) -> Option<(SgeList, Vec<(usize, usize)>)> {
        let unsure = self.is_unsure() || !self.ends[self.first].kind.is_reliable();
        let lens = self.split(len, most);
        let node = &mut self.nodes[self.ends[self.first + side].node];
        let own = node.domains[domain].own;
        let mut pieces = Vec::with_capacity(lens.len());
        for len in lens {
            let at = node.memory.take(len, false, self.dice)?;
            if unsure {
                node.memory.forget(at, len);
            }
            pieces.push((at, len));
        }
        let sges: Vec<_> = pieces.iter().map(|&(at, len)| own.sge(at, len)).collect();
        Some((SgeList::new(&sges), pieces))
    }

    /// The peer of `side` will post a receive for a message of `len` bytes.
    pub(crate) fn receive(&mut self, side: usize, len: usize) -> Option<()> {
        let peer = side ^ 1;
        let slack = if self.dice.chance(0.5) { self.dice.size(0..=100) } else { 0 };
        let srq = self.ends[self.first + peer].srq;
        let (domain, len) = match srq {
            Some(_) => (SRQ_DOMAIN, self.srq_len),
            // After a reset, other messages than before meet the receives. So do duplicates of an
            // unreliable connection, whose responder takes them for new messages.
            None if self.ends[self.first].mishap == Some(Mishap::Reset)
                || self.ends[self.first].kind == Kind::Uc =>
            {
                (self.ends[self.first + peer].domain, self.longest)
            }
            None => (self.ends[self.first + peer].domain, len + slack),
        };
        let (sges, pieces) = self.landing(peer, domain, len, 8)?;
        let wr = RecvWr { wr_id: 0, sges };
        let recv = Recv { wr, pieces };
        match srq {
            Some(i) => self.node_of(peer).srqs[i].recvs.push(recv),
            None => self.ends[self.first + peer].recvs.push(recv),
        }
        Some(())
    }

    /// Receives beyond what `side` will send: the wire may double messages, and others may need
    /// the receives that those take from a shared queue.
    fn spare_receives(&mut self, side: usize) -> Option<()> {
        let steps = &self.ends[self.first + side].steps;
        for _ in 0..steps.iter().filter(|s| s.wr.op.consumes_receive()).count() {
            let len =
                if self.ends[self.first + (side ^ 1)].srq.is_some() { self.srq_len } else { 60 };
            self.receive(side, len)?;
        }
        Some(())
    }

    /// Adds a step and returns its number.
    pub(crate) fn push(&mut self, side: usize, step: Step) -> usize {
        let peer = &self.ends[self.first + (side ^ 1)];
        let peer_srq = peer.srq.map(|i| self.nodes[peer.node].srqs[i].id);
        let peer_qpn = peer.qpn;
        let end = &mut self.ends[self.first + side];
        let mut step = step;
        let index = end.steps.len();
        step.wr.wr_id = ((self.first + side) as u64) << 32 | index as u64;
        step.wr.dest = end.dest(peer_qpn, peer_srq);
        end.steps.push(step);
        end.done.push(false);
        index
    }

    /// Draws the flags of a request: signalled, mostly.
    pub(crate) fn flags(&mut self) -> SendFlags {
        let mut flags = SendFlags::empty();
        for (flag, p) in
            [(SendFlags::SIGNALED, 0.6), (SendFlags::SOLICITED, 0.2), (SendFlags::FENCE, 0.1)]
        {
            if self.dice.chance(p) {
                flags |= flag;
            }
        }
        flags
    }

    fn reliable_step(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        match self.dice.range(0..=99) {
            0..=29 => self.send(side),
            30..=54 => self.write(side, reach),
            55..=69 => self.read(side, reach),
            70..=81 => self.atomic(side, reach),
            _ if !self.extensions => self.send(side),
            82..=86 => self.atomic_write(side, reach),
            87..=90 => self.flush(side, reach),
            _ if self.may_bind() => self.window_cycle(side, reach),
            _ => self.count(side),
        }
    }

    /// Keys are bound where it is known how far the flow comes, and at hosts with one shard.
    fn may_bind(&self) -> bool {
        let end = &self.ends[self.first];
        let mut nodes = self.ends[self.first..].iter().map(|end| end.node);
        let have_windows = nodes.all(|node| self.hosts[node].shards.len() == 1);
        have_windows && end.kind == Kind::Rc && end.mishap != Some(Mishap::Reset)
    }

    fn send(&mut self, side: usize) -> Option<()> {
        let most = match self.ends[self.first + (side ^ 1)].srq {
            Some(_) => self.srq_len,
            None => self.longest,
        };
        let len = self.len(most);
        let (data, payload) = self.gather(side, len);
        let op = if self.dice.chance(0.3) {
            SendOp::SendImm(Imm(self.dice.any() as u32))
        } else {
            SendOp::Send
        };
        self.receive(side, len)?;
        self.push_simple(side, op, data, payload);
        Some(())
    }

    /// Adds a step that brings nothing back.
    pub(crate) fn push_simple(
        &mut self,
        side: usize,
        op: SendOp,
        data: Data,
        payload: Vec<u8>,
    ) -> usize {
        let flags = self.flags();
        let mut wr = SendWr::new(0, op, data);
        wr.flags = flags;
        let opcode = opcode_of(&op);
        let (fetched, after, target, seen) = (None, None, None, false);
        self.push(side, Step { wr, opcode, payload, target, fetched, after, seen })
    }

    fn write(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        let Area { at, len, mr } = reach.bytes;
        self.write_via(side, reach, at, len, &|at| mr.remote(at)).map(|_| ())
    }

    /// Writes somewhere in `at..at + len`, which is addressed with `remote`.
    pub(crate) fn write_via(
        &mut self,
        side: usize,
        reach: &mut Reach,
        at: usize,
        len: usize,
        remote: &dyn Fn(usize) -> Remote,
    ) -> Option<usize> {
        let part = self.len(len);
        let at = at + self.dice.size(0..=len - part);
        let (data, payload) = self.gather(side, part);
        let op = if self.dice.chance(0.25) {
            self.receive(side, 0)?;
            SendOp::WriteImm(remote(at), Imm(self.dice.any() as u32))
        } else {
            SendOp::Write(remote(at))
        };
        self.node_of(side ^ 1).memory.expect(at, &payload);
        let index = self.push_simple(side, op, data, payload);
        self.fence_if_read(side, index, reach);
        Some(index)
    }

    /// Step `index` changes what earlier steps read.
    pub(crate) fn fence_if_read(&mut self, side: usize, index: usize, reach: &mut Reach) {
        if core::mem::take(&mut reach.read) {
            self.ends[self.first + side].steps[index].wr.flags |= SendFlags::FENCE;
        }
    }

    fn read(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        if self.dice.chance(0.4) {
            let domain = self.ends[self.first + (side ^ 1)].domain;
            let pool = self.node_of(side ^ 1).domains[domain].pool;
            self.read_via(side, pool.at, pool.len, &|at| pool.remote(at))?;
        } else {
            let area = if self.dice.chance(0.8) { reach.bytes } else { reach.words };
            self.read_via(side, area.at, area.len, &|at| area.mr.remote(at))?;
            reach.read = true;
        }
        Some(())
    }

    /// Reads somewhere in `at..at + len`, which is addressed with `remote`.
    pub(crate) fn read_via(
        &mut self,
        side: usize,
        at: usize,
        len: usize,
        remote: &dyn Fn(usize) -> Remote,
    ) -> Option<usize> {
        let part = self.len(len.min(self.longest));
        let at = at + self.dice.size(0..=len - part);
        let bytes = self.node_of(side ^ 1).memory.expected(at, part).to_vec();
        let op = SendOp::Read(remote(at));
        self.push_fetch(side, op, bytes.len(), Expected::Bytes(bytes))
    }

    fn push_fetch(&mut self, side: usize, op: SendOp, len: usize, what: Expected) -> Option<usize> {
        let end = &self.ends[self.first + side];
        let (domain, max_sge) = (end.domain, end.max_sge);
        let (sges, pieces) = self.landing(side, domain, len, max_sge)?;
        // How far the peer had come before a reset is not known.
        let unsure = self.ends[self.first].mishap == Some(Mishap::Reset);
        let what = if unsure { Expected::Anything } else { what };
        if let Expected::Bytes(bytes) = &what {
            let bytes = bytes.clone();
            self.node_of(side).memory.expect_scattered(&pieces, &bytes);
        }
        let mut wr = SendWr::new(0, op, Data::Sges(sges));
        wr.flags = self.flags();
        let (opcode, payload) = (opcode_of(&op), Vec::new());
        let fetched = Some(Fetched { pieces, len, what });
        let (after, target, seen) = (None, None, false);
        Some(self.push(side, Step { wr, opcode, payload, target, fetched, after, seen }))
    }

    fn atomic(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        if self.dice.chance(0.3) && self.counts {
            return self.count(side);
        }
        let at = reach.words.at + 8 * self.dice.size(0..=WORDS - 1);
        let remote = reach.words.mr.remote(at);
        let old = self.node_of(side ^ 1).memory.expected_word(at);
        let (op, new) = if self.dice.chance(0.5) {
            let add = self.dice.any();
            (SendOp::FetchAdd { remote, add }, old.wrapping_add(add))
        } else {
            let compare = if self.dice.chance(0.6) { old } else { self.dice.any() };
            let swap = self.dice.any();
            (SendOp::CmpSwap { remote, compare, swap }, if compare == old { swap } else { old })
        };
        self.node_of(side ^ 1).memory.expect(at, &new.to_ne_bytes());
        let what = Expected::Bytes(old.to_ne_bytes().to_vec());
        let index = self.push_fetch(side, op, 8, what)?;
        self.fence_if_read(side, index, reach);
        Some(())
    }

    /// A fetch-and-add on a counter that flows share.
    fn count(&mut self, side: usize) -> Option<()> {
        if self.is_unsure() || !self.counts {
            return self.send(side);
        }
        let (domain, node) = {
            let peer = &self.ends[self.first + (side ^ 1)];
            (peer.domain, peer.node)
        };
        let counter = self.dice.size(0..=COUNTERS - 1);
        let counters = self.nodes[node].domains[domain].counters;
        let remote = counters.remote(counters.at + 8 * counter);
        let op = SendOp::FetchAdd { remote, add: 1 };
        let at = counters.at + 8 * counter;
        let more = self.nodes[node].memory.expected_word(at) + 1;
        self.nodes[node].memory.expect(at, &more.to_ne_bytes());
        let index = self.push_fetch(side, op, 8, Expected::Count { node, counter })?;
        self.ends[self.first + side].steps[index].wr.flags |= SendFlags::SIGNALED;
        Some(())
    }

    fn atomic_write(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        let at = reach.words.at + 8 * self.dice.size(0..=WORDS - 1);
        let (data, payload) = self.gather(side, 8);
        self.node_of(side ^ 1).memory.expect(at, &payload);
        let op = SendOp::AtomicWrite(reach.words.mr.remote(at));
        let index = self.push_simple(side, op, data, payload);
        self.fence_if_read(side, index, reach);
        Some(())
    }

    fn flush(&mut self, side: usize, reach: &mut Reach) -> Option<()> {
        let Area { at, len, mr } = reach.bytes;
        let part = self.dice.size(0..=len);
        let remote = mr.remote(at + self.dice.size(0..=len - part));
        let global = self.dice.chance(0.5);
        let kind = FlushKind {
            global,
            persistent: !global || self.dice.chance(0.3),
            whole_region: self.dice.chance(0.2),
        };
        let op = SendOp::Flush { remote, len: part as u32, kind };
        self.push_simple(side, op, Data::EMPTY, Vec::new());
        Some(())
    }

    /// Longest message that the unreliable service carries.
    fn longest_datagram(&self, side: usize) -> usize {
        match self.ends[self.first + side].kind {
            Kind::Ud => 4096.min(self.longest) + 40,
            _ => self.longest,
        }
    }

    fn unreliable_step(&mut self, side: usize) -> Option<()> {
        let room = self.longest_datagram(side);
        let is_datagram = self.ends[self.first].kind == Kind::Ud;
        let most = if is_datagram { room - 40 } else { room };
        let most = match self.ends[self.first + (side ^ 1)].srq {
            Some(_) => most.min(self.srq_len - 40),
            None => most,
        };
        let len = self.len(most);
        let (data, payload) = self.gather(side, len);
        let imm = Imm(self.dice.any() as u32);
        if is_datagram || self.dice.chance(0.6) {
            let op = if self.dice.chance(0.5) { SendOp::SendImm(imm) } else { SendOp::Send };
            self.receive(side, room)?;
            self.push_simple(side, op, data, payload);
            return Some(());
        }
        // Every write has its own bytes, so that an incomplete write can be recognized.
        let domain = self.ends[self.first + (side ^ 1)].domain;
        let number = self.ends[self.first + (side ^ 1)].node;
        let node = &mut self.nodes[number];
        let at = node.memory.take(len, false, self.dice)?;
        node.memory.forget(at, len);
        let host = &mut self.hosts[number];
        let mr = node.register(host, domain, (at, len), ALL, self.dice);
        let op = if self.dice.chance(0.5) {
            self.receive(side, room)?;
            SendOp::WriteImm(mr.remote(at), imm)
        } else {
            SendOp::Write(mr.remote(at))
        };
        let index = self.push_simple(side, op, data, payload);
        self.ends[self.first + side].steps[index].target = Some(at);
        Some(())
    }
}

/// How a completion names the operation.
pub(crate) fn opcode_of(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
        SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
        SendOp::Read(_) => WcOpcode::Read,
        SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
        SendOp::LocalInv(_) => WcOpcode::LocalInv,
        SendOp::Reg { .. } => WcOpcode::Reg,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::AtomicWrite(_) => WcOpcode::AtomicWrite,
    }
}
