//! Messages of the kernel's routing socket (rtnetlink): writing requests, reading answers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

/// The header of a message.
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;

/// A routing socket that does not block. It hears the announcements of `groups` (`RTMGRP_…`).
pub fn open(groups: u32) -> io::Result<OwnedFd> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkRoute,
    )?;
    bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(netlink)
}

/// Answers are cut to this; what is looked at is at their beginnings.
pub const BUFFER: usize = 16384;

/// The number in the requests of this module; announcements have zero.
const SEQUENCE: u32 = 1;

/// Asks the kernel, which answers before the call that sends returns. `take` picks from the answer
/// what is wanted; announcements that arrived before are passed over.
pub fn query<T>(
    netlink: &OwnedFd,
    kind: u16,
    body: &[u8],
    take: impl Fn(&Message<'_>) -> Option<T>,
) -> io::Result<T> {
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend(SEQUENCE.to_ne_bytes());
    request.extend([0; 4]);
    request.extend(body);
    send(netlink.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut buffer = [0; BUFFER];
    loop {
        let len = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let Some(answer) = messages(&buffer[..len]).find(|m| m.sequence == SEQUENCE) else {
            continue;
        };
        if answer.kind == NLMSG_ERROR {
            let code = u32_at(answer.body, 0).unwrap_or(0).cast_signed();
            return Err(io::Error::from_raw_os_error(code.saturating_neg()));
        }
        return take(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into());
    }
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its type, `RTM_…`.
    pub kind: u16,
    sequence: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

/// The messages in what was received; one that was cut is given as far as it goes.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let (kind, sequence) = (u16_at(bytes, 4)?, u32_at(bytes, 8)?);
        let body = bytes.get(HEADER..len.min(bytes.len()))?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, sequence, body })
    })
}

/// The contents of the first attribute of a type.
pub fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let contents = bytes.get(4..len)?;
        if kind == wanted {
            return Some(contents);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

/// Appends an attribute, whose length is a multiple of four.
pub fn attribute(body: &mut Vec<u8>, kind: u16, contents: &[u8]) {
    body.extend((4 + contents.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(contents);
}

/// The number at an offset.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_ne_bytes(*word))
}

/// The number at an offset.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}
