//! How a train of a request looks: opcodes, extension headers and lengths.

use feroce_train::{Ext, LinkCaps};
use feroce_wire::{
    AtomicEth, Bth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt, Op, Reth, XrcEth,
};

use super::window::Flight;
use crate::wr::{Dest, FlushKind, Remote, SendOp, SendWr};

/// Everything about a train but addresses, PSNs and payload.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) first: Op,
    pub(super) middle: Op,
    pub(super) last: Op,
    pub(super) head: Ext,
    pub(super) body: Ext,
    pub(super) tail: Ext,
    /// Packets on the wire.
    pub(super) count: u32,
    /// PSNs that it covers: more than packets for a read, whose answer has as many.
    pub(super) psns: u32,
    /// Payload bytes.
    pub(super) payload: usize,
}

/// A piece of a message: from packet `from` on, at most `room` packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) flight: &'a Flight,
    pub(super) from: u32,
    pub(super) room: u32,
    pub(super) pmtu: usize,
}

impl Piece<'_> {
    /// Bytes of the message before this piece.
    fn offset(&self) -> u64 {
        u64::from(self.from) * self.pmtu as u64
    }
}

/// A message of packets with payload.
struct Message {
    /// Opcodes: first, middle, last, only.
    ops: [Op; 4],
    /// Extension headers of the first packet, of those between, and of the last. A message of one
    /// packet carries what first and last have beyond the others.
    head: Ext,
    body: Ext,
    tail: Ext,
}

impl Shape {
    /// The train of `piece`.
    #[inline]
    pub(super) fn new(wr: &SendWr, piece: Piece<'_>, caps: &LinkCaps) -> Self {
        let xrc = match wr.dest {
            Dest::Xrc(srqn) => Ext::NONE.with(|out| XrcEth { srqn }.emit(out)),
            _ => Ext::NONE,
        };
        match message(&wr.op, piece.flight.len, xrc) {
            Some(message) => Self::of_message(&message, piece, caps),
            None => Self::of_request(&wr.op, piece, xrc),
        }
    }

    /// A train of packets with payload.
    #[inline]
    fn of_message(message: &Message, piece: Piece<'_>, caps: &LinkCaps) -> Self {
        let Message { ops: [first, middle, last, only], head, body, tail } = *message;
        let Piece { flight, from, room, pmtu } = piece;
        let (packets, len) = (flight.packets, flight.len as usize);
        if packets == 1 {
            let head = head.joined(&tail, body.as_slice().len());
            return Self::single(only, head, len);
        }
        let at_start = from == 0;
        let head = if at_start { head } else { body };
        let ext_len = head.as_slice().len();
        let mut count = room.min(packets - from).min(caps.packets_of(Bth::LEN + ext_len + pmtu));
        // Packets of a train have equal length; only the last may be shorter.
        if ext_len > body.as_slice().len() && !(packets == 2 && count == 2) {
            count = 1;
        }
        if from + count == packets && count > 1 {
            let last_len = (len - (packets as usize - 1) * pmtu).next_multiple_of(4);
            count -= u32::from(tail.as_slice().len() + last_len > ext_len + pmtu);
        }
        let ends = from + count == packets;
        let is_last_alone = ends && count == 1;
        Self {
            first: match (at_start, is_last_alone) {
                (true, _) => first,
                (false, true) => last,
                (false, false) => middle,
            },
            middle,
            last: if ends { last } else { middle },
            head: if is_last_alone { tail } else { head },
            body,
            tail: if ends { tail } else { body },
            count,
            psns: count,
            payload: (len - from as usize * pmtu).min(count as usize * pmtu),
        }
    }

    /// A request of one packet whose data, if any, comes back in the answer.
    #[inline]
    fn of_request(op: &SendOp, piece: Piece<'_>, xrc: Ext) -> Self {
        match *op {
            SendOp::Read(remote) => {
                let Piece { flight, from, room, pmtu } = piece;
                let psns = room.min(flight.packets - from);
                let left = u64::from(flight.len) - piece.offset();
                let len = left.min(u64::from(psns) * pmtu as u64) as u32;
                let reth = reth(remote, piece.offset(), len);
                let head = xrc.with(|out| reth.emit(out));
                Self { psns, ..Self::single(Op::ReadRequest, head, 0) }
            }
            SendOp::CmpSwap { remote: Remote { addr: va, rkey }, compare, swap: swap_add } => {
                let eth = AtomicEth { va, rkey, swap_add, compare };
                Self::single(Op::CmpSwap, xrc.with(|out| eth.emit(out)), 0)
            }
            SendOp::FetchAdd { remote: Remote { addr: va, rkey }, add: swap_add } => {
                let eth = AtomicEth { va, rkey, swap_add, compare: 0 };
                Self::single(Op::FetchAdd, xrc.with(|out| eth.emit(out)), 0)
            }
            SendOp::AtomicWrite(remote) => {
                let head = xrc.with(|out| reth(remote, 0, 8).emit(out));
                Self::single(Op::AtomicWrite, head, 8)
            }
            SendOp::Flush { remote, len, kind } => {
                let head = xrc.with(|out| feth(kind).emit(out));
                Self::single(Op::Flush, head.with(|out| reth(remote, 0, len).emit(out)), 0)
            }
            // Messages and local operations do not get here; an empty send is the least harm.
            _ => Self::single(Op::SendOnly, xrc, 0),
        }
    }

    /// A train of one packet.
    #[inline]
    fn single(op: Op, head: Ext, payload: usize) -> Self {
        let (body, tail) = (Ext::NONE, Ext::NONE);
        Self { first: op, middle: op, last: op, head, body, tail, count: 1, psns: 1, payload }
    }
}

/// The headers of a message with payload of `len` bytes; `None` for other operations. `xrc` is
/// what every packet carries.
#[inline]
fn message(op: &SendOp, len: u32, xrc: Ext) -> Option<Message> {
    const SEND: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly];
    const SEND_IMM: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLastImm, Op::SendOnlyImm];
    const SEND_INV: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLastInv, Op::SendOnlyInv];
    const WRITE: [Op; 4] = [Op::WriteFirst, Op::WriteMiddle, Op::WriteLast, Op::WriteOnly];
    const WRITE_IMM: [Op; 4] =
        [Op::WriteFirst, Op::WriteMiddle, Op::WriteLastImm, Op::WriteOnlyImm];
    let with_reth = |remote| xrc.with(|out| reth(remote, 0, len).emit(out));
    let with_imm = |imm| xrc.with(|out| ImmDt { imm }.emit(out));
    let (ops, head, tail) = match *op {
        SendOp::Send => (SEND, xrc, xrc),
        SendOp::SendImm(imm) => (SEND_IMM, xrc, with_imm(imm)),
        SendOp::SendInv(rkey) => (SEND_INV, xrc, xrc.with(|out| Ieth { rkey }.emit(out))),
        SendOp::Write(remote) => (WRITE, with_reth(remote), xrc),
        SendOp::WriteImm(remote, imm) => (WRITE_IMM, with_reth(remote), with_imm(imm)),
        _ => return None,
    };
    Some(Message { ops, head, body: xrc, tail })
}

/// The header of an access to `len` bytes of remote memory, `offset` bytes on.
#[inline]
fn reth(remote: Remote, offset: u64, len: u32) -> Reth {
    Reth { va: remote.addr.wrapping_add(offset), rkey: remote.rkey, len }
}

/// The header of a flush.
fn feth(kind: FlushKind) -> Feth {
    let mut placement = FlushPlacement::new(0);
    if kind.global {
        placement = placement.union(FlushPlacement::GLOBAL);
    }
    if kind.persistent {
        placement = placement.union(FlushPlacement::PERSISTENT);
    }
    let selectivity =
        if kind.whole_region { FlushSelectivity::MemoryRegion } else { FlushSelectivity::Range };
    Feth::new(placement, selectivity)
}
