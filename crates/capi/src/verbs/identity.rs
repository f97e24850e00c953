//! Files by what they are, whatever descriptor leads to them.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use crate::errno::Errno;

/// A file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    dev: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    /// The file that a descriptor leads to.
    pub(crate) fn of(fd: c_int) -> Result<Self, Errno> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat(2) writes one `stat`, to which the pointer leads, and refuses a descriptor
        // that is not open.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: fstat(2) succeeded, so it has filled in the structure.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { dev: stat.st_dev, inode: stat.st_ino })
    }
}
