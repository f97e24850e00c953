//! Netlink messages: reading requests, writing answers.
//!
//! Integers are in the byte order of the machine. Nothing here trusts a length: a message or an
//! attribute that claims to be longer than what there is ends the reading.

/// The header of a message, and of the attributes in it.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Types of messages that belong to netlink itself.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Types below this one are netlink's own.
const NLMSG_MIN_TYPE: u16 = 16;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_MULTI: u16 = 0x2;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
/// In an acknowledgement: only the header of the request follows.
const NLM_F_CAPPED: u16 = 0x100;

/// In the type of an attribute: others are inside, and integers are big-endian.
const NLA_F_NESTED: u16 = 0x8000;
const NLA_F_NET_BYTEORDER: u16 = 0x4000;

/// Everything is padded to words.
fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_ne_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    seq: u32,
    /// The header as it came, for the acknowledgement.
    header: &'a [u8],
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// The first attribute of a type that holds a number.
    pub(crate) fn number(&self, kind: u16) -> Option<u32> {
        let found = Attributes(self.attributes).find(|(found, _)| *found == kind)?;
        u32_at(found.1, 0)
    }

    /// Whether it asks for all objects of a kind, not for one.
    pub(crate) fn is_dump(&self) -> bool {
        self.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    /// Whether it is one that is to be carried out.
    pub(crate) fn is_request(&self) -> bool {
        self.flags & NLM_F_REQUEST != 0 && self.kind >= NLMSG_MIN_TYPE
    }
}

/// The requests that a program sent together.
#[derive(Debug)]
pub(crate) struct Requests<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Requests<'a> {
    type Item = Request<'a>;

    fn next(&mut self) -> Option<Request<'a>> {
        let bytes = self.0;
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let header = bytes.get(..HEADER)?;
        let attributes = bytes.get(HEADER..len)?;
        self.0 = bytes.get(padded(len)..).unwrap_or_default();
        Some(Request {
            kind: u16_at(header, 4)?,
            flags: u16_at(header, 6)?,
            seq: u32_at(header, 8)?,
            header,
            attributes,
        })
    }
}

/// Attributes, as their types and contents.
#[derive(Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.0;
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & !(NLA_F_NESTED | NLA_F_NET_BYTEORDER);
        let contents = bytes.get(ATTRIBUTE..len)?;
        self.0 = bytes.get(padded(len)..).unwrap_or_default();
        Some((kind, contents))
    }
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// One of `kind` to the socket with this address, `portid`.
    fn new(request: &Request<'_>, portid: u32, kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(request.seq.to_ne_bytes());
        bytes.extend(portid.to_ne_bytes());
        Self(bytes)
    }

    /// The answer to a request, or a part of it.
    pub(crate) fn answer(request: &Request<'_>, portid: u32, kind: u16) -> Self {
        let flags = if request.is_dump() { NLM_F_MULTI } else { 0 };
        Self::new(request, portid, kind, flags)
    }

    /// What ends an answer of many parts.
    pub(crate) fn done(request: &Request<'_>, portid: u32) -> Vec<u8> {
        let mut done = Self::new(request, portid, NLMSG_DONE, NLM_F_MULTI);
        done.0.extend(0_i32.to_ne_bytes());
        done.finish()
    }

    /// Says how a request went: zero, or a negative error number.
    pub(crate) fn outcome(request: &Request<'_>, portid: u32, status: i32) -> Vec<u8> {
        let mut outcome = Self::new(request, portid, NLMSG_ERROR, NLM_F_CAPPED);
        outcome.0.extend(status.to_ne_bytes());
        outcome.0.extend(request.header);
        outcome.finish()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&mut self, kind: u16, contents: &[u8]) {
        // No attribute here is near the limit: names and addresses.
        let len = u16::try_from(ATTRIBUTE + contents.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(contents.iter().take(usize::from(len) - ATTRIBUTE));
        self.0.resize(padded(self.0.len()), 0);
    }

    pub(crate) fn u8(&mut self, kind: u16, number: u8) {
        self.bytes(kind, &[number]);
    }

    pub(crate) fn u32(&mut self, kind: u16, number: u32) {
        self.bytes(kind, &number.to_ne_bytes());
    }

    /// Several attributes, each with its number.
    pub(crate) fn u32s<const N: usize>(&mut self, attributes: [(u16, u32); N]) {
        attributes.into_iter().for_each(|(kind, number)| self.u32(kind, number));
    }

    pub(crate) fn u64(&mut self, kind: u16, number: u64) {
        self.bytes(kind, &number.to_ne_bytes());
    }

    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// An attribute with others inside.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.bytes(kind, &[]);
        inside(self);
        let len = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// The message, with its length.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}
