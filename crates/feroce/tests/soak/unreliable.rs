//! Unreliable services: a message arrives whole or not at all.

use feroce::{AddrVec, Ah, Cq, Dest, Imm, Mr, Qkey, Qp, QpCap, SendOp, SendWr, WcOpcode, WcStatus};

use crate::common::{ALL, Host, connect};
use crate::random::pattern;
use crate::{Soak, success};

/// Receives that `b` keeps posted.
const SLOTS: usize = 16;
/// Longest message, and the header in front of a datagram.
const SLOT: usize = 20_000;
const GRH: usize = 40;
const QKEY: Qkey = Qkey(0x1ee7);

/// Messages from `a` to `b`, whose bytes follow from their number.
pub(crate) struct Messages {
    name: &'static str,
    qa: Qp,
    qb: Qp,
    /// Completion queue of the receives of `b`. Messages may arrive late, so no other queue pair
    /// shares it.
    cq: Cq,
    slots: Mr,
    source: Mr,
    /// The destination, for datagrams.
    way: Option<(Ah, Dest)>,
    longest: usize,
    sent: u64,
    came: u64,
}

impl Messages {
    pub(crate) fn connected(a: &Host, b: &Host) -> Self {
        let cap = QpCap::new(16, SLOTS as u32);
        let cq = b.context.create_cq(64).expect("a queue");
        let mut qa = a.pd.uc_qp(&a.cq, &a.cq, cap).create().expect("a queue pair");
        let mut qb = b.pd.uc_qp(&cq, &cq, cap).create().expect("a queue pair");
        connect(&mut qa, &mut qb);
        Self::new("unreliable connection", a, b, (qa, qb, cq), None, SLOT)
    }

    pub(crate) fn datagrams(a: &Host, b: &Host) -> Self {
        let cap = QpCap::new(16, SLOTS as u32);
        let cq = b.context.create_cq(64).expect("a queue");
        let mut qa = a.pd.ud_qp(&a.cq, &a.cq, cap).create().expect("a queue pair");
        let mut qb = b.pd.ud_qp(&cq, &cq, cap).create().expect("a queue pair");
        qa.activate(QKEY).expect("active");
        qb.activate(QKEY).expect("active");
        let dgid = b.context.port().gids[0].gid;
        let ah = a.pd.create_ah(AddrVec { dgid, ..AddrVec::default() }).expect("a handle");
        let dest = ah.dest(qb.qpn(), QKEY);
        let longest = a.context.port().active_mtu.bytes();
        Self::new("datagrams", a, b, (qa, qb, cq), Some((ah, dest)), longest)
    }

    fn new(
        name: &'static str,
        a: &Host,
        b: &Host,
        (qa, qb, cq): (Qp, Qp, Cq),
        way: Option<(Ah, Dest)>,
        longest: usize,
    ) -> Self {
        let slots = b.pd.alloc_mr(SLOTS * (SLOT + GRH), ALL).expect("memory");
        let source = a.pd.alloc_mr(SLOT, ALL).expect("memory");
        let mut new = Self { name, qa, qb, cq, slots, source, way, longest, sent: 0, came: 0 };
        (0..SLOTS).for_each(|slot| new.receive_into(slot));
        new
    }

    fn receive_into(&mut self, slot: usize) {
        let start = slot * (SLOT + GRH);
        let wr = self.slots.recv(slot as u64, start..start + SLOT + GRH);
        self.qb.post_recv([wr]).expect("there is room");
    }

    /// Sends a message, and checks the messages that have arrived.
    fn send(&mut self, host: &Host, id: u64, len: usize) {
        let len = len.min(self.longest);
        // The number of the message is all that a receiver needs to know what it must be.
        let imm = Imm((id as u32) << 15 | len as u32);
        self.source.write_at(0, &pattern(imm.0, len)).expect("inside");
        let dest = self.way.as_ref().map_or(Dest::Connected, |(_, dest)| *dest);
        let wr = SendWr { dest, ..SendWr::new(id, SendOp::SendImm(imm), self.source.data(0..len)) };
        self.qa.post_send([wr]).expect("there is room");
        success(host, id);
        self.sent += 1;
        self.look();
    }

    fn look(&mut self) {
        while let Some(got) = self.cq.poll_one() {
            assert_eq!((got.status, got.opcode), (WcStatus::Success, WcOpcode::Recv));
            let len = (got.imm.0 & 0x7fff) as usize;
            let header = if self.way.is_some() { GRH } else { 0 };
            assert_eq!(got.byte_len as usize, len + header, "{}", self.name);
            let slot = got.wr_id as usize;
            let mut bytes = vec![0; len];
            self.slots.read_at(slot * (SLOT + GRH) + header, &mut bytes).expect("inside");
            assert!(bytes == pattern(got.imm.0, len), "{}: message {:?}", self.name, got.imm);
            self.came += 1;
            self.receive_into(slot);
        }
    }

    pub(crate) fn summary(&self) -> String {
        format!("{:8} of {} came: {}", self.came, self.sent, self.name)
    }

    /// Checks that more than half of the messages have arrived, whatever faults are injected.
    pub(crate) fn check(&self) {
        assert!(self.sent == 0 || self.came > self.sent / 2, "{}", self.summary());
    }
}

impl Soak {
    /// A message on an unreliable service.
    pub(crate) fn unreliable(&mut self) -> &'static str {
        let which = self.random.below(self.messages.len());
        let (id, len) = (self.id(), self.random.len());
        self.messages[which].send(&self.a, id, len);
        "unreliable message"
    }
}
