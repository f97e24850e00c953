//! Whole packets of an InfiniBand link: from the local route header to the VCRC.

use core::fmt;

use crate::write::Writer;
use crate::{GRH_NEXT_HEADER, Gid, Grh, IcrcPrefix, LinkNext, Lrh, TooLong, Truncated, icrc, vcrc};

/// Why bytes are not a packet of the transport on an InfiniBand link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IbFrameError {
    /// The bytes end before a header, or the length in a header, does.
    Truncated,
    /// A raw packet: what follows the local route header is no transport.
    Raw(LinkNext),
    /// The GRH has another version than 6.
    GrhVersion(u8),
    /// The GRH is not followed by a base transport header.
    NotTransport(u8),
    /// A length in a header contradicts another one or leaves no room for the ICRC.
    BadLength,
}

impl fmt::Display for IbFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => Truncated.fmt(f),
            Self::Raw(next) => write!(f, "a raw packet ({next:?}) carries no transport"),
            Self::GrhVersion(version) => write!(f, "version {version} of the GRH is not 6"),
            Self::NotTransport(n) => write!(f, "next header {n:#04x} is no transport header"),
            Self::BadLength => f.write_str("the lengths in the headers contradict each other"),
        }
    }
}

impl core::error::Error for IbFrameError {}

impl From<Truncated> for IbFrameError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// A packet on an InfiniBand link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbFrame<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header, if there is one.
    pub grh: Option<Grh>,
    /// From the base transport header to the padding.
    pub transport: &'a [u8],
    /// The ICRC as it was found, right or wrong.
    pub icrc: u32,
    /// The VCRC as it was found, right or wrong.
    pub vcrc: u16,
    /// What follows the VCRC: captures may pad.
    pub trailer: &'a [u8],
}

impl<'a> IbFrame<'a> {
    /// A sealed packet. The lengths in the headers and what says that a GRH follows are set here.
    pub fn new(lrh: Lrh, grh: Option<(Gid, Gid)>, transport: &'a [u8]) -> Result<Self, TooLong> {
        let transport_len = transport.len() + icrc::LEN;
        let grh = match grh {
            Some((sgid, dgid)) => {
                Some(Grh::new(sgid, dgid, transport_len.try_into().map_err(|_| TooLong)?))
            }
            None => None,
        };
        let len = Lrh::LEN + grh.map_or(0, |_| Grh::LEN) + transport_len;
        let words = u16::try_from(len / 4).map_err(|_| TooLong)?;
        if !len.is_multiple_of(4) || words > Lrh::MAX_WORDS {
            return Err(TooLong);
        }
        let next = if grh.is_some() { LinkNext::Global } else { LinkNext::Local };
        let lrh = Lrh { next, words, ..lrh };
        Ok(Self { lrh, grh, transport, icrc: 0, vcrc: 0, trailer: &[] }.sealed())
    }

    /// Reads a packet that starts with its local route header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IbFrameError> {
        let (lrh, _) = Lrh::parse(bytes)?;
        let (packet, rest) =
            bytes.split_at_checked(usize::from(lrh.words) * 4).ok_or(IbFrameError::Truncated)?;
        let body = packet.get(Lrh::LEN..).ok_or(IbFrameError::BadLength)?;
        let (grh, body) = match lrh.next {
            LinkNext::Local => (None, body),
            LinkNext::Global => {
                let (grh, rest) = parse_grh(body)?;
                (Some(grh), rest)
            }
            raw => return Err(IbFrameError::Raw(raw)),
        };
        let (transport, icrc) = body.split_last_chunk().ok_or(IbFrameError::BadLength)?;
        let (vcrc, trailer) = rest.split_first_chunk().ok_or(IbFrameError::Truncated)?;
        let (icrc, vcrc) = (u32::from_le_bytes(*icrc), u16::from_le_bytes(*vcrc));
        Ok(Self { lrh, grh, transport, icrc, vcrc, trailer })
    }

    /// The ICRC this packet should have.
    pub fn expected_icrc(&self) -> u32 {
        let prefix = match &self.grh {
            Some(grh) => IcrcPrefix::for_grh(grh),
            None => IcrcPrefix::for_lrh(&self.lrh),
        };
        prefix.icrc(self.transport)
    }

    /// Whether the ICRC is right.
    pub fn icrc_ok(&self) -> bool {
        self.icrc == self.expected_icrc()
    }

    /// The VCRC this packet should have, with the ICRC that it has.
    pub fn expected_vcrc(&self) -> u16 {
        let (mut headers, grh_len) = ([0; Lrh::LEN + Grh::LEN], self.grh.map_or(0, |_| Grh::LEN));
        // The array has room for both headers.
        let mut w = Writer::new(&mut headers);
        let _ = self.emit_headers(&mut w);
        let headers = headers.get(..Lrh::LEN + grh_len).unwrap_or_default();
        let crc = vcrc::begin(headers);
        !vcrc::extend(vcrc::extend(crc, self.transport), &self.icrc.to_le_bytes())
    }

    /// Whether the VCRC is right.
    pub fn vcrc_ok(&self) -> bool {
        self.vcrc == self.expected_vcrc()
    }

    /// The same packet with the right CRCs.
    #[must_use]
    pub fn sealed(self) -> Self {
        let whole = Self { icrc: self.expected_icrc(), ..self };
        Self { vcrc: whole.expected_vcrc(), ..whole }
    }

    /// Writes the packet at the start of `out` and returns its length. The CRCs go out as they
    /// are, so a packet that was parsed comes out byte for byte.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let mut w = Writer::new(out);
        self.emit_headers(&mut w)?;
        w.bytes(self.transport)?;
        w.bytes(&self.icrc.to_le_bytes())?;
        w.bytes(&self.vcrc.to_le_bytes())?;
        w.bytes(self.trailer)?;
        Ok(w.written())
    }

    fn emit_headers(&self, w: &mut Writer<'_>) -> Result<(), Truncated> {
        w.array(|out| self.lrh.emit(out))?;
        match &self.grh {
            Some(grh) => w.array(|out| grh.emit(out)),
            None => Ok(()),
        }
    }
}

/// The GRH in front of the transport, whose length it must say.
fn parse_grh(bytes: &[u8]) -> Result<(Grh, &[u8]), IbFrameError> {
    let (grh, rest) = Grh::parse(bytes).map_err(|_| IbFrameError::BadLength)?;
    if grh.ip_version != 6 {
        return Err(IbFrameError::GrhVersion(grh.ip_version));
    }
    if grh.next_header != GRH_NEXT_HEADER {
        return Err(IbFrameError::NotTransport(grh.next_header));
    }
    if usize::from(grh.payload_len) != rest.len() {
        return Err(IbFrameError::BadLength);
    }
    Ok((grh, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lid;

    const TRANSPORT: [u8; 20] = [0x64; 20];

    fn frame(gids: Option<(Gid, Gid)>) -> IbFrame<'static> {
        let lrh = Lrh { dlid: Lid(7), slid: Lid(3), sl: 2, vl: 1, ..Lrh::default() };
        IbFrame::new(lrh, gids, &TRANSPORT).expect("short")
    }

    fn error(frame: &IbFrame<'_>, change: impl FnOnce(&mut IbFrame<'_>)) -> Option<IbFrameError> {
        let mut frame = *frame;
        change(&mut frame);
        let mut out = [0; 128];
        let len = frame.emit(&mut out).expect("fits");
        IbFrame::parse(&out[..len]).err()
    }

    #[test]
    fn switches_change_the_lane_and_the_vcrc_alone() {
        let frame = frame(None);
        assert_eq!((frame.lrh.words, frame.lrh.next), (8, LinkNext::Local));
        let forwarded = IbFrame { lrh: Lrh { vl: 4, ..frame.lrh }, ..frame };
        assert!(forwarded.icrc_ok() && !forwarded.vcrc_ok());
        assert_eq!(forwarded.sealed().icrc, frame.icrc);
        let moved = IbFrame { lrh: Lrh { dlid: Lid(8), ..frame.lrh }, ..frame };
        assert!(!moved.icrc_ok());
        let global = self::frame(Some((Gid([1; 16]), Gid([2; 16]))));
        let routed = IbFrame { lrh: Lrh { dlid: Lid(8), ..global.lrh }, ..global };
        assert!(routed.icrc_ok() && !routed.vcrc_ok());
    }

    #[test]
    fn errors_say_why() {
        let (local, global) = (frame(None), frame(Some((Gid::ZERO, Gid::ZERO))));
        let grh = |f: fn(&mut Grh)| {
            error(&global, |frame| {
                if let Some(grh) = &mut frame.grh {
                    f(grh);
                }
            })
        };
        assert_eq!((error(&local, |_| ()), grh(|_| ())), (None, None));
        let words = |n| error(&local, |frame| frame.lrh.words = n);
        assert_eq!(words(1), Some(IbFrameError::BadLength));
        assert_eq!(words(2), Some(IbFrameError::BadLength));
        assert_eq!(words(9), Some(IbFrameError::Truncated));
        let raw = error(&local, |frame| frame.lrh.next = LinkNext::Raw);
        assert_eq!(raw, Some(IbFrameError::Raw(LinkNext::Raw)));
        assert_eq!(grh(|grh| grh.ip_version = 4), Some(IbFrameError::GrhVersion(4)));
        assert_eq!(grh(|grh| grh.next_header = 17), Some(IbFrameError::NotTransport(17)));
        assert_eq!(grh(|grh| grh.payload_len -= 1), Some(IbFrameError::BadLength));
        let short = error(&local, |frame| frame.lrh.next = LinkNext::Global);
        assert_eq!(short, Some(IbFrameError::BadLength));
    }

    #[test]
    fn the_longest_packet_fits_and_one_more_word_does_not() {
        let bytes = [0; 8200];
        let new = |n: usize| IbFrame::new(Lrh::default(), None, &bytes[..n]).map(|_| ());
        assert_eq!((new(2047 * 4 - 12), new(2047 * 4 - 8)), (Ok(()), Err(TooLong)));
        assert_eq!(new(13), Err(TooLong), "not whole words");
    }
}
