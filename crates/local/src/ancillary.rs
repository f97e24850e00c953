//! Messages of sockets, with the files and the user that come with them.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::{MsgFlags, UnixAddr, UnixCredentials, recvmsg};

/// Most files that the kernel lets come with one message.
const MAX_FILES: usize = 253;

/// Bytes in front of the data of a control message: its length, which counts them, its level and
/// its type.
const HEADER: usize = size_of::<usize>() + 8;

/// A message that was received.
#[derive(Debug)]
pub struct Ancillary {
    /// Bytes in the buffer.
    pub len: usize,
    /// The message was longer than the buffer.
    pub is_cut: bool,
    /// Files that came with it. If this process has too many, some are missing.
    pub files: Vec<OwnedFd>,
    /// The user that has sent it, if the socket tells that.
    pub user: Option<u32>,
}

impl Ancillary {
    /// Receives a message. Its files close when a program is executed.
    pub fn receive(
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> nix::Result<Self> {
        let mut data = [IoSliceMut::new(buffer)];
        let mut space = nix::cmsg_space!([RawFd; MAX_FILES], UnixCredentials);
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut data, Some(&mut space), flags)?;
        let (len, is_cut) = (received.bytes, received.flags.contains(MsgFlags::MSG_TRUNC));
        let mut message = Self { len, is_cut, files: Vec::new(), user: None };
        for (kind, data) in control_messages(&space) {
            let words = data.as_chunks().0.iter().map(|word| i32::from_ne_bytes(*word));
            match kind {
                libc::SCM_RIGHTS => {
                    // SAFETY: recvmsg(2) has just made this descriptor, which has no other owner.
                    let file = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
                    message.files.extend(words.map(file));
                }
                // The process, the user, the group.
                libc::SCM_CREDENTIALS => message.user = words.map(|id| id as u32).nth(1),
                _ => {}
            }
        }
        Ok(message)
    }
}

/// The control messages of sockets, by their types, at the beginning of what was zeros before.
/// `nix` has none for a message of which something is missing, and files that came would stay open.
fn control_messages(mut rest: &[u8]) -> impl Iterator<Item = (i32, &[u8])> {
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk()?;
        let (level, after) = after.split_first_chunk()?;
        let (kind, _) = after.split_first_chunk()?;
        let (len, level) = (usize::from_ne_bytes(*len), i32::from_ne_bytes(*level));
        let data = rest.get(HEADER..len)?;
        rest = rest.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some((level, i32::from_ne_bytes(*kind), data))
    })
    .filter(|(level, ..)| *level == libc::SOL_SOCKET)
    .map(|(_, kind, data)| (kind, data))
}
