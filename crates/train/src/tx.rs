//! Trains that an engine wants sent.

use feroce_mem::{CrcPrefix, RevocationEpoch};
use feroce_wire::icrc::IcrcPrefix;
use feroce_wire::{Bth, BthView, Opcode, Psn, Qpn};

use crate::{Path, Payload};

/// Extension headers of one packet, as bytes: everything between BTH and payload.
#[derive(Clone, Copy, Debug)]
pub struct Ext {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Default for Ext {
    fn default() -> Self {
        Self::NONE
    }
}

impl Ext {
    /// XRCETH and AtomicETH together are the longest combination there is.
    pub const MAX: usize = 32;
    /// No extension header.
    pub const NONE: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// Appends one header: `N` bytes that `write` fills in.
    ///
    /// # Panics
    /// If the headers exceed [`Ext::MAX`] bytes, which no legal combination does.
    #[inline]
    #[must_use]
    pub fn with<const N: usize>(mut self, write: impl FnOnce(&mut [u8; N])) -> Self {
        let start = usize::from(self.len);
        let mut header = [0; N];
        write(&mut header);
        self.bytes[start..start + N].copy_from_slice(&header);
        self.len += N as u8;
        self
    }

    /// The headers.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The opcodes of a train by position. A train of one packet uses `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrainOps {
    /// Opcode of the first packet of the train.
    pub first: Opcode,
    /// Opcode of the packets between the first and the last.
    pub middle: Opcode,
    /// Opcode of the last packet of a train of two or more.
    pub last: Opcode,
}

impl TrainOps {
    /// The same opcode throughout.
    #[inline]
    pub const fn all(op: Opcode) -> Self {
        Self { first: op, middle: op, last: op }
    }
}

/// A run of packets to one destination: of one message, or of several short ones.
///
/// Invariants that the engine keeps: `count` is at least 1; every packet but the last carries
/// `stride` payload bytes; no packet is longer than the first, so a link may hand the whole run
/// to segmentation offload. With [`Payload::Packets`] there are `count` of those, and only `path`
/// and `bth`, which is that of the first, say anything beside them.
#[derive(Debug)]
pub struct Train {
    /// Where it goes.
    pub path: Path,
    /// Template of the BTH: its PSN is that of the first packet; opcode and padding are filled in
    /// per packet; `solicited` and `ack_req` apply to the last packet only.
    pub bth: Bth,
    /// Opcodes by position.
    pub ops: TrainOps,
    /// Number of packets.
    pub count: u32,
    /// Payload bytes of every packet but the last.
    pub stride: usize,
    /// Payload bytes of the whole train.
    pub payload_len: usize,
    /// Extension headers of the first packet.
    pub head: Ext,
    /// Extension headers of the packets between the first and the last.
    pub body: Ext,
    /// Extension headers of the last packet of a train of two or more.
    pub tail: Ext,
    /// The payload.
    pub payload: Payload,
    /// The payload stays as it is until the peer has answered, unless the engine revokes that: a
    /// link may let the peer fetch it, as long as this is still the newest revocation epoch.
    pub revocation_epoch: Option<RevocationEpoch>,
}

impl Train {
    /// Extension headers of packet `i`.
    #[inline]
    pub fn ext(&self, i: u32) -> &Ext {
        if i == 0 {
            &self.head
        } else if i + 1 == self.count {
            &self.tail
        } else {
            &self.body
        }
    }

    /// The BTH of packet `i`, complete.
    #[inline]
    pub fn bth(&self, i: u32) -> Bth {
        if let Some(packet) = self.payload.packet(i) {
            return BthView::new_checked(packet).map_or(self.bth, BthView::to_repr);
        }
        let is_last = i + 1 == self.count;
        let opcode = if i == 0 {
            self.ops.first
        } else if is_last {
            self.ops.last
        } else {
            self.ops.middle
        };
        Bth {
            opcode,
            psn: self.bth.psn.wrapping_add(i),
            pad: pad_of(self.payload_range(i).1),
            solicited: self.bth.solicited && is_last,
            ack_req: self.bth.ack_req && is_last,
            ..self.bth
        }
    }

    /// Offset and length of the payload of packet `i`.
    #[inline]
    fn payload_range(&self, i: u32) -> (usize, usize) {
        let start = i as usize * self.stride;
        let len =
            if i + 1 == self.count { self.payload_len.saturating_sub(start) } else { self.stride };
        (start, len)
    }

    /// Length of packet `i` from the BTH to the end of the padding; the ICRC is not counted.
    #[inline]
    pub fn packet_len(&self, i: u32) -> usize {
        if let Payload::Packets { len, .. } = self.payload {
            return len;
        }
        let (_, len) = self.payload_range(i);
        Bth::LEN + self.ext(i).as_slice().len() + len.next_multiple_of(4)
    }

    /// Length of all packets together, counted as in [`Train::packet_len`].
    #[inline]
    pub fn total_len(&self) -> usize {
        if let Payload::Packets { bytes, .. } = &self.payload {
            return bytes.len();
        }
        match self.count {
            1 => self.packet_len(0),
            2 => self.packet_len(0) + self.packet_len(1),
            n => {
                let middle = Bth::LEN + self.body.as_slice().len() + self.stride;
                self.packet_len(0) + (n as usize - 2) * middle + self.packet_len(n - 1)
            }
        }
    }

    /// Writes packet `i` to the start of `out` and returns its length.
    ///
    /// Payload bytes that cannot be read (the owner of the train broke its invariant) are zero.
    ///
    /// # Panics
    /// If `out` is shorter than [`Train::packet_len`] or `i` is not below `count`.
    #[inline]
    pub fn emit(&self, i: u32, out: &mut [u8]) -> usize {
        assert!(i < self.count, "packet {i} of a train of {}", self.count);
        if let Some(packet) = self.payload.packet(i) {
            out[..packet.len()].copy_from_slice(packet);
            return packet.len();
        }
        let out = &mut out[..self.packet_len(i)];
        self.emit_head(i, out);
        let (_, body) = self.split(i, out);
        self.fill(i, body);
        out.len()
    }

    /// Writes the headers of packet `i`, which is not written out yet, to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than they are.
    #[inline]
    pub fn emit_head(&self, i: u32, out: &mut [u8]) {
        let (bth, rest) = out.split_first_chunk_mut().expect("a packet holds a BTH");
        self.bth(i).emit(bth);
        let ext = self.ext(i).as_slice();
        rest[..ext.len()].copy_from_slice(ext);
    }

    /// Writes the rest of packet `i` behind its headers, which `packet` begins with. Returns its
    /// ICRC, which `prefix` is for, if that comes at no cost: the payload is hashed while it is
    /// copied, where that is possible.
    ///
    /// # Panics
    /// If `packet` is not as long as [`Train::packet_len`].
    #[inline]
    pub fn emit_body(&self, i: u32, packet: &mut [u8], prefix: IcrcPrefix) -> Option<[u8; 4]> {
        let (head, body) = self.split(i, packet);
        let (start, len) = self.payload_range(i);
        if len == body.len() {
            let copy =
                |crc, bytes| self.payload.copy_out_hashed(start, body, CrcPrefix { crc, bytes });
            if let Some(digest) = prefix.begin_with(head, copy) {
                return Some(digest.seal());
            }
        }
        self.fill(i, body);
        None
    }

    /// A packet in two: headers, and payload with padding.
    #[inline]
    fn split<'a>(&self, i: u32, packet: &'a mut [u8]) -> (&'a mut [u8], &'a mut [u8]) {
        packet.split_at_mut(Bth::LEN + self.ext(i).as_slice().len())
    }

    /// Writes payload and padding of packet `i`.
    #[inline]
    fn fill(&self, i: u32, body: &mut [u8]) {
        let (start, len) = self.payload_range(i);
        let (data, pad) = body.split_at_mut(len);
        if !self.payload.copy_out(start, data) {
            data.fill(0);
        }
        if !pad.is_empty() {
            pad.fill(0);
        }
    }
}

/// A packet that is the whole of a message and is sent without a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Single<'a> {
    /// Where it goes.
    pub path: &'a Path,
    /// Whom it is for there.
    pub dest: Qpn,
    /// The packet from its BTH to its padding.
    pub bytes: &'a [u8],
}

impl Single<'_> {
    /// The same packet as a train, for a carrier that does not send it by itself. It allocates.
    pub fn to_train(&self) -> Train {
        let bth = BthView::new_checked(self.bytes).map(BthView::to_repr);
        let bth = bth.unwrap_or_else(|_| Bth::new(Opcode(0), self.dest, Psn::new(0)));
        Train {
            path: *self.path,
            bth,
            ops: TrainOps::all(bth.opcode),
            count: 1,
            stride: 0,
            payload_len: 0,
            head: Ext::NONE,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload: Payload::Packets { bytes: self.bytes.to_vec(), len: self.bytes.len() },
            revocation_epoch: None,
        }
    }
}

/// Holds a [`Single`] between engine and carrier. The engine overwrites it with the next one.
#[derive(Clone, Debug)]
pub struct SingleBuf {
    path: Path,
    dest: Qpn,
    len: usize,
    bytes: [u8; Self::MAX],
}

impl Default for SingleBuf {
    fn default() -> Self {
        Self { path: Path::default(), dest: Qpn::new(0), len: 0, bytes: [0; Self::MAX] }
    }
}

impl SingleBuf {
    /// Bytes of the longest packet: what the fast path of an engine sends is shorter.
    pub const MAX: usize = 320;

    /// Replaces the packet by one of `len` bytes, which `write` fills in. False, and nothing has
    /// changed: it is too long.
    #[inline]
    pub fn put(
        &mut self,
        path: &Path,
        dest: Qpn,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(bytes) = self.bytes.get_mut(..len) else { return false };
        write(bytes);
        (self.path, self.dest, self.len) = (*path, dest, len);
        true
    }

    /// The packet.
    #[inline]
    pub fn get(&self) -> Single<'_> {
        let bytes = self.bytes.get(..self.len).unwrap_or(&self.bytes);
        Single { path: &self.path, dest: self.dest, bytes }
    }
}

/// Padding that rounds `len` up to a multiple of four.
#[inline]
const fn pad_of(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}
