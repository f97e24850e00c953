//! System calls that the crates in use here do not wrap.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use feroce_mem::Landing;
use nix::sys::stat::fstat;

/// Makes a descriptor refer to `/dev/null`, and so closes what it referred to. For descriptors that
/// a child of a fork shares with its parent, and that an object in the child still owns.
pub(crate) fn let_go(fd: BorrowedFd<'_>) -> io::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: both are open. The descriptor number stays open, and its owner closes it as before.
    let rc = unsafe { libc::dup3(nowhere.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Duplicates a descriptor of another process: both refer to the same open file.
pub(crate) fn descriptor_of(pid: u32, fd: u32) -> io::Result<OwnedFd> {
    // SAFETY: it takes two numbers, and returns a new descriptor or an error.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = owned(process)?;
    // SAFETY: as above; the descriptor of the process is open.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    owned(copy)
}

/// The descriptor that a system call returned, or its error.
fn owned(returned: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        // SAFETY: the kernel has just created it, and no other object owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A piece of the memory of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) at: u64,
    pub(crate) len: usize,
    /// Its place in a file of the process, if it is in one that peers may map.
    pub(crate) file: Option<FilePlace>,
}

/// The place of some memory in a file of its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FilePlace {
    /// The number of the descriptor in that process.
    pub(crate) fd: u32,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
}

impl FilePlace {
    /// The place `len` bytes further on.
    pub(crate) fn plus(self, len: usize) -> Self {
        Self { offset: self.offset.wrapping_add(len as u64), ..self }
    }
}

/// Identifies a file. No other file has the same id as long as any process has this one open or
/// mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileId {
    /// The device of its file system, and its inode number there, which is not zero.
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    /// The id of an open file.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Most pieces that one call reads.
const MAX_READ: usize = 16;

/// Copies pieces of the memory of a process, first to fill `landing`, then `rest`. False: they
/// could not all be read.
pub(crate) fn read_process(
    pid: u32,
    extents: &[Extent],
    landing: Option<&mut Landing<'_>>,
    rest: &mut [u8],
) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_READ];
    if extents.len() > MAX_READ {
        return false;
    }
    for (iov, extent) in remote.iter_mut().zip(extents) {
        let Ok(at) = usize::try_from(extent.at) else { return false };
        // An address in another process: this process never accesses memory through it.
        iov.iov_base = std::ptr::without_provenance_mut(at);
        iov.iov_len = extent.len;
    }
    let [head, tail] = landing.map_or([(std::ptr::null_mut(), 0); 2], Landing::pieces);
    let own = [head, tail, (rest.as_mut_ptr(), rest.len())];
    let local = own.map(|(at, len)| libc::iovec { iov_base: at.cast(), iov_len: len });
    let wanted: usize = own.iter().map(|(_, len)| len).sum();
    let (local_len, remote_len) = (local.len() as libc::c_ulong, extents.len() as libc::c_ulong);
    // SAFETY: the kernel writes to the local pieces only. The first two are those of the landing,
    // which is borrowed until the call returns and allows it; the third is `rest`. The kernel reads
    // memory of the other process, or the call fails.
    let read = unsafe {
        libc::process_vm_readv(pid, local.as_ptr(), local_len, remote.as_ptr(), remote_len, 0)
    };
    usize::try_from(read) == Ok(wanted)
}

/// Writes pieces of this process's memory to a file. `pieces` has the address and the length of
/// each; it is in shared memory, where a peer may change it until the kernel has read it. Returns
/// how many bytes the kernel has written.
pub(crate) fn write_pieces(file: &File, pieces: &[[AtomicU64; 2]], at: u64) -> Option<usize> {
    if size_of::<[AtomicU64; 2]>() != size_of::<libc::iovec>() {
        return None;
    }
    let (fd, count) = (file.as_raw_fd(), pieces.len());
    // Not the libc function, which is a cancellation point. The kernel takes the file offset in two
    // halves; on a 64-bit machine the first register holds all of it.
    // SAFETY: an `iovec` is an address and a length, each as long as the words here. Whatever they
    // say, the kernel only reads at these addresses, or fails.
    let written = unsafe { libc::syscall(libc::SYS_pwritev, fd, pieces.as_ptr(), count, at, 0) };
    usize::try_from(written).ok()
}

/// Fills a landing with the bytes of a file at `at`. False: the file does not have all of them.
pub(crate) fn read_into(file: &File, landing: &mut Landing<'_>, at: u64) -> bool {
    let Ok(at) = libc::off_t::try_from(at) else { return false };
    let wanted = landing.len();
    let pieces = landing.pieces();
    let local = pieces.map(|(at, len)| libc::iovec { iov_base: at.cast(), iov_len: len });
    // The kernel spends as much time on an empty piece as on any other.
    let local = if pieces[0].1 == 0 { &local[1..] } else { &local[..] };
    // SAFETY: the kernel writes to the pieces of the landing only, which is borrowed until the call
    // returns and allows it.
    let read = unsafe { libc::preadv(file.as_raw_fd(), local.as_ptr(), local.len() as i32, at) };
    usize::try_from(read) == Ok(wanted)
}

/// Lets every process of this user read the memory of this one, where Yama would only let its
/// ancestors. Without Yama, the call fails and is not needed.
pub(crate) fn let_all_read() {
    // SAFETY: this touches no memory.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
