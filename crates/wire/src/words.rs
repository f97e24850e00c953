//! Packets in words: names of operations, and what the headers say, for programs that show packets
//! to people.

use core::fmt;

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt,
    NakCode, Op, Packet, Reth, RnrTimer, Service, Syndrome, XrcEth,
};

impl Service {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Cnp => "CNP",
        }
    }
}

impl Op {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendFirst => "SEND First",
            Self::SendMiddle => "SEND Middle",
            Self::SendLast => "SEND Last",
            Self::SendLastImm => "SEND Last with Immediate",
            Self::SendOnly => "SEND Only",
            Self::SendOnlyImm => "SEND Only with Immediate",
            Self::WriteFirst => "WRITE First",
            Self::WriteMiddle => "WRITE Middle",
            Self::WriteLast => "WRITE Last",
            Self::WriteLastImm => "WRITE Last with Immediate",
            Self::WriteOnly => "WRITE Only",
            Self::WriteOnlyImm => "WRITE Only with Immediate",
            Self::ReadRequest => "READ Request",
            Self::ReadResponseFirst => "READ Response First",
            Self::ReadResponseMiddle => "READ Response Middle",
            Self::ReadResponseLast => "READ Response Last",
            Self::ReadResponseOnly => "READ Response Only",
            Self::Acknowledge => "Acknowledge",
            Self::AtomicAcknowledge => "Atomic Acknowledge",
            Self::CmpSwap => "COMPARE & SWAP",
            Self::FetchAdd => "FETCH & ADD",
            Self::SendLastInv => "SEND Last with Invalidate",
            Self::SendOnlyInv => "SEND Only with Invalidate",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Cnp => "Congestion Notification",
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "a packet is missing (PSN sequence error)",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
        })
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanos() / 1000 {
            micros @ 0..1000 => write!(f, "{micros} µs"),
            micros => write!(f, "{}.{:02} ms", micros / 1000, micros % 1000 / 10),
        }
    }
}

/// What it says besides its kind, which [`Packet::name`] says.
impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let msn = self.msn.get();
        match self.syndrome {
            Syndrome::Ack { credits } => match credits.credits() {
                Some(credits) => write!(f, "MSN {msn}, credits {credits}"),
                None => write!(f, "MSN {msn}"),
            },
            Syndrome::RnrNak { timer } => write!(f, "receiver not ready: wait {timer}, MSN {msn}"),
            Syndrome::Nak(code) => write!(f, "{code}, MSN {msn}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}, MSN {msn}"),
        }
    }
}

/// One thing that the headers of a packet say besides operation and PSN. `Display` has the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A flag of the base transport header.
    Flag(&'static str),
    /// Where a datagram is from.
    Deth(Deth),
    /// Which shared receive queue an XRC request is for.
    XrcEth(XrcEth),
    /// How far a flush goes.
    Feth(Feth),
    /// Memory to write or read.
    Reth(Reth),
    /// Memory to compare and swap.
    CmpSwap(AtomicEth),
    /// Memory to add to.
    FetchAdd(AtomicEth),
    /// An acknowledgement.
    Aeth(Aeth),
    /// What was in memory before an atomic operation.
    AtomicAckEth(AtomicAckEth),
    /// Immediate data.
    ImmDt(ImmDt),
    /// A key to invalidate.
    Ieth(Ieth),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            Self::Deth(h) => write!(f, "from QP {:#x} Q_Key {}", h.src_qp.get(), h.qkey),
            Self::XrcEth(h) => write!(f, "SRQ {:#x}", h.srqn.get()),
            Self::Feth(h) => flush(f, *h),
            Self::Reth(h) => write!(f, "va {:#x} rkey {} len {}", h.va, h.rkey, h.len),
            Self::CmpSwap(AtomicEth { va, rkey, compare, swap_add }) => {
                write!(f, "va {va:#x} rkey {rkey} compare {compare} swap {swap_add}")
            }
            Self::FetchAdd(h) => write!(f, "va {:#x} rkey {} add {}", h.va, h.rkey, h.swap_add),
            Self::Aeth(h) => h.fmt(f),
            Self::AtomicAckEth(h) => write!(f, "was {}", h.original),
            Self::ImmDt(h) => write!(f, "immediate {}", h.imm),
            Self::Ieth(h) => write!(f, "invalidates rkey {}", h.rkey),
        }
    }
}

fn flush(f: &mut fmt::Formatter<'_>, Feth { placement, selectivity, .. }: Feth) -> fmt::Result {
    let global = placement.contains(FlushPlacement::GLOBAL);
    let persistent = placement.contains(FlushPlacement::PERSISTENT);
    f.write_str(match (global, persistent) {
        (true, true) => "to global visibility and persistence, ",
        (true, false) => "to global visibility, ",
        (false, true) => "to persistence, ",
        (false, false) => "to nowhere, ",
    })?;
    match selectivity {
        FlushSelectivity::Range => f.write_str("this range"),
        FlushSelectivity::MemoryRegion => f.write_str("the whole region"),
        FlushSelectivity::Other(bits) => write!(f, "selectivity {bits}"),
    }
}

/// In words.
impl Packet<'_> {
    /// The name of what it does: an acknowledgement by what it says, the others by their opcode.
    pub fn name(&self) -> &'static str {
        let Some((_, op)) = self.bth.opcode.decode() else { return "reserved opcode" };
        match (op, self.exts.aeth.map(|aeth| aeth.syndrome)) {
            (Op::Acknowledge, Some(Syndrome::Ack { .. })) => "ACK",
            (Op::Acknowledge, Some(Syndrome::RnrNak { .. })) => "RNR NAK",
            (Op::Acknowledge, Some(Syndrome::Nak(_) | Syndrome::Reserved(_))) => "NAK",
            _ => op.name(),
        }
    }

    /// Flags and extension headers, in the order in which people should see them.
    ///
    /// ```
    /// # use feroce_wire::{Bth, Exts, Op, Opcode, Packet, Psn, Qpn, Reth, Rkey, Service};
    /// let opcode = Opcode::new(Service::Rc, Op::WriteOnly);
    /// let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(7), Psn::new(9)) };
    /// let reth = Some(Reth { va: 0x1000, rkey: Rkey(5), len: 2 });
    /// let packet = Packet::new(bth, Exts { reth, ..Exts::NONE }, b"hi");
    /// let notes: Vec<String> = packet.notes().map(|note| note.to_string()).collect();
    /// assert_eq!(packet.name(), "WRITE Only");
    /// assert_eq!(notes, ["asks for ACK", "va 0x1000 rkey 0x00000005 len 2"]);
    /// ```
    pub fn notes(&self) -> impl Iterator<Item = Note> {
        let (bth, exts) = (&self.bth, &self.exts);
        let flag = |is_set: bool, name| is_set.then_some(Note::Flag(name));
        let is_swap = bth.opcode.decode().is_some_and(|(_, op)| op == Op::CmpSwap);
        let atomic = if is_swap { Note::CmpSwap } else { Note::FetchAdd };
        let all = [
            flag(bth.ack_req, "asks for ACK"),
            flag(bth.solicited, "solicited"),
            flag(bth.fecn, "FECN"),
            flag(bth.becn, "BECN"),
            exts.deth.map(Note::Deth),
            exts.xrceth.map(Note::XrcEth),
            exts.feth.map(Note::Feth),
            exts.reth.map(Note::Reth),
            exts.atomic.map(atomic),
            exts.aeth.map(Note::Aeth),
            exts.atomic_ack.map(Note::AtomicAckEth),
            exts.imm.map(Note::ImmDt),
            exts.ieth.map(Note::Ieth),
        ];
        all.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;
    use crate::{Bth, CreditCode, Exts, Msn, Opcode, Psn, Qpn, Rkey};

    fn packet(service: Service, op: Op, exts: Exts) -> Packet<'static> {
        Packet::new(Bth::new(Opcode::new(service, op), Qpn::new(7), Psn::new(9)), exts, &[])
    }

    fn notes(packet: &Packet<'_>) -> alloc::string::String {
        packet.notes().map(|note| note.to_string()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn acknowledgements_are_named_by_what_they_say() {
        let ack = |syndrome| {
            let aeth = Some(Aeth { syndrome, msn: Msn::new(3) });
            let packet = packet(Service::Rc, Op::Acknowledge, Exts { aeth, ..Exts::NONE });
            (packet.name(), notes(&packet))
        };
        let credits = CreditCode::new(4);
        assert_eq!(ack(Syndrome::Ack { credits }), ("ACK", "MSN 3, credits 4".into()));
        let credits = CreditCode::NONE;
        assert_eq!(ack(Syndrome::Ack { credits }), ("ACK", "MSN 3".into()));
        let rnr = |code| ack(Syndrome::RnrNak { timer: RnrTimer::new(code) });
        assert_eq!(rnr(12), ("RNR NAK", "receiver not ready: wait 640 µs, MSN 3".into()));
        assert_eq!(rnr(14), ("RNR NAK", "receiver not ready: wait 1.28 ms, MSN 3".into()));
        let refused = ack(Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(refused, ("NAK", "remote access error, MSN 3".into()));
        let odd = ack(Syndrome::Reserved(0xff));
        assert_eq!(odd, ("NAK", "reserved syndrome 0xff, MSN 3".into()));
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let names: BTreeSet<_> = Op::ALL.into_iter().map(Op::name).collect();
        assert_eq!(names.len(), Op::ALL.len());
    }

    #[test]
    fn atomics_and_flushes_say_what_they_do() {
        let eth = AtomicEth { va: 0x10, rkey: Rkey(5), swap_add: 3, compare: 2 };
        let exts = Exts { atomic: Some(eth), ..Exts::NONE };
        let say = |op| notes(&packet(Service::Rc, op, exts));
        assert_eq!(say(Op::CmpSwap), "va 0x10 rkey 0x00000005 compare 2 swap 3");
        assert_eq!(say(Op::FetchAdd), "va 0x10 rkey 0x00000005 add 3");
        let placement = FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT);
        let feth = Some(Feth::new(placement, FlushSelectivity::Range));
        let flush = packet(Service::Rc, Op::Flush, Exts { feth, ..Exts::NONE });
        assert_eq!(notes(&flush), "to global visibility and persistence, this range");
    }
}
