//! Payload that the driver receives straight into memory.
//!
//! The engine says where the payload that comes next goes, the driver receives it there without the
//! engine's lock, and says how much has arrived. Meanwhile the rights that were lent keep the
//! memory, and nothing that is posted on the queue pair is flushed.

use feroce_mem::Write;
use feroce_train::{Instant, Scatter};
use feroce_wire::Lkey;
use feroce_wire::iwarp::fpdu::{CRC_LEN, LENGTH_LEN, pad_len};

use super::buffers::{Parts, keep_parts, keep_with_place};
use super::qp::{Phase, Qp, Stream};
use super::responder_state::Target;
use crate::hca::shared::Shared;

/// Segments whose payload is received into memory have at least so many bytes of it. A system call
/// ends with the segment: with segments of 9,000 bytes, a stream carries 20 % to 35 % less by such
/// calls than by calls that take many segments, and copies.
const DIRECT: usize = 16 << 10;

/// The rest of such a segment is copied if it is shorter.
const REST: usize = 1 << 10;

/// The last bytes of a segment are copied all the same: a program that waits for the last byte of a
/// message may read the others then, and the kernel does not say in which order it writes.
const COPIED: usize = 64;

impl Stream {
    /// So many bytes of payload are where they belong.
    pub(super) fn advance(&mut self, len: usize) {
        let Some(segment) = &mut self.rsp.segment else { return };
        let next = |at: u64| at.wrapping_add(len as u64);
        match &mut segment.target {
            Target::Receive => {
                self.rsp.receive.iter_mut().for_each(|receive| receive.filled += len as u64);
            }
            Target::Memory(_, offset) => *offset = next(*offset),
            Target::Sink(_, offset) => {
                *offset = next(*offset);
                if let Some(sink) = self.req.sinks.front_mut() {
                    sink.left -= len as u32;
                    sink.offset = *offset;
                }
            }
            Target::Refused(_) | Target::Collected => {}
        }
    }
}

impl Qp {
    /// How many bytes of payload [`Qp::lend_scatter`] gives a place for.
    pub(crate) fn payload_to_land(&self) -> usize {
        let stream = self.stream.as_ref().filter(|stream| stream.phase == Phase::Open);
        // A CRC covers what the peer has sent. Threads and other peers may change bytes that are in
        // memory, and a CRC of those would end the stream: what a CRC covers is copied instead.
        let Some(stream) = stream.filter(|s| !s.setup.crc) else { return 0 };
        let is_long = stream.rsp.segment.is_some_and(|segment| segment.payload >= DIRECT);
        let len = stream.deframer.payload_left().saturating_sub(COPIED);
        if is_long && len >= REST { len } else { 0 }
    }

    /// Appends to `out` where the payload that comes next goes. Nothing, if that is not worth it,
    /// or not as it should be: the bytes are then copied, and what is wrong is found.
    pub(crate) fn lend_scatter(&mut self, hca: &Shared, out: &mut Scatter) {
        let (pd, qpn, len) = (self.common.init.pd, self.common.qpn, self.payload_to_land());
        let Some(stream) = self.stream.as_mut().filter(|_| len > 0) else { return };
        let Some(segment) = &stream.rsp.segment else { return };
        let parts = match segment.target {
            Target::Receive => stream.rsp.receive.as_ref().and_then(|receive| {
                let sges = receive.wr.sges.as_slice();
                keep_parts(&hca.mrs, receive.pd, sges, receive.filled, len)
            }),
            Target::Memory(stag, offset) => {
                let loan = hca.mrs.lend_remote::<Write>(pd, qpn, stag, offset, len as u64);
                keep_with_place(loan).map(|part| Parts::from_iter([part]))
            }
            Target::Sink(stag, offset) => {
                let loan = hca.mrs.lend_local::<Write>(pd, Lkey(stag.0), offset, len as u32);
                keep_with_place(loan).map(|part| Parts::from_iter([part]))
            }
            Target::Refused(_) | Target::Collected => None,
        };
        let Some(parts) = parts else { return };
        parts.into_iter().for_each(|part| out.append(part));
        stream.is_landing = true;
        // Up to the payload of the next segment, which most often is like this one.
        let ulpdu = segment.header.len() + segment.payload;
        out.behind = COPIED + pad_len(ulpdu) + CRC_LEN + LENGTH_LEN + segment.header.len();
    }

    /// The next `len` bytes of payload are where [`Qp::lend_scatter`] wants them.
    pub(crate) fn handle_landed(&mut self, hca: &mut Shared, now: Instant, len: usize) {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.is_landing) else {
            // It is not the stream that they are of: the queue pair has another, or none.
            return;
        };
        stream.is_landing = false;
        if stream.phase == Phase::Open {
            hca.counters.rcvd_bytes += len as u64;
            // A polling thread looks all the time: without bytes, the stream has still stalled.
            if len > 0 {
                stream.heard_at = now;
            }
            stream.deframer.took(len);
            stream.advance(len);
        } else {
            self.flush(hca, now);
            self.tell_last_receive(hca);
        }
    }
}
