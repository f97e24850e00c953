//! The directory in which processes find each other.
//!
//! It belongs to one user and one network namespace, and only that user may access it. Every user
//! may create files where it is, and take any name first. So its name decides nothing: a process
//! takes a directory that the kernel says is its user's, under whatever name ([`Directory::ours`]),
//! and where the usual name is taken, it creates one that cannot be predicted.
//!
//! Every file in it is opened relative to a descriptor of the directory, whose owner was checked,
//! and never through a link, so that no other user who can write to the directory above can
//! substitute a file. The descriptor is not kept: files are opened rarely, and a process may have
//! few.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, mkdir, mkdtemp, mkfifoat, symlinkat, unlinkat};

use super::layout::VERSION;

/// Only the owner may read and write.
const PRIVATE_FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Flags of every open.
const CAREFUL: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW);

/// A directory of this user.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Those of this user below `root` for this network namespace, in the order of their names.
    /// There is one, unless strangers take names and remove them while processes join.
    pub(super) fn ours(root: &Path) -> io::Result<Vec<Self>> {
        let namespace = network_namespace()?;
        Ok(own_directories(root, |name| parse(name) == Some((namespace, VERSION))))
    }

    /// Creates one for this network namespace.
    pub(super) fn create(root: &Path) -> io::Result<Self> {
        let name = format!("feroce-{}-{}-v{VERSION}", user(), network_namespace()?);
        create(root, &name).map(|path| Self { path })
    }

    /// Finds one below `root` for all network namespaces, or creates it: see [`own_directory`].
    pub(super) fn own(root: &Path, prefix: &str) -> io::Result<Self> {
        let name = format!("{prefix}-{}", user());
        let is_meant = |found: &str| {
            found.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut found = own_directories(root, is_meant).into_iter();
        found.next().map_or_else(|| create(root, &name).map(|path| Self { path }), Ok)
    }

    /// Whether it is another directory than `other`.
    pub(super) fn differs(&self, other: &Self) -> bool {
        self.path != other.path
    }

    /// The directories of this user in other namespaces, and those of other versions.
    pub(super) fn others(&self) -> Vec<Self> {
        let Some(root) = self.path.parent() else { return Vec::new() };
        let mut others = own_directories(root, |name| parse(name).is_some());
        others.retain(|directory| directory.differs(self));
        others
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

    /// Creates a symbolic link that is read, and never followed.
    pub(super) fn link(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(symlinkat(to, self.fd()?, name)?)
    }

    /// What a symbolic link says; `None` if the file is none.
    pub(super) fn linked(&self, name: &str) -> Option<String> {
        readlinkat(self.fd().ok()?, name).ok()?.into_string().ok()
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

/// Finds a directory below `root` that only this user can access, or creates it. Its name is
/// `prefix` and the number of the user, and something else behind that if another user has taken
/// that name.
pub fn own_directory(root: &Path, prefix: &str) -> io::Result<PathBuf> {
    Directory::own(root, prefix).map(|directory| directory.path)
}

/// Creates a directory with this name, or with a random suffix if the name is taken.
fn create(root: &Path, name: &str) -> io::Result<PathBuf> {
    let path = root.join(name);
    match mkdir(&path, Mode::S_IRWXU) {
        Ok(()) => Ok(path),
        Err(Errno::EEXIST) => {
            let template = root.join(format!("{name}.XXXXXX"));
            mkdtemp(&template).map_err(|e| at(&template, e.into()))
        }
        Err(e) => Err(at(&path, e.into())),
    }
}

/// The directories below `root` that this user alone can access and whose names are meant, in the
/// order of their names.
fn own_directories(root: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<Directory> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let meant = entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_meant));
    let all = meant.map(|entry| Directory { path: entry.path() });
    let mut own: Vec<_> = all.filter(|directory| directory.fd().is_ok()).collect();
    own.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    own
}

/// The network namespace and the version in the name of a directory. The user in the name is for
/// people: the owner is known by the kernel.
fn parse(name: &str) -> Option<(u64, u32)> {
    let (user, rest) = name.strip_prefix("feroce-")?.split_once('-')?;
    user.parse::<u32>().ok()?;
    let (namespace, rest) = rest.split_once("-v")?;
    let version = rest.split_once('.').map_or(rest, |(version, _)| version);
    Some((namespace.parse().ok()?, version.parse().ok()?))
}

/// The network namespace of this thread: its process may be in another one.
pub(super) fn network_namespace() -> io::Result<u64> {
    std::fs::metadata("/proc/thread-self/ns/net")
        .map(|found| found.ino())
        .map_err(|e| io::Error::other(format!("the network namespace is not known: {e}")))
}

/// The user as the namespace around ours knows it. In a user namespace (`unshare -r`) every user
/// can be number 0; under that name it would be in the way of root.
fn user() -> u32 {
    let inside = geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outside = map.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u32>().ok());
        let (from, to, count) = (fields.next()??, fields.next()??, fields.next()??);
        let offset = inside.checked_sub(from).filter(|&offset| offset < count)?;
        to.checked_add(offset)
    });
    outside.unwrap_or(inside)
}

fn at(path: &Path, e: io::Error) -> io::Error {
    let text = format!("{}: {e}", path.display());
    feroce_link::annotate(e, text)
}
