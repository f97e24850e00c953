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
        // SAFETY: there is a place for the answer; a descriptor that is not open is an error.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the call succeeded, so it is filled in.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { dev: stat.st_dev, inode: stat.st_ino })
    }
}
