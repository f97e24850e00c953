//! A whole transport packet: base header, extension headers, payload.

use core::fmt;

use crate::write::Writer;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpReserved, Deth, Feth, Ieth, ImmDt, Op, Opcode, Reth,
    Service, Truncated, XrcEth,
};

/// Why bytes are not a transport packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end before the headers do.
    Truncated,
    /// The opcode is reserved, or its service does not have it.
    BadOpcode(Opcode),
    /// More padding than payload.
    BadPad,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the packet ends inside its headers"),
            Self::BadOpcode(opcode) => write!(f, "opcode {:#04x} does not exist", opcode.0),
            Self::BadPad => f.write_str("the pad count exceeds the payload"),
        }
    }
}

impl core::error::Error for ParseError {}

impl From<Truncated> for ParseError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Why a packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitError {
    /// The output is too short.
    Truncated,
    /// The opcode is reserved, or its service does not have it.
    BadOpcode(Opcode),
    /// The extension headers present are not those of the opcode.
    WrongExts,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the output is too short for the packet"),
            Self::BadOpcode(opcode) => write!(f, "opcode {:#04x} does not exist", opcode.0),
            Self::WrongExts => f.write_str("the extension headers are not those of the opcode"),
        }
    }
}

impl core::error::Error for EmitError {}

impl From<Truncated> for EmitError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Extension headers, in the order in which they travel. The opcode says which are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Exts {
    /// Every UD packet.
    pub deth: Option<Deth>,
    /// Every XRC request.
    pub xrceth: Option<XrcEth>,
    /// CNP.
    pub cnp: Option<CnpReserved>,
    /// FLUSH.
    pub feth: Option<Feth>,
    /// First or only WRITE, READ request, FLUSH, ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// Compare-and-swap, fetch-and-add.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgements, and READ responses but the middle ones.
    pub aeth: Option<Aeth>,
    /// Acknowledgement of an atomic.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Last or only packet with immediate.
    pub imm: Option<ImmDt>,
    /// Last or only SEND with invalidate.
    pub ieth: Option<Ieth>,
}

impl Exts {
    /// No extension header.
    pub const NONE: Self = Self {
        deth: None,
        xrceth: None,
        cnp: None,
        feth: None,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        imm: None,
        ieth: None,
    };

    /// Reads those of `op` on `service` and returns them with what follows.
    #[inline]
    pub fn parse(service: Service, op: Op, mut bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        // Most packets: SEND, WRITE and READ response but the first, without immediate.
        if Opcode::new(service, op).header_len() == Some(Bth::LEN) {
            return Ok((Self::NONE, bytes));
        }
        let rest = &mut bytes;
        let exts = Self {
            deth: take(service == Service::Ud, rest, Deth::parse)?,
            xrceth: take(has_xrceth(service, op), rest, XrcEth::parse)?,
            cnp: take(service == Service::Cnp, rest, CnpReserved::parse)?,
            feth: take(op.has_feth(), rest, Feth::parse)?,
            reth: take(op.has_reth(), rest, Reth::parse)?,
            atomic: take(op.has_atomic_eth(), rest, AtomicEth::parse)?,
            aeth: take(op.has_aeth(), rest, Aeth::parse)?,
            atomic_ack: take(op.has_atomic_ack_eth(), rest, AtomicAckEth::parse)?,
            imm: take(op.has_imm(), rest, ImmDt::parse)?,
            ieth: take(op.has_ieth(), rest, Ieth::parse)?,
        };
        Ok((exts, bytes))
    }

    /// Writes them all; they must be exactly those of `op` on `service`.
    fn emit(&self, service: Service, op: Op, w: &mut Writer<'_>) -> Result<(), EmitError> {
        put(w, service == Service::Ud, self.deth, Deth::emit)?;
        put(w, has_xrceth(service, op), self.xrceth, XrcEth::emit)?;
        put(w, service == Service::Cnp, self.cnp, CnpReserved::emit)?;
        put(w, op.has_feth(), self.feth, Feth::emit)?;
        put(w, op.has_reth(), self.reth, Reth::emit)?;
        put(w, op.has_atomic_eth(), self.atomic, AtomicEth::emit)?;
        put(w, op.has_aeth(), self.aeth, Aeth::emit)?;
        put(w, op.has_atomic_ack_eth(), self.atomic_ack, AtomicAckEth::emit)?;
        put(w, op.has_imm(), self.imm, ImmDt::emit)?;
        put(w, op.has_ieth(), self.ieth, Ieth::emit)
    }
}

/// A parsed transport packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub exts: Exts,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet whose pad count fits its payload.
    #[inline]
    pub const fn new(bth: Bth, exts: Exts, payload: &'a [u8]) -> Self {
        let pad = Bth::pad_for(payload.len());
        Self { bth: Bth { pad, ..bth }, exts, payload }
    }

    /// Reads a packet from its base transport header to its padding, without ICRC.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (bth, rest) = Bth::parse(bytes)?;
        let (service, op) = bth.opcode.decode().ok_or(ParseError::BadOpcode(bth.opcode))?;
        let (exts, rest) = Exts::parse(service, op, rest)?;
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(ParseError::BadPad)?;
        let payload = rest.get(..len).ok_or(ParseError::BadPad)?;
        Ok(Self { bth, exts, payload })
    }

    /// Bytes that [`emit`](Self::emit) writes, if the opcode exists.
    #[inline]
    pub fn wire_len(&self) -> Option<usize> {
        let headers = self.bth.opcode.header_len()?;
        headers.checked_add(self.payload.len())?.checked_add(usize::from(self.bth.pad & 3))
    }

    /// Writes the packet at the start of `out`, padding included (zeros, as many as the header
    /// says), and returns its length. The ICRC is not written.
    ///
    /// Byte for byte what was parsed, but for reserved bytes of the extension headers and for
    /// padding that was not zero.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let opcode = self.bth.opcode;
        let (service, op) = opcode.decode().ok_or(EmitError::BadOpcode(opcode))?;
        let mut w = Writer::new(out);
        w.array(|out| self.bth.emit(out))?;
        self.exts.emit(service, op, &mut w)?;
        w.bytes(self.payload)?;
        w.zeros(usize::from(self.bth.pad & 3))?;
        Ok(w.written())
    }
}

/// Whether a packet carries an XRC extended transport header (annex A14).
const fn has_xrceth(service: Service, op: Op) -> bool {
    matches!(service, Service::Xrc) && op.is_request()
}

/// Reads a header if it is there.
fn take<T>(
    present: bool,
    rest: &mut &[u8],
    parse: impl FnOnce(&[u8]) -> Result<(T, &[u8]), Truncated>,
) -> Result<Option<T>, Truncated> {
    if !present {
        return Ok(None);
    }
    let (header, left) = parse(rest)?;
    *rest = left;
    Ok(Some(header))
}

/// Writes a header if it has to be there.
fn put<T, const N: usize>(
    w: &mut Writer<'_>,
    wanted: bool,
    header: Option<T>,
    emit: impl FnOnce(&T, &mut [u8; N]),
) -> Result<(), EmitError> {
    match (wanted, header) {
        (true, Some(header)) => Ok(w.array(|out| emit(&header, out))?),
        (false, None) => Ok(()),
        _ => Err(EmitError::WrongExts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Psn, Qpn};

    fn bth(opcode: u8) -> Bth {
        Bth::new(Opcode(opcode), Qpn::new(0x12), Psn::new(7))
    }

    #[test]
    fn errors_say_why() {
        let mut out = [0; 64];
        let reserved = Packet::new(bth(0x15), Exts::NONE, &[]);
        assert_eq!(reserved.emit(&mut out), Err(EmitError::BadOpcode(Opcode(0x15))));
        let no_reth = Packet::new(bth(0x0a), Exts::NONE, &[]);
        assert_eq!(no_reth.emit(&mut out), Err(EmitError::WrongExts));
        let extra = Exts { cnp: Some(CnpReserved::default()), ..Exts::NONE };
        assert_eq!(Packet::new(bth(4), extra, &[]).emit(&mut out), Err(EmitError::WrongExts));

        let send = Packet::new(bth(4), Exts::NONE, &[1, 2, 3, 4, 5]);
        assert_eq!(send.wire_len(), Some(20));
        assert_eq!(send.emit(&mut out[..19]), Err(EmitError::Truncated));
        assert_eq!(send.emit(&mut out), Ok(20));
        assert_eq!(Packet::parse(&out[..20]), Ok(send));
        assert_eq!(Packet::parse(&out[..15]).map(|p| p.payload.len()), Ok(0));
        assert_eq!(Packet::parse(&out[..14]), Err(ParseError::BadPad));
        assert_eq!(Packet::parse(&out[..11]), Err(ParseError::Truncated));
        out[0] = 0xe4;
        assert_eq!(Packet::parse(&out), Err(ParseError::BadOpcode(Opcode(0xe4))));
    }

    #[test]
    fn header_len_is_where_the_payload_starts() {
        for byte in 0..=u8::MAX {
            let mut bytes = [0; 64];
            bytes[0] = byte;
            let parsed = Packet::parse(&bytes).map(|p| 64 - p.payload.len()).ok();
            assert_eq!(parsed, Opcode(byte).header_len(), "opcode {byte:#04x}");
        }
    }
}
