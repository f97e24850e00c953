//! Fields one after the other.

use std::net::IpAddr;

/// What is left of a message.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let len = usize::from(self.short()?);
        String::from_utf8(self.slice(len)?.to_vec()).ok()
    }

    pub(crate) fn address(&mut self) -> Option<IpAddr> {
        match self.byte()? {
            4 => self.take::<4>().map(IpAddr::from),
            6 => self.take::<16>().map(IpAddr::from),
            _ => None,
        }
    }

    /// The value, if nothing is left.
    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Writes what [`Bytes::text`] reads. Text beyond 64 KiB is cut.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.extend((text.len() as u16).to_ne_bytes());
    out.extend(text);
}

/// Writes what [`Bytes::address`] reads.
pub(crate) fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
}
