//! The sockets that stand for those of the kernel's RDMA subsystem.
//!
//! Such a socket is a netlink socket of the family `NETLINK_USERSOCK`. When the program sends on
//! it, the calling thread makes a second one, connects the program's socket to that, so that no
//! other process can send to it, and puts the answers into the program's receive queue. What does
//! not fit into the queue waits here until the program receives: the kernel does not write the rest
//! of a long answer before that, either.

use core::ffi::c_int;
use core::mem::{size_of, zeroed};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{gather, nldev};
use crate::errno::Errno;
use crate::memory;
use crate::verbs::identity::FileId;

/// The longest that a program may send at once, as a page of requests.
pub(super) const LONGEST: usize = 65536;

/// Descriptors that can be marked. A process with more open files gets no such socket.
const DESCRIPTORS: usize = 65536;

/// One bit for each descriptor that was given to the program for such a socket. It may have been
/// closed since, and be that of another file.
static MARKED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// A socket of the program.
struct Served {
    fd: c_int,
    file: FileId,
    /// Where answers come from while some of them wait.
    from: Option<OwnedFd>,
    waiting: VecDeque<Vec<u8>>,
}

static SERVED: Mutex<Vec<Served>> = Mutex::new(Vec::new());

fn served() -> MutexGuard<'static, Vec<Served>> {
    SERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a descriptor among the marks.
fn mark(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether a descriptor may be one of these sockets: a load for any other.
#[inline]
pub(super) fn is_marked(fd: c_int) -> bool {
    mark(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Takes over a socket that was made for the program; whether it can be served.
pub(super) fn adopt(fd: c_int) -> bool {
    let (Some((word, bit)), Ok(file)) = (mark(fd), FileId::of(fd)) else { return false };
    let mut served = served();
    // A socket that the program has closed had a descriptor that is free now, or is another file.
    served.retain(|old| old.fd != fd && FileId::of(old.fd).is_ok_and(|now| now == old.file));
    served.push(Served { fd, file, from: None, waiting: VecDeque::new() });
    word.fetch_or(bit, Ordering::Relaxed);
    true
}

/// Runs `work` with the socket behind a descriptor; `None` if it is not one of these.
fn with<R>(fd: c_int, work: impl FnOnce(&mut Served) -> R) -> Option<R> {
    let file = FileId::of(fd).ok();
    let mut served = served();
    let found = served.iter_mut().find(|socket| socket.fd == fd && Some(socket.file) == file);
    match found {
        Some(socket) => Some(work(socket)),
        None => {
            served.retain(|socket| socket.fd != fd);
            if let Some((word, bit)) = mark(fd) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
            None
        }
    }
}

/// Answers what the program sends; `None` if the descriptor is not one of these sockets.
pub(super) fn serve(fd: c_int, sent: &[u8]) -> Option<Result<(), Errno>> {
    let portid = with(fd, |socket| memory::admit().and_then(|()| socket.connect()))?;
    // Without the lock: this asks the adapters.
    Some(portid.map(|portid| {
        let answers = nldev::answer(sent, portid, gather::devices);
        with(fd, |socket| {
            socket.waiting.extend(answers);
            socket.fill(portid);
        });
    }))
}

/// Puts answers that wait into the receive queue; whether the descriptor is one of these sockets.
pub(super) fn refill(fd: c_int) -> bool {
    let refill = |socket: &mut Served| {
        if !socket.waiting.is_empty()
            && let Ok(portid) = address(fd)
        {
            socket.fill(portid);
        }
    };
    with(fd, refill).is_some()
}

impl Served {
    /// Makes the end that answers come from, if there is none; gives the address of the program's.
    fn connect(&mut self) -> Result<u32, Errno> {
        if self.from.is_none() {
            // SAFETY: socket(2) has no preconditions.
            let from = unsafe { libc::socket(libc::AF_NETLINK, KIND, libc::NETLINK_USERSOCK) };
            if from < 0 {
                return Err(Errno::last());
            }
            // SAFETY: socket(2) has just given this descriptor, and nothing else has it.
            let from = unsafe { OwnedFd::from_raw_fd(from) };
            name(from.as_raw_fd(), libc::bind, 0)?;
            // The program's end gets an address by this, if it has none.
            name(self.fd, libc::connect, address(from.as_raw_fd())?)?;
            self.from = Some(from);
        }
        address(self.fd)
    }

    /// Sends what waits, as far as there is room.
    fn fill(&mut self, portid: u32) {
        while let (Some(from), Some(next)) = (&self.from, self.waiting.front()) {
            let to = netlink(portid);
            // Not by the interposed function: the descriptor may be marked from an earlier use.
            // SAFETY: sendto(2) reads `next.len()` bytes of the message and the address, which are
            // there.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    from.as_raw_fd(),
                    next.as_ptr(),
                    next.len(),
                    libc::MSG_DONTWAIT,
                    &raw const to,
                    size_of::<libc::sockaddr_nl>(),
                )
            };
            let is_full =
                sent < 0 && matches!(Errno::last().0, libc::EAGAIN | libc::ENOBUFS | libc::EINTR);
            if is_full {
                return;
            }
            self.waiting.pop_front();
        }
        self.from = None;
    }
}

/// How both ends are made.
const KIND: c_int = libc::SOCK_RAW | libc::SOCK_CLOEXEC;

/// An address of netlink.
fn netlink(portid: u32) -> libc::sockaddr_nl {
    // SAFETY: the structure consists of integers, for which zero is a value.
    let mut address: libc::sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_pid = portid;
    address
}

/// bind(2) and connect(2).
type Naming = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;

/// Binds a socket to an address, or connects it.
fn name(fd: c_int, call: Naming, portid: u32) -> Result<(), Errno> {
    let address = netlink(portid);
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: both calls read the address, which has this length.
    match unsafe { call(fd, (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// The address of a socket.
fn address(fd: c_int) -> Result<u32, Errno> {
    let mut address = netlink(0);
    let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: getsockname(2) writes as many bytes to the address as `len` says, and their number.
    match unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) } {
        0 => Ok(address.nl_pid),
        _ => Err(Errno::last()),
    }
}
