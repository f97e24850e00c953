//! Bytes of a file that somebody holds.
//!
//! These locks belong to an open file, not to a process: the kernel lets go of them when the last
//! descriptor of it is closed, however its process ended. A stopped process keeps them. No number
//! of a process is involved that could be somebody else's tomorrow. The bytes need not exist, so
//! that anything with a number can be held.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Holds `byte`, if nobody else does. Who holds it already gets it again.
pub(super) fn try_hold(file: &File, byte: i64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, byte, 1))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Lets go of `byte`.
pub(super) fn release(file: &File, byte: i64) {
    // Fails only for descriptors that are none.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, byte, 1)));
}

/// Lets go of every byte.
pub(super) fn release_all(file: &File) {
    // As above; a length of zero stands for all the rest.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, 0, 0)));
}

/// Whether somebody else holds one of `count` bytes from `first` on.
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
        assert!(!is_held(&a, 0, 8).unwrap(), "not by somebody else");
        release(&a, 7);
        assert!(try_hold(&b, 7).unwrap());
        drop(b);
        assert!(try_hold(&a, 7).unwrap());
        release_all(&a);
        assert!(!is_held(&open(), 0, 8).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
