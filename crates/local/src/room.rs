//! Whether files may grow, asked before they do.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

/// Whether the process may have files of this length. If it may not, the kernel would end it with
/// `SIGXFSZ` as soon as a file becomes longer.
pub(crate) fn may_have(len: usize) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if len as u64 > limit {
        let text = format!(
            "files of {} KiB are not allowed: raise the limit of {} KiB (`ulimit -f`)",
            len >> 10,
            limit >> 10
        );
        return Err(feroce_link::annotate(Errno::EFBIG.into(), text));
    }
    Ok(())
}

/// Whether a file system has room for `len` bytes more.
pub(crate) fn has_room(root: &Path, len: usize) -> io::Result<()> {
    let found = statvfs(root)?;
    let free = found.blocks_available() as u64 * found.fragment_size() as u64;
    // A file system without a limit has no blocks at all.
    if found.blocks() != 0 && free < len as u64 {
        let text = format!(
            "{} has {} KiB free, and {} KiB are needed: make it larger",
            root.display(),
            free >> 10,
            len >> 10
        );
        return Err(feroce_link::annotate(Errno::ENOSPC.into(), text));
    }
    Ok(())
}
