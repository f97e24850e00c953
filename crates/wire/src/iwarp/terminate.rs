//! The TERMINATE message: why a stream ends (RFC 5040 4.8).
//!
//! Linux (siw) lays the control word out as bit fields of a little-endian machine: layer and type
//! change places, and so do the flags at the two ends of their byte. [`Terminate::parse`] reads
//! both layouts and says which one it found.

use core::fmt;

use crate::Truncated;
use crate::iwarp::ddp::Header;
use crate::iwarp::rdmap::ReadRequest;
use crate::write::Writer;

/// Why a stream ends: the layer that found the error, the type and the code of the error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    /// 0 RDMAP, 1 DDP, 2 the layer below (MPA); 4 bits.
    pub layer: u8,
    /// Type, by layer; 4 bits.
    pub kind: u8,
    /// Code, by type.
    pub code: u8,
}

/// Defines the causes that have names.
macro_rules! causes {
    ($($cause:ident = ($layer:literal, $kind:literal, $code:literal), $name:literal;)*) => {
        impl Cause {
            $(
                #[doc = concat!("The ", $name, ".")]
                pub const $cause: Self = Self { layer: $layer, kind: $kind, code: $code };
            )*

            /// The cause in words, if it has a name.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$cause => Some($name),)*
                    _ => None,
                }
            }

            /// Every cause that has a name.
            pub const ALL: &[Self] = &[$(Self::$cause,)*];
        }
    };
}

causes! {
    RDMAP_LOCAL_CATASTROPHIC = (0, 0, 0x00), "RDMAP: local catastrophic error";
    PROTECTION_INVALID_STAG = (0, 1, 0x00), "RDMAP protection: invalid STag";
    PROTECTION_BOUNDS = (0, 1, 0x01), "RDMAP protection: base or bounds violation";
    PROTECTION_ACCESS = (0, 1, 0x02), "RDMAP protection: access rights violation";
    PROTECTION_NOT_OF_STREAM = (0, 1, 0x03), "RDMAP protection: STag of another stream";
    PROTECTION_WRAP = (0, 1, 0x04), "RDMAP protection: offset wraps";
    PROTECTION_UNSPECIFIED = (0, 1, 0xff), "RDMAP protection: unspecified error";
    OPERATION_VERSION = (0, 2, 0x05), "RDMAP operation: invalid version";
    OPERATION_OPCODE = (0, 2, 0x06), "RDMAP operation: unexpected opcode";
    OPERATION_STREAM_CATASTROPHIC = (0, 2, 0x07), "RDMAP operation: catastrophic for the stream";
    OPERATION_GLOBAL_CATASTROPHIC = (0, 2, 0x08), "RDMAP operation: catastrophic for the adapter";
    OPERATION_INVALIDATE = (0, 2, 0x09), "RDMAP operation: STag cannot be invalidated";
    OPERATION_UNSPECIFIED = (0, 2, 0xff), "RDMAP operation: unspecified error";
    DDP_LOCAL_CATASTROPHIC = (1, 0, 0x00), "DDP: local catastrophic error";
    TAGGED_INVALID_STAG = (1, 1, 0x00), "DDP tagged: invalid STag";
    TAGGED_BOUNDS = (1, 1, 0x01), "DDP tagged: base or bounds violation";
    TAGGED_NOT_OF_STREAM = (1, 1, 0x02), "DDP tagged: STag of another stream";
    TAGGED_WRAP = (1, 1, 0x03), "DDP tagged: offset wraps";
    TAGGED_VERSION = (1, 1, 0x04), "DDP tagged: invalid version";
    UNTAGGED_QUEUE = (1, 2, 0x01), "DDP untagged: invalid queue number";
    UNTAGGED_NO_BUFFER = (1, 2, 0x02), "DDP untagged: no buffer for the message";
    UNTAGGED_MSN = (1, 2, 0x03), "DDP untagged: invalid message number";
    UNTAGGED_MO = (1, 2, 0x04), "DDP untagged: invalid message offset";
    UNTAGGED_TOO_LONG = (1, 2, 0x05), "DDP untagged: message too long for its buffer";
    UNTAGGED_VERSION = (1, 2, 0x06), "DDP untagged: invalid version";
    MPA_LOST = (2, 0, 0x01), "MPA: connection lost";
    MPA_CRC = (2, 0, 0x02), "MPA: wrong CRC";
    MPA_MARKERS = (2, 0, 0x03), "MPA: markers and lengths do not agree";
    MPA_STARTUP = (2, 0, 0x04), "MPA: invalid startup frame";
    MPA_LOCAL_CATASTROPHIC = (2, 0, 0x05), "MPA: local catastrophic error";
    MPA_READS = (2, 0, 0x06), "MPA: too few resources for READs";
    MPA_RTR = (2, 0, 0x07), "MPA: no common ready-to-receive message";
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "layer {}, type {}, code {:#04x}", self.layer, self.kind, self.code),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How the control word is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// As the RFC has it.
    #[default]
    Rfc,
    /// As Linux has it.
    Siw,
}

/// Flags of the third byte: what follows the control word.
#[derive(Clone, Copy)]
struct Flags {
    segment_len: u8,
    header: u8,
    request: u8,
}

impl Layout {
    const fn flags(self) -> Flags {
        match self {
            Self::Rfc => Flags { segment_len: 0x80, header: 0x40, request: 0x20 },
            Self::Siw => Flags { segment_len: 0x01, header: 0x02, request: 0x04 },
        }
    }

    const fn cause(self, [first, code]: [u8; 2]) -> Cause {
        let (high, low) = (first >> 4, first & 0x0f);
        match self {
            Self::Rfc => Cause { layer: high, kind: low, code },
            Self::Siw => Cause { layer: low, kind: high, code },
        }
    }

    const fn first_byte(self, cause: Cause) -> u8 {
        let (layer, kind) = (cause.layer & 0x0f, cause.kind & 0x0f);
        match self {
            Self::Rfc => layer << 4 | kind,
            Self::Siw => kind << 4 | layer,
        }
    }

    /// The layout of a control word. The flags tell, since they are at different ends of their
    /// byte; without flags, the layout in which the cause has a name: if both, that of the RFC.
    const fn of([first, code, flags, _]: [u8; 4]) -> Self {
        match (flags & 0xe0, flags & 0x07) {
            (0, 0) => {
                let rfc = Self::Rfc.cause([first, code]).name().is_some();
                let siw = Self::Siw.cause([first, code]).name().is_some();
                if siw && !rfc { Self::Siw } else { Self::Rfc }
            }
            (0, _) => Self::Siw,
            _ => Self::Rfc,
        }
    }
}

/// The payload of a TERMINATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub cause: Cause,
    /// Length of the segment that was wrong.
    pub segment_len: Option<u16>,
    /// Its header.
    pub header: Option<Header>,
    /// The READ request that was wrong.
    pub request: Option<ReadRequest>,
    /// How the sender lays the control word out.
    pub layout: Layout,
}

impl Terminate {
    /// Most bytes on the wire.
    pub const MAX_LEN: usize = 4 + 2 + Header::MAX_LEN + ReadRequest::LEN;

    /// Without the headers of what was wrong.
    pub const fn new(cause: Cause) -> Self {
        Self { cause, segment_len: None, header: None, request: None, layout: Layout::Rfc }
    }

    /// Reads the message at the start of `bytes` and returns it with what follows. Reserved bits
    /// are ignored.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (word, mut rest) = bytes.split_first_chunk::<4>().ok_or(Truncated)?;
        let layout = Layout::of(*word);
        let [first, code, set, _] = *word;
        let flags = layout.flags();
        let mut message = Self { layout, ..Self::new(layout.cause([first, code])) };
        if set & flags.segment_len != 0 {
            let (len, behind) = rest.split_first_chunk().ok_or(Truncated)?;
            message.segment_len = Some(u16::from_be_bytes(*len));
            rest = behind;
        }
        if set & flags.header != 0 {
            let (header, behind) = Header::parse(rest)?;
            message.header = Some(header);
            rest = behind;
        }
        if set & flags.request != 0 {
            let (request, behind) = ReadRequest::parse(rest)?;
            message.request = Some(request);
            rest = behind;
        }
        Ok((message, rest))
    }

    /// Writes the message and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let flags = self.layout.flags();
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let set = flag(self.segment_len.is_some(), flags.segment_len)
            | flag(self.header.is_some(), flags.header)
            | flag(self.request.is_some(), flags.request);
        let mut writer = Writer::new(out);
        writer.bytes(&[self.layout.first_byte(self.cause), self.cause.code, set, 0])?;
        if let Some(len) = self.segment_len {
            writer.bytes(&len.to_be_bytes())?;
        }
        if let Some(header) = &self.header {
            writer.variable(|out| header.emit(out))?;
        }
        if let Some(request) = &self.request {
            writer.array(|out| request.emit(out))?;
        }
        Ok(writer.written())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;
    use crate::iwarp::ddp::{Control, Tagged};
    use crate::iwarp::rdmap::RdmaOp;

    fn emitted(message: &Terminate) -> ([u8; Terminate::MAX_LEN], usize) {
        let mut out = [0; Terminate::MAX_LEN];
        let len = message.emit(&mut out).expect("room");
        (out, len)
    }

    #[test]
    fn both_layouts_are_read_if_headers_follow() {
        let control = Control::new(RdmaOp::WRITE, true);
        let header = Header::Tagged(Tagged { control, stag: Rkey(7), offset: 9 });
        for layout in [Layout::Rfc, Layout::Siw] {
            for cause in Cause::ALL {
                let message = Terminate {
                    segment_len: Some(24),
                    header: Some(header),
                    layout,
                    ..Terminate::new(*cause)
                };
                let (out, len) = emitted(&message);
                assert_eq!(Terminate::parse(&out[..len]), Ok((message, &[][..])));
                assert_eq!(Terminate::parse(&out[..len - 1]), Err(Truncated));
            }
        }
    }

    #[test]
    fn without_headers_the_cause_tells_the_layout() {
        for cause in Cause::ALL {
            let (out, len) = emitted(&Terminate::new(*cause));
            let (read, _) = Terminate::parse(&out[..len]).expect("whole");
            assert_eq!((read.cause, read.layout), (*cause, Layout::Rfc));
        }
        // A wrong CRC as Linux says it; read by the RFC, it would be of no known code.
        let (crc, _) = Terminate::parse(&[0x02, 0x02, 0, 0]).expect("whole");
        assert_eq!((crc.cause, crc.layout), (Cause::MPA_CRC, Layout::Siw));
    }
}
