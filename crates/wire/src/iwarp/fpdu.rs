//! Framing of the stream (RFC 5044 4): length, ULPDU, padding, CRC; and markers.
//!
//! [`Deframer`] takes a stream apart as it arrives, cut anywhere. [`Framer`] puts headers and
//! payload into FPDUs. Markers are only sent: this project never asks for them, so none arrives.

use core::fmt;

use crate::Truncated;
use crate::iwarp::Crc32c;
use crate::iwarp::ddp::Header;
use crate::write::Writer;

/// Most bytes of a ULPDU that this project sends (RFC 5044 4.1 and 5); it takes any length.
pub const MAX_ULPDU: usize = 64_768;

/// Bytes in front of the ULPDU.
pub const LENGTH_LEN: usize = 2;

/// Bytes of the CRC, which are there whether it is used or not.
pub const CRC_LEN: usize = 4;

/// Zeros between a ULPDU and the CRC: length and ULPDU together are a multiple of four.
#[inline]
pub const fn pad_len(ulpdu: usize) -> usize {
    (LENGTH_LEN + ulpdu).wrapping_neg() & 3
}

/// Bytes of an FPDU without markers.
#[inline]
pub const fn fpdu_len(ulpdu: usize) -> usize {
    LENGTH_LEN + ulpdu + pad_len(ulpdu) + CRC_LEN
}

/// What the stream holds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The header of a segment.
    Header {
        /// The header.
        header: Header,
        /// Bytes of payload behind it.
        payload: usize,
    },
    /// The next bytes of its payload; never empty.
    Payload(&'a [u8]),
    /// The segment is over, and its CRC right if CRCs are used.
    End,
}

/// Why a stream cannot be taken apart any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// The ULPDU is shorter than the header it begins with.
    Short {
        /// Its length.
        ulpdu: u16,
    },
    /// The CRC is wrong.
    Crc,
}

impl fmt::Display for FramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { ulpdu } => write!(f, "a ULPDU of {ulpdu} bytes holds no DDP header"),
            Self::Crc => f.write_str("wrong CRC"),
        }
    }
}

impl core::error::Error for FramingError {}

/// Length and longest header.
pub const HEAD_LEN: usize = LENGTH_LEN + Header::MAX_LEN;

/// FPDUs of no more bytes are hashed in one piece when they are there: to hash head, payload and
/// padding one by one takes longer than to read so few bytes twice.
pub const SHORT: usize = 512;

/// Longest padding and CRC.
const TAIL_LEN: usize = 3 + CRC_LEN;

#[derive(Clone, Copy, Debug)]
enum State {
    /// Collecting length and header.
    Head,
    /// In the payload: bytes that are left.
    Payload(usize),
    /// Collecting padding and CRC.
    Tail,
    /// An error was found.
    Failed(FramingError),
}

/// Takes a stream of FPDUs apart as it arrives.
///
/// ```
/// # use feroce_wire::iwarp::ddp::{Control, Header, Tagged};
/// # use feroce_wire::iwarp::fpdu::{Deframer, Framer, Piece};
/// # use feroce_wire::{Rkey, iwarp::rdmap::RdmaOp};
/// # let control = Control::new(RdmaOp::WRITE, true);
/// # let header = Header::Tagged(Tagged { control, stag: Rkey(1), offset: 2 });
/// let mut stream = [0; 100];
/// let mut framer = Framer::new(true, false);
/// let len = framer.emit(&header, 5, &mut stream, |_, out| out.copy_from_slice(b"hello")).unwrap();
/// let mut deframer = Deframer::new(true);
/// // The deframer keeps nothing of what arrives but parts of headers.
/// for mut arrived in stream[..len].chunks(7) {
///     while let Some(piece) = deframer.next(&mut arrived).unwrap() {
///         if let Piece::Payload(bytes) = piece {
///             assert!(b"hello".ends_with(bytes) || b"hello".starts_with(bytes));
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Deframer {
    state: State,
    /// The CRC so far, if CRCs are used.
    crc: Option<Crc32c>,
    ulpdu: u16,
    /// Head or tail, as far as it has arrived.
    buf: [u8; HEAD_LEN],
    filled: usize,
}

impl Deframer {
    /// At the start of the first FPDU; `crc`: whether CRCs are used.
    pub fn new(crc: bool) -> Self {
        Self {
            state: State::Head,
            crc: crc.then(Crc32c::new),
            ulpdu: 0,
            buf: [0; HEAD_LEN],
            filled: 0,
        }
    }

    /// The next FPDU, its header and its payload, if it is [short](SHORT), nothing of it was taken
    /// before, and all of it is in `bytes`; takes it from them. Its CRC is right if CRCs are used.
    pub fn take_short<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<(Header, &'a [u8])>, FramingError> {
        let Some(length) = bytes.first_chunk().filter(|_| self.is_between()) else {
            return Ok(None);
        };
        let ulpdu = usize::from(u16::from_be_bytes(*length));
        let len = fpdu_len(ulpdu);
        let Some((fpdu, rest)) = bytes.split_at_checked(len).filter(|_| len <= SHORT) else {
            return Ok(None);
        };
        let of_header = fpdu.get(LENGTH_LEN..LENGTH_LEN + ulpdu).map(Header::parse);
        let (Some(Ok((header, payload))), Some((covered, seal))) =
            (of_header, fpdu.split_last_chunk())
        else {
            // What is wrong, `next` says.
            return Ok(None);
        };
        *bytes = rest;
        if let Some(mut crc) = self.crc {
            crc.update(covered);
            if crc.seal() != *seal {
                self.state = State::Failed(FramingError::Crc);
                return Err(FramingError::Crc);
            }
        }
        Ok(Some((header, payload)))
    }

    /// The next piece of the stream, which goes on with `bytes`; takes from them what it used.
    /// `None`: more bytes must arrive, and all of these are used. After an error only errors come.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FramingError> {
        let piece = match self.state {
            State::Head => self.head(bytes),
            State::Payload(_) => {
                let payload = self.take_payload(bytes);
                self.cover(payload.unwrap_or_default());
                Ok(payload.map(Piece::Payload))
            }
            State::Tail => self.tail(bytes),
            State::Failed(error) => Err(error),
        };
        piece.inspect_err(|error| self.state = State::Failed(*error))
    }

    /// Bytes of payload that come next on the stream. If no CRC covers them, the owner may read
    /// them elsewhere than into what it gives to [`Deframer::next`], and then calls
    /// [`Deframer::took`].
    pub const fn payload_left(&self) -> usize {
        match self.state {
            State::Payload(left) => left,
            _ => 0,
        }
    }

    /// The next `len` bytes of the payload, at most [`Deframer::payload_left`], have been read
    /// elsewhere.
    pub fn took(&mut self, len: usize) {
        debug_assert!(self.crc.is_none(), "a CRC covers these bytes");
        if let State::Payload(left) = self.state {
            self.after_payload(left.saturating_sub(len));
        }
    }

    /// The payload at the beginning of `bytes`, if payload comes next; takes it from them. Unlike
    /// [`Deframer::next`], it leaves it to the owner to extend [`Deframer::crc`] by it.
    pub fn take_payload<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let State::Payload(left) = self.state else { return None };
        let here = left.min(bytes.len());
        if here == 0 {
            return None;
        }
        let (payload, rest) = bytes.split_at(here);
        *bytes = rest;
        self.after_payload(left - here);
        Some(payload)
    }

    /// The CRC of the FPDU so far, if CRCs are used.
    pub const fn crc(&mut self) -> Option<&mut Crc32c> {
        self.crc.as_mut()
    }

    /// Whether the stream may end here: no FPDU is cut.
    pub const fn is_between(&self) -> bool {
        matches!(self.state, State::Head) && self.filled == 0
    }

    fn head<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FramingError> {
        if !self.fill(LENGTH_LEN, bytes) {
            return Ok(None);
        }
        let [high, low, first, ..] = self.buf;
        self.ulpdu = u16::from_be_bytes([high, low]);
        let ulpdu = usize::from(self.ulpdu);
        let short = FramingError::Short { ulpdu: self.ulpdu };
        if ulpdu == 0 {
            return Err(short);
        }
        // The first byte of the header says how long it is.
        let len = if self.filled > LENGTH_LEN { Header::len_by(first) } else { 1 };
        if ulpdu < len {
            return Err(short);
        }
        if !self.fill(LENGTH_LEN + len, bytes) {
            return Ok(None);
        }
        if len == 1 {
            return self.head(bytes);
        }
        let head = self.buf;
        let (head, _) = head.split_at(LENGTH_LEN + len);
        let (_, header) = head.split_at(LENGTH_LEN);
        let Ok((header, _)) = Header::parse(header) else {
            return Err(short);
        };
        self.cover(head);
        self.after_payload(ulpdu - len);
        Ok(Some(Piece::Header { header, payload: ulpdu - len }))
    }

    fn tail<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FramingError> {
        let pad = pad_len(usize::from(self.ulpdu));
        if !self.fill(pad + CRC_LEN, bytes) {
            return Ok(None);
        }
        let tail = self.buf;
        let (padding, tail) = tail.split_at(pad);
        self.cover(padding);
        self.state = State::Head;
        self.filled = 0;
        match &mut self.crc {
            Some(crc) if !tail.starts_with(&crc.seal()) => return Err(FramingError::Crc),
            Some(crc) => *crc = Crc32c::new(),
            None => {}
        }
        Ok(Some(Piece::End))
    }

    fn after_payload(&mut self, left: usize) {
        self.filled = 0;
        self.state = if left == 0 { State::Tail } else { State::Payload(left) };
    }

    fn cover(&mut self, bytes: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
    }

    /// Collects until there are `len` bytes; false: not yet.
    fn fill(&mut self, len: usize, bytes: &mut &[u8]) -> bool {
        let room = self.buf.get_mut(self.filled..len).unwrap_or_default();
        let here = room.len().min(bytes.len());
        let (room, _) = room.split_at_mut(here);
        let (now, rest) = bytes.split_at(here);
        room.copy_from_slice(now);
        *bytes = rest;
        self.filled += here;
        self.filled >= len
    }
}

const _: () = assert!(TAIL_LEN <= HEAD_LEN, "a tail fits where heads are collected");

/// Distance of markers in the stream, and their length (RFC 5044 4.3).
const MARKER_DISTANCE: usize = 512;
const MARKER_LEN: usize = 4;

/// Puts FPDUs together.
///
/// A marker stands at every 512th byte of the stream from the first FPDU on, in the middle of
/// a header or payload too, and says how far back its FPDU begins. The CRC covers it.
#[derive(Clone, Debug)]
pub struct Framer {
    crc: bool,
    /// Bytes until the next marker, if the peer wants them.
    marker: Option<usize>,
}

impl Framer {
    /// For a stream with CRCs, if both sides have agreed on them, and with markers, if the peer
    /// wants them.
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self { crc, marker: if markers { Some(0) } else { None } }
    }

    /// Whether the peer wants markers: payload cannot be sent from where it is.
    pub const fn has_markers(&self) -> bool {
        self.marker.is_some()
    }

    /// Whether CRCs are used.
    pub const fn has_crc(&self) -> bool {
        self.crc
    }

    /// Bytes that the next FPDU has on the stream.
    pub const fn wire_len(&self, ulpdu: usize) -> usize {
        let len = fpdu_len(ulpdu);
        let Some(until) = self.marker else { return len };
        // Between two markers are 508 bytes. The last bytes of an FPDU are never a marker: it
        // belongs to the next one.
        if len <= until {
            return len;
        }
        let behind = len - until;
        len + MARKER_LEN * behind.div_ceil(MARKER_DISTANCE - MARKER_LEN)
    }

    /// Writes an FPDU and returns its length on the stream. `fill` is called with pieces of the
    /// output to be filled with payload, and with the offset of each in the payload.
    ///
    /// A ULPDU of more than 65,535 bytes does not fit, nor with markers one of more than
    /// [`MAX_ULPDU`].
    pub fn emit(
        &mut self,
        header: &Header,
        payload: usize,
        out: &mut [u8],
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize, Truncated> {
        self.emit_covered(header, payload, out, covering(fill))
    }

    /// As [`Framer::emit`], but `fill` extends the CRC by what it fills in, if it is given one.
    pub fn emit_covered(
        &mut self,
        header: &Header,
        payload: usize,
        out: &mut [u8],
        fill: impl FnMut(usize, &mut [u8], Option<&mut Crc32c>),
    ) -> Result<usize, Truncated> {
        let ulpdu = header.len() + payload;
        if self.marker.is_none() {
            let out = out.get_mut(..fpdu_len(ulpdu)).ok_or(Truncated)?;
            self.emit_plain(header, payload, out, fill)?;
            return Ok(out.len());
        }
        let mut head = [0; HEAD_LEN];
        let head_len = emit_head(header, payload, &mut head)?;
        let out = out.get_mut(..self.wire_len(ulpdu)).ok_or(Truncated)?;
        let mut output = Output { writer: Writer::new(out), crc: Crc32c::new(), start: None };
        self.put(&mut output, head_len, covering(|at, out| copy_from(&head, at, out)))?;
        self.put(&mut output, payload, fill)?;
        self.put(&mut output, pad_len(ulpdu), covering(|_, out| out.fill(0)))?;
        // FPDUs, markers and CRCs are multiples of four bytes: no marker splits a CRC.
        self.mark(&mut output)?;
        let seal = if self.crc { output.crc.seal() } else { [0; CRC_LEN] };
        output.writer.bytes(&seal)?;
        self.pass(CRC_LEN);
        Ok(output.writer.written())
    }

    /// Writes an FPDU without markers, which fills `out`.
    fn emit_plain(
        &self,
        header: &Header,
        payload: usize,
        out: &mut [u8],
        mut fill: impl FnMut(usize, &mut [u8], Option<&mut Crc32c>),
    ) -> Result<(), Truncated> {
        let (covered, seal) = out.split_last_chunk_mut::<CRC_LEN>().ok_or(Truncated)?;
        let head_len = emit_head(header, payload, covered)?;
        let mut crc = Crc32c::new();
        let is_short = covered.len() + CRC_LEN <= SHORT;
        let mut of_pieces = Some(&mut crc).filter(|_| self.crc && !is_short);
        let (head, rest) = covered.split_at_mut(head_len);
        let (body, padding) = rest.split_at_mut(payload);
        of_pieces.iter_mut().for_each(|crc| crc.update(head));
        if !body.is_empty() {
            fill(0, body, of_pieces.as_deref_mut());
        }
        padding.fill(0);
        of_pieces.iter_mut().for_each(|crc| crc.update(padding));
        if self.crc && is_short {
            crc.update(covered);
        }
        *seal = if self.crc { crc.seal() } else { [0; CRC_LEN] };
        Ok(())
    }

    /// Writes `len` bytes that the CRC covers, with markers in between.
    fn put(
        &mut self,
        output: &mut Output<'_>,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8], Option<&mut Crc32c>),
    ) -> Result<(), Truncated> {
        let mut at = 0;
        while at < len {
            self.mark(output)?;
            let here = self.marker.map_or(len - at, |until| until.min(len - at));
            output.start.get_or_insert_with(|| output.writer.written());
            output.covered(here, self.crc, |out, crc| fill(at, out, crc))?;
            self.pass(here);
            at += here;
        }
        Ok(())
    }

    /// Writes a marker if it is due.
    fn mark(&mut self, output: &mut Output<'_>) -> Result<(), Truncated> {
        if self.marker != Some(0) {
            return Ok(());
        }
        let back = output.start.map_or(0, |start| output.writer.written() - start);
        let [high, low] = u16::try_from(back).map_err(|_| Truncated)?.to_be_bytes();
        self.marker = Some(MARKER_DISTANCE - MARKER_LEN);
        let mut fill = covering(|at, out| copy_from(&[0, 0, high, low], at, out));
        output.covered(MARKER_LEN, self.crc, |out, crc| fill(0, out, crc))
    }

    const fn pass(&mut self, bytes: usize) {
        if let Some(until) = &mut self.marker {
            *until -= bytes;
        }
    }
}

/// Writes what precedes the payload of an FPDU, if no marker is due in it: length and header.
/// Returns how many bytes they are, [`HEAD_LEN`] at most.
pub fn emit_head(header: &Header, payload: usize, out: &mut [u8]) -> Result<usize, Truncated> {
    let ulpdu = u16::try_from(header.len() + payload).map_err(|_| Truncated)?;
    let mut writer = Writer::new(out);
    writer.bytes(&ulpdu.to_be_bytes())?;
    writer.variable(|out| header.emit(out))?;
    Ok(writer.written())
}

/// An FPDU that is being written.
struct Output<'a> {
    writer: Writer<'a>,
    crc: Crc32c,
    /// Where its length field is; a marker may stand in front of it.
    start: Option<usize>,
}

impl Output<'_> {
    fn covered(
        &mut self,
        len: usize,
        crc: bool,
        fill: impl FnOnce(&mut [u8], Option<&mut Crc32c>),
    ) -> Result<(), Truncated> {
        let out = self.writer.take(len)?;
        fill(out, crc.then_some(&mut self.crc));
        Ok(())
    }
}

/// Extends the CRC by what `fill` fills in.
fn covering(
    mut fill: impl FnMut(usize, &mut [u8]),
) -> impl FnMut(usize, &mut [u8], Option<&mut Crc32c>) {
    move |at, out, crc| {
        fill(at, out);
        crc.into_iter().for_each(|crc| crc.update(out));
    }
}

/// Fills `out` with `bytes` from `at` on, as many as there are.
fn copy_from(bytes: &[u8], at: usize, out: &mut [u8]) {
    let (out, bytes) = (out.iter_mut(), bytes.get(at..).unwrap_or_default());
    out.zip(bytes).for_each(|(out, byte)| *out = *byte);
}

#[cfg(test)]
mod tests;
