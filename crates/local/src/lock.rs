//! Locks on bytes of a file.
//!
//! These locks belong to an open file description, not to a process: the kernel releases them when
//! the last descriptor of it is closed, however its process ended. A stopped process keeps them.
//! They do not depend on process ids, which the kernel reuses. The locked bytes need not exist, so
//! that a lock can stand for any number.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Locks `byte`, unless another open file has locked it. Locking it again succeeds.
pub(super) fn try_hold(file: &File, byte: i64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, byte, 1))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Unlocks `byte`.
pub(super) fn release(file: &File, byte: i64) {
    // Fails only for invalid descriptors.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, byte, 1)));
}

/// Unlocks every byte.
pub(super) fn release_all(file: &File) {
    // As above; a length of zero means all bytes to the end.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, 0, 0)));
}

/// Whether another open file has locked one of `count` bytes from `first` on.
pub(super) fn is_held(file: &File, first: i64, count: i64) -> io::Result<bool> {
    let mut asked = range(libc::F_WRLCK, first, count);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked))?;
    Ok(i32::from(asked.l_type) != libc::F_UNLCK)
}

fn range(kind: i32, first: i64, count: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: first,
        l_len: count,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_holds_against_others_and_lets_go_when_it_is_closed() {
        let path = std::env::temp_dir().join(format!("feroce-lock-{}", std::process::id()));
        let open = || {
            File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap()
        };
        let (a, b) = (open(), open());
        assert!(try_hold(&a, 7).unwrap());
        assert!(try_hold(&a, 7).unwrap(), "again");
        assert!(!try_hold(&b, 7).unwrap());
        assert!(try_hold(&b, i64::MAX - 1).unwrap(), "beyond the end of the file");
        assert!(is_held(&b, 0, 8).unwrap());
        assert!(!is_held(&b, 0, 7).unwrap());
        assert!(!is_held(&a, 0, 8).unwrap(), "not by another open file");
        release(&a, 7);
        assert!(try_hold(&b, 7).unwrap());
        drop(b);
        assert!(try_hold(&a, 7).unwrap());
        release_all(&a);
        assert!(!is_held(&open(), 0, 8).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
