//! The directory in which processes find each other.
//!
//! Its name contains the user and the network namespace, and only that user may access it. Every
//! file in it is opened relative to a descriptor of the directory, whose owner was checked, and
//! never through a link, so that no other user who can write to the directory above can substitute
//! a file. The descriptor is not kept: files are opened rarely, and a process may have few.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, mkdir, mkfifoat, unlinkat};

use super::layout::VERSION;

/// Only the owner may read and write.
const PRIVATE_FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Flags of every open.
const CAREFUL: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW);

/// The directory of this user in this network namespace.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Opens it below `root`, and creates it if it does not exist.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        // The namespace of this thread: its process may be in another one.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")
            .map_err(|e| io::Error::other(format!("the network namespace is not known: {e}")))?
            .ino();
        let path = root.join(format!("feroce-{}-{namespace}-v{VERSION}", geteuid()));
        match mkdir(&path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(at(&path, e.into())),
        }
        let directory = Self { path };
        directory.fd()?;
        Ok(directory)
    }

    /// The directories of this user in other namespaces, and those of other versions.
    pub(super) fn others(&self) -> Vec<Self> {
        let is_meant = |name: &str| {
            let rest = name.strip_prefix(&format!("feroce-{}-", geteuid()))?;
            let (namespace, version) = rest.split_once("-v")?;
            Some(namespace.parse::<u64>().is_ok() && version.parse::<u32>().is_ok())
        };
        let beside = self.path.parent().map(std::fs::read_dir);
        let entries = beside.into_iter().flatten().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            *path != self.path && name.and_then(is_meant) == Some(true)
        });
        paths.map(|path| Self { path }).filter(|directory| directory.fd().is_ok()).collect()
    }

    /// A descriptor of the directory, which is this user's alone.
    fn fd(&self) -> io::Result<OwnedFd> {
        self.open_if(|mode| mode & 0o077 == 0)
    }

    /// A descriptor of the directory, if this user owns it and its mode is `good`.
    fn open_if(&self, good: impl FnOnce(u32) -> bool) -> io::Result<OwnedFd> {
        let fd = open(&self.path, OFlag::O_DIRECTORY | CAREFUL, Mode::empty())
            .map_err(|e| at(&self.path, e.into()))?;
        let stat = fstat(&fd)?;
        if stat.st_uid != geteuid().as_raw() || !good(stat.st_mode) {
            let why = io::Error::new(io::ErrorKind::PermissionDenied, "not for this user alone");
            return Err(at(&self.path, why));
        }
        Ok(fd)
    }

    /// Opens a file; with `create`, creates it if it does not exist.
    pub(super) fn file(&self, name: &str, create: bool) -> io::Result<File> {
        let create = if create { OFlag::O_CREAT } else { OFlag::empty() };
        Ok(openat(self.fd()?, name, OFlag::O_RDWR | CAREFUL | create, PRIVATE_FILE)?.into())
    }

    /// Creates a file that must not exist.
    pub(super) fn new_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | CAREFUL;
        Ok(openat(self.fd()?, name, flags, PRIVATE_FILE)?.into())
    }

    /// Creates a named pipe in place of any file with that name, and opens both its ends.
    pub(super) fn new_pipe(&self, name: &str) -> io::Result<OwnedFd> {
        self.remove(name);
        mkfifoat(self.fd()?, name, PRIVATE_FILE)?;
        self.pipe(name, OFlag::O_RDWR)
    }

    /// Opens a named pipe, or one end of it.
    pub(super) fn pipe(&self, name: &str, ends: OFlag) -> io::Result<OwnedFd> {
        Ok(openat(self.fd()?, name, ends | OFlag::O_NONBLOCK | CAREFUL, Mode::empty())?)
    }

    /// The names of all files.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, name: &str) {
        // Also if other users may write to the directory by now.
        let Ok(fd) = self.open_if(|_| true) else { return };
        let _ = unlinkat(fd, name, UnlinkatFlags::NoRemoveDir);
    }

    /// Removes every file whose name satisfies `is_meant`.
    pub(super) fn remove_all(&self, is_meant: impl Fn(&str) -> bool) {
        for name in self.names().iter().filter(|name| is_meant(name)) {
            self.remove(name);
        }
    }

    /// Removes the directory itself, if it is empty.
    pub(super) fn remove_self(&self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn at(path: &Path, e: io::Error) -> io::Error {
    let text = format!("{}: {e}", path.display());
    feroce_link::annotate(e, text)
}
