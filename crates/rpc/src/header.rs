//! The header of every message. A SEND carries one message, or several, one behind the other.
//!
//! ```text
//!  0  version   1  kind   2  flags   3  status, or priority   4  method (4)
//!  8  id (8)
//! 16  remaining microseconds until the deadline, 0 for none (4)
//! 20  length of the body (4)
//! 24  address of the body (8)     32  its key (4)
//! 36  length of the reply buffer (4)
//! 40  address of the reply buffer (8)  48  its key (4)  52  zero (4)
//! ```
//!
//! Numbers are big-endian. The last 32 bytes are there only if the message is long: if its body
//! is elsewhere, or if it offers a buffer for the reply.

use feroce::{Remote, Rkey};

use crate::error::{Malformed, Status};

/// Length of a header without places of other memory.
pub const SHORT: usize = 24;
/// Length of a header with them.
pub const LONG: usize = 56;

/// The version of the protocol.
pub const VERSION: u8 = 1;

const REMOTE_BODY: u8 = 1;
const REPLY_BUFFER: u8 = 2;
const WRITTEN: u8 = 4;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Asks for a reply.
    Request,
    /// Answers a request; there is exactly one for each.
    Reply,
    /// The caller does not want the reply any more.
    Cancel,
    /// Answers a cancellation; there is exactly one for each.
    Cancelled,
}

/// Where the body of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Behind the header.
    Here,
    /// In memory of the sender, where the receiver reads it.
    Remote(Remote),
    /// In the buffer that the request offered, where the sender has written it.
    Written,
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// How the call went, in a reply.
    pub status: Status,
    /// Which of the calls that wait is to begin first, in a request: that with the greatest.
    pub priority: u8,
    /// What to do, in a request.
    pub method: u32,
    /// Which call.
    pub id: u64,
    /// Microseconds until the deadline, in a request that has one.
    pub remaining_us: Option<u32>,
    /// Length of the body in bytes.
    pub len: u32,
    /// Where the body is.
    pub place: Place,
    /// Where a long reply may be written to, and how long it may be.
    pub reply_buffer: Option<(Remote, u32)>,
}

impl Header {
    /// A header without a body.
    pub fn new(kind: Kind, id: u64) -> Self {
        let (status, place) = (Status::Ok, Place::Here);
        let (remaining_us, reply_buffer) = (None, None);
        Self { kind, status, priority: 0, method: 0, id, remaining_us, len: 0, place, reply_buffer }
    }

    fn is_long(&self) -> bool {
        matches!(self.place, Place::Remote(_)) || self.reply_buffer.is_some()
    }

    /// Its length in bytes.
    pub fn header_len(&self) -> usize {
        if self.is_long() { LONG } else { SHORT }
    }

    /// Writes it to the beginning of `out`, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Header::header_len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.header_len();
        let mut flags = 0;
        let (mut body, mut buffer) = (Remote::default(), (Remote::default(), 0));
        match self.place {
            Place::Here => {}
            Place::Remote(remote) => (flags, body) = (flags | REMOTE_BODY, remote),
            Place::Written => flags |= WRITTEN,
        }
        if let Some(offered) = self.reply_buffer {
            (flags, buffer) = (flags | REPLY_BUFFER, offered);
        }
        let kind = match self.kind {
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::Cancel => 3,
            Kind::Cancelled => 4,
        };
        let fourth = if self.kind == Kind::Request { self.priority } else { self.status.code() };
        out[..4].copy_from_slice(&[VERSION, kind, flags, fourth]);
        out[4..8].copy_from_slice(&self.method.to_be_bytes());
        out[8..16].copy_from_slice(&self.id.to_be_bytes());
        out[16..20].copy_from_slice(&self.remaining_us.unwrap_or(0).to_be_bytes());
        out[20..24].copy_from_slice(&self.len.to_be_bytes());
        if self.is_long() {
            out[24..32].copy_from_slice(&body.addr.to_be_bytes());
            out[32..36].copy_from_slice(&body.rkey.0.to_be_bytes());
            out[36..40].copy_from_slice(&buffer.1.to_be_bytes());
            out[40..48].copy_from_slice(&buffer.0.addr.to_be_bytes());
            out[48..52].copy_from_slice(&buffer.0.rkey.0.to_be_bytes());
            out[52..56].fill(0);
        }
        len
    }

    /// Reads the header of the first message, and returns it with its body, if that is
    /// [here](Place::Here), and the messages behind it.
    pub fn parse(messages: &[u8]) -> Result<(Self, &[u8], &[u8]), Malformed> {
        let (head, rest) = messages.split_first_chunk::<SHORT>().ok_or(Malformed::Short)?;
        if head[0] != VERSION {
            return Err(Malformed::Version(head[0]));
        }
        let kind = match head[1] {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Cancel,
            4 => Kind::Cancelled,
            other => return Err(Malformed::Kind(other)),
        };
        let flags = head[2];
        let mut header = Self::new(kind, u64_at(head, 8));
        match kind {
            Kind::Request => header.priority = head[3],
            _ => header.status = Status::from_code(head[3]),
        }
        header.method = u32_at(head, 4);
        header.remaining_us = Some(u32_at(head, 16)).filter(|&us| us != 0);
        header.len = u32_at(head, 20);
        let mut rest = rest;
        if flags & (REMOTE_BODY | REPLY_BUFFER) != 0 {
            let (tail, behind) =
                rest.split_first_chunk::<{ LONG - SHORT }>().ok_or(Malformed::Short)?;
            rest = behind;
            let remote = |at| Remote { addr: u64_at(tail, at), rkey: Rkey(u32_at(tail, at + 8)) };
            if flags & REMOTE_BODY != 0 {
                header.place = Place::Remote(remote(0));
            }
            if flags & REPLY_BUFFER != 0 {
                header.reply_buffer = Some((remote(16), u32_at(tail, 12)));
            }
        }
        if flags & WRITTEN != 0 {
            header.place = Place::Written;
        }
        header.check(flags)?;
        let here = if header.place == Place::Here { header.len as usize } else { 0 };
        let missing = Malformed::Length { told: header.len, behind: rest.len() };
        let (body, rest) = rest.split_at_checked(here).ok_or(missing)?;
        Ok((header, body, rest))
    }

    /// Checks that the message has only what its kind may have.
    fn check(&self, flags: u8) -> Result<(), Malformed> {
        let allowed = match self.kind {
            Kind::Request => REMOTE_BODY | REPLY_BUFFER,
            Kind::Reply => WRITTEN,
            Kind::Cancel | Kind::Cancelled => 0,
        };
        let has_body = matches!(self.kind, Kind::Request | Kind::Reply);
        if flags & !allowed != 0 || (!has_body && self.len != 0) {
            return Err(Malformed::Flags(flags));
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let remote = |n: u32| Remote { addr: u64::from(n) << 33, rkey: Rkey(n) };
        let plain = Header { method: 7, len: 3, ..Header::new(Kind::Request, 1 << 40) };
        let all = [
            plain,
            Header { remaining_us: Some(9), priority: 200, ..plain },
            Header { place: Place::Remote(remote(5)), len: 1 << 20, ..plain },
            Header { reply_buffer: Some((remote(6), 1 << 21)), ..plain },
            Header {
                place: Place::Written,
                status: Status::Handler(77),
                ..Header::new(Kind::Reply, 3)
            },
            Header::new(Kind::Cancel, 4),
            Header::new(Kind::Cancelled, 4),
        ];
        for header in all {
            let mut bytes = vec![0xaa; LONG + 3];
            let end = header.emit(&mut bytes);
            let here = if header.place == Place::Here { header.len as usize } else { 0 };
            bytes.truncate(end + here);
            let (parsed, body, rest) = Header::parse(&bytes).unwrap();
            assert_eq!((parsed, body.len(), rest.len()), (header, here, 0));
            assert!((0..bytes.len()).all(|len| Header::parse(&bytes[..len]).is_err()));
            bytes.push(9);
            let (parsed, body, rest) = Header::parse(&bytes).unwrap();
            assert_eq!((parsed, body.len(), rest), (header, here, &[9][..]));
        }
    }

    #[test]
    fn what_a_kind_may_not_have_is_refused() {
        let mut bytes = [0; SHORT];
        Header::new(Kind::Cancel, 1).emit(&mut bytes);
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Header::parse(&bytes).map(drop)
        };
        assert_eq!(with(0, 2), Err(Malformed::Version(2)));
        assert_eq!(with(1, 9), Err(Malformed::Kind(9)));
        assert_eq!(with(2, WRITTEN), Err(Malformed::Flags(WRITTEN)));
        assert!(with(23, 1).is_err());
    }
}
