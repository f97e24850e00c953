//! Runs of packets: consecutive trains of one message, described as one packet.

use feroce_train::Train;
use feroce_wire::{Bth, Op, Opcode};

/// Consecutive packets of one message, with headers as if they were one packet of any length. A
/// link describes packets that way if it does not carry their payload: see
/// [`RemotePayload`](feroce_train::RemotePayload).
#[derive(Clone, Copy, Debug)]
pub struct PacketRun<'a> {
    first: &'a Train,
    last: &'a Train,
    op: Op,
    packets: u32,
    len: usize,
    /// One of the packets requests an acknowledgement. The acknowledgement of the last packet
    /// covers all.
    ack_req: bool,
}

impl<'a> PacketRun<'a> {
    /// The packets of one train; `None` if its opcodes are not those of one message, or if headers
    /// are in all of its packets, as on XRC.
    pub fn new(train: &'a Train) -> Option<Self> {
        let start = op_of(train.ops.first)?;
        let op = if train.count == 1 { start } else { start.through(end_of(train)?)? };
        let is_plain = train.body.as_slice().is_empty();
        let (packets, len, ack_req) = (train.count, train.payload_len, train.bth.ack_req);
        is_plain.then_some(Self { first: train, last: train, op, packets, len, ack_req })
    }

    /// The same run with the packets of `next` appended; `None` if they do not continue it.
    #[must_use]
    pub fn and(self, next: &'a Train) -> Option<Self> {
        let goes_on = next.revocation_epoch == self.first.revocation_epoch
            && next.bth.dest_qp == self.first.bth.dest_qp
            && next.bth.psn == self.first.bth.psn.wrapping_add(self.packets)
            && next.stride == self.first.stride
            && next.path == self.first.path
            && next.body.as_slice().is_empty()
            && self.len == self.packets as usize * self.first.stride
            && !self.op.ends()
            && !op_of(next.ops.first)?.starts();
        let op = op_of(self.first.ops.first)?.through(end_of(next)?)?;
        let (packets, len) = (self.packets + next.count, self.len + next.payload_len);
        let ack_req = self.ack_req || next.bth.ack_req;
        goes_on.then_some(Self { last: next, op, packets, len, ack_req, ..self })
    }

    /// How many packets there are.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.len
    }

    /// Extension headers: those of the first packet, and those of the last.
    fn extensions(&self) -> [&'a [u8]; 2] {
        let head = self.first.head.as_slice();
        if self.packets == 1 {
            return [head, &[]];
        }
        let tail = self.last.ext(self.last.count - 1).as_slice();
        match self.op {
            // First and last packet have the same header, which is that of an only packet.
            Op::ReadResponseOnly => [&[], tail],
            op => [if op.starts() { head } else { &[] }, if op.ends() { tail } else { &[] }],
        }
    }

    /// Length of its headers.
    pub fn header_len(&self) -> usize {
        let [head, tail] = self.extensions();
        Bth::LEN + head.len() + tail.len()
    }

    /// Writes its headers.
    ///
    /// # Panics
    /// If `out` is not as long as [`PacketRun::header_len`] says.
    pub fn emit(&self, out: &mut [u8]) {
        let [head, tail] = self.extensions();
        let (bth_out, rest) = out.split_first_chunk_mut().expect("room for a BTH");
        let service = self.first.ops.first.0 & !Opcode::OP_BITS;
        let opcode = Opcode(service | self.op as u8);
        let last = self.last.bth(self.last.count - 1);
        let (psn, ack_req) = (self.first.bth.psn, self.ack_req);
        Bth { opcode, psn, ack_req, pad: 0, ..last }.emit(bth_out);
        let (head_out, tail_out) = rest.split_at_mut(head.len());
        head_out.copy_from_slice(head);
        tail_out.copy_from_slice(tail);
    }
}

fn op_of(opcode: Opcode) -> Option<Op> {
    opcode.decode().map(|(_, op)| op)
}

/// The operation of the last packet of a train.
fn end_of(train: &Train) -> Option<Op> {
    op_of(train.bth(train.count - 1).opcode)
}
