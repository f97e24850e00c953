//! The layout of a train of requests: opcodes, extension headers and lengths.

use feroce_train::{Ext, LinkCaps};
use feroce_wire::{
    AtomicEth, Bth, Feth, FlushPlacement, FlushSelectivity, Ieth, Imm, ImmDt, Op, Reth, Rkey,
    XrcEth,
};

use super::outstanding::Flight;
use crate::hca::wr::{Dest, FlushKind, Remote, SendOp, SendWr};

/// Everything about a train but addresses, PSNs and payload.
#[derive(Debug)]
pub(super) struct TrainLayout {
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
    ops: &'static [Op; 4],
    /// What the first packet carries beyond what all do.
    start: Option<Reth>,
    /// What the last packet carries beyond what all do.
    end: End,
}

/// What follows the other headers of the last packet of a message.
enum End {
    Plain,
    Imm(Imm),
    Inv(Rkey),
}

impl Message {
    /// The headers of a first packet where others have `ext`.
    #[inline]
    fn with_start(&self, ext: Ext) -> Ext {
        match self.start {
            Some(reth) => ext.with(|out| reth.emit(out)),
            None => ext,
        }
    }

    /// The headers of a last packet where others have `ext`.
    #[inline]
    fn with_end(&self, ext: Ext) -> Ext {
        match self.end {
            End::Plain => ext,
            End::Imm(imm) => ext.with(|out| ImmDt { imm }.emit(out)),
            End::Inv(rkey) => ext.with(|out| Ieth { rkey }.emit(out)),
        }
    }
}

impl TrainLayout {
    /// The train of `piece`.
    #[inline]
    pub(super) fn new(wr: &SendWr, piece: Piece<'_>, caps: &LinkCaps) -> Self {
        let xrc = xrc_ext(wr);
        match message(&wr.op, piece.flight.len) {
            Some(message) => Self::of_message(&message, xrc, piece, caps),
            None => Self::of_request(&wr.op, piece, xrc),
        }
    }

    /// A train of packets with payload, all of which carry `body`.
    #[inline]
    fn of_message(message: &Message, body: Ext, piece: Piece<'_>, caps: &LinkCaps) -> Self {
        let &[first, middle, last, only] = message.ops;
        let Piece { flight, from, room, pmtu } = piece;
        let (packets, len) = (flight.packets, flight.len as usize);
        if packets == 1 {
            return Self::single(only, message.with_end(message.with_start(body)), len);
        }
        let at_start = from == 0;
        let head = if at_start { message.with_start(body) } else { body };
        let tail = message.with_end(body);
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
            // Unreachable: messages and local operations are handled before. An empty SEND is
            // harmless.
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

/// A message that is one packet, without its bytes.
pub(super) struct OnlyPacket {
    pub(super) op: Op,
    /// Bytes of payload.
    pub(super) payload: u32,
    xrc: Option<XrcEth>,
    start: Option<Reth>,
    end: End,
}

impl OnlyPacket {
    /// The message of a work request, of `len` bytes, which fit in one packet; `None` for other
    /// operations.
    #[inline]
    pub(super) fn of(wr: &SendWr, len: u64) -> Option<Self> {
        let payload = u32::try_from(len).ok()?;
        let Message { ops, start, end } = message(&wr.op, payload)?;
        let [.., op] = *ops;
        let xrc = match wr.dest {
            Dest::Xrc(srqn) => Some(XrcEth { srqn }),
            _ => None,
        };
        Some(Self { op, payload, xrc, start, end })
    }

    /// Length of the packet, from its BTH to its padding.
    #[inline]
    pub(super) fn packet_len(&self) -> usize {
        let xrc = if self.xrc.is_some() { XrcEth::LEN } else { 0 };
        let start = if self.start.is_some() { Reth::LEN } else { 0 };
        let end = match self.end {
            End::Plain => 0,
            End::Imm(_) => ImmDt::LEN,
            End::Inv(_) => Ieth::LEN,
        };
        Bth::LEN + xrc + start + end + self.payload as usize + usize::from(self.pad())
    }

    /// Bytes of padding.
    #[inline]
    pub(super) fn pad(&self) -> u8 {
        Bth::pad_for(self.payload as usize)
    }

    /// Writes the extension headers to `out`, which is the packet without its BTH. Says where the
    /// payload and the padding go; `None` if the packet would not be as long as `out`.
    #[inline]
    pub(super) fn emit<'a>(&self, out: &'a mut [u8]) -> Option<(&'a mut [u8], &'a mut [u8])> {
        let mut body = out;
        if let Some(xrc) = &self.xrc {
            xrc.emit(take(&mut body)?);
        }
        if let Some(reth) = &self.start {
            reth.emit(take(&mut body)?);
        }
        match self.end {
            End::Plain => {}
            End::Imm(imm) => ImmDt { imm }.emit(take(&mut body)?),
            End::Inv(rkey) => Ieth { rkey }.emit(take(&mut body)?),
        }
        let (data, padding) = body.split_at_mut_checked(self.payload as usize)?;
        (padding.len() == usize::from(self.pad())).then_some((data, padding))
    }
}

/// Splits the next header off.
#[inline]
fn take<'a, const N: usize>(out: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (header, rest) = core::mem::take(out).split_first_chunk_mut()?;
    *out = rest;
    Some(header)
}

/// What every packet of a request carries.
#[inline]
fn xrc_ext(wr: &SendWr) -> Ext {
    match wr.dest {
        Dest::Xrc(srqn) => Ext::NONE.with(|out| XrcEth { srqn }.emit(out)),
        _ => Ext::NONE,
    }
}

/// A message with payload of `len` bytes; `None` for other operations.
#[inline]
fn message(op: &SendOp, len: u32) -> Option<Message> {
    const SEND: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly];
    const SEND_IMM: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLastImm, Op::SendOnlyImm];
    const SEND_INV: [Op; 4] = [Op::SendFirst, Op::SendMiddle, Op::SendLastInv, Op::SendOnlyInv];
    const WRITE: [Op; 4] = [Op::WriteFirst, Op::WriteMiddle, Op::WriteLast, Op::WriteOnly];
    const WRITE_IMM: [Op; 4] =
        [Op::WriteFirst, Op::WriteMiddle, Op::WriteLastImm, Op::WriteOnlyImm];
    let (ops, start, end) = match *op {
        SendOp::Send => (&SEND, None, End::Plain),
        SendOp::SendImm(imm) => (&SEND_IMM, None, End::Imm(imm)),
        SendOp::SendInv(rkey) => (&SEND_INV, None, End::Inv(rkey)),
        SendOp::Write(remote) => (&WRITE, Some(reth(remote, 0, len)), End::Plain),
        SendOp::WriteImm(remote, imm) => (&WRITE_IMM, Some(reth(remote, 0, len)), End::Imm(imm)),
        _ => return None,
    };
    Some(Message { ops, start, end })
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
