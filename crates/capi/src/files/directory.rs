//! The directory that holds the files.
//!
//! Its name is a hash of its contents, so that all processes of a user that see the same devices
//! share one directory, and no process changes one. Every process that uses it holds a shared lock
//! on it, and the last one to exit removes it. If a process is killed, or two exit at the same
//! time, the directory may stay; the next process that starts removes directories without a lock.
//!
//! A process that has locked a directory checks that the name still leads to it. If another process
//! removed it in between, it starts again.

use core::hash::{Hash, Hasher};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::fs::{self, File};
use std::hash::DefaultHasher;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

use feroce::{Device, runtime_dir};

use super::contents::{Entry, Tree};
use crate::umad;

/// How many times to begin again. Each time another process was faster, so once is rare.
const ATTEMPTS: usize = 16;

/// A directory that this process uses.
struct Directory {
    path: PathBuf,
    /// Open and locked for as long as it is used.
    lock: File,
    /// Who locked it. A child shares the lock of its parent, and has to take one of its own.
    owner: u32,
}

/// The directory of this process. Never freed once it is here: signal handlers may be using it.
static CURRENT: AtomicPtr<Directory> = AtomicPtr::new(ptr::null_mut());

/// The root of the tree of files, made by the first call. `None` if no directory can be made.
pub(super) fn root() -> Option<&'static Path> {
    current().map(|directory| directory.path.as_path())
}

fn current() -> Option<&'static Directory> {
    let found = CURRENT.load(Ordering::Acquire);
    // SAFETY: `found` is NULL, or a directory that was leaked below and is never freed.
    if let Some(directory) = unsafe { found.as_ref() }
        && directory.owner == process::id()
    {
        return Some(directory);
    }
    let made = Box::into_raw(Box::new(make().ok()?));
    // Without a lock: a forked child could inherit it locked by a thread that does not exist there.
    match CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `made` was leaked above, and is never freed once it is current.
        Ok(_) => unsafe { made.as_ref() },
        Err(other) => {
            // SAFETY: `made` came from `Box::into_raw`, and the exchange failed, so no other thread
            // has the pointer.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: `other` was leaked by the thread that won the exchange, and is never freed.
            unsafe { other.as_ref() }
        }
    }
}

/// Takes or makes the directory for the devices there are now.
fn make() -> io::Result<Directory> {
    let tree = match umad::host() {
        Some(host) => Tree::of_adapter(&umad::adapter_name(), &host.describe()?),
        None => Device::list().and_then(|all| Tree::of(&all)).map_err(io::Error::other)?,
    };
    let base = runtime_dir()?;
    remove_dead(&base);
    let mut hasher = DefaultHasher::new();
    tree.0.hash(&mut hasher);
    let path = base.join(format!("sys-{:016x}", hasher.finish()));
    for _ in 0..ATTEMPTS {
        if let Some(lock) = take(&path)? {
            return Ok(Directory { path, lock, owner: process::id() });
        }
        build(&base, &path, &tree)?;
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Locks an existing directory; `None` if it does not exist, or was removed meanwhile.
fn take(path: &Path) -> io::Result<Option<File>> {
    let directory = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    directory.lock_shared()?;
    Ok(is_at(&directory, path).then_some(directory))
}

/// Whether an open directory is still the one at a path.
fn is_at(directory: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (directory.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

/// Makes a directory whole under another name, and then gives it its own.
fn build(base: &Path, path: &Path, tree: &Tree) -> io::Result<()> {
    let (draft, lock) = draft(base)?;
    let outcome = fill(&draft, path, tree).and_then(|()| fs::rename(&draft, path));
    drop(lock);
    match outcome {
        Ok(()) => Ok(()),
        // Another process has made the same directory. If the reason is another, the next attempt
        // fails.
        Err(e) => match fs::remove_dir_all(&draft) {
            _ if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty) => Ok(()),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
            _ => Err(e),
        },
    }
}

/// An empty directory that others leave alone while we fill it.
fn draft(base: &Path) -> io::Result<(PathBuf, File)> {
    for n in 0.. {
        let path = base.join(format!("new-{}-{n}", process::id()));
        match fs::create_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            // A process that starts removes the directory if it finds it before it is locked. Then
            // this one makes another.
            Ok(()) => {
                if let Some(lock) = take(&path)? {
                    return Ok((path, lock));
                }
            }
        }
    }
    unreachable!("numbers do not run out")
}

/// Makes the files in `draft`, which will be called `root`.
fn fill(draft: &Path, root: &Path, tree: &Tree) -> io::Result<()> {
    for (path, entry) in &tree.0 {
        let path = draft.join(path);
        fs::create_dir_all(path.parent().unwrap_or(draft))?;
        match entry {
            Entry::Text(text) => fs::write(path, text)?,
            Entry::Link(to) => symlink(to, path)?,
            Entry::Inner(to) => symlink(root.join(to), path)?,
        }
    }
    Ok(())
}

/// Removes what processes left behind that are gone.
fn remove_dead(base: &Path) {
    let is_ours = |name: &str| ["sys-", "new-", "old-"].iter().any(|begin| name.starts_with(begin));
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_ours)
            && let Ok(directory) = File::open(entry.path())
        {
            remove_unused(&directory, &entry.path());
        }
    }
}

/// Removes a directory unless another process has it locked. `directory` was opened by the caller,
/// and is no file that a child of this process has, too: it would keep the lock.
fn remove_unused(directory: &File, path: &Path) {
    if directory.try_lock().is_err() || !is_at(directory, path) {
        return;
    }
    // Renamed first, so that no process finds it half removed.
    let name = format!("old-{}-{}", process::id(), directory.metadata().map_or(0, |m| m.ino()));
    let dead = path.with_file_name(name);
    if fs::rename(path, &dead).is_ok() {
        // If this fails, the next process removes the rest.
        let _ = fs::remove_dir_all(&dead);
    }
}

/// Gives the directory up when the process exits.
pub(crate) fn leave() {
    // SAFETY: the pointer is NULL, or a directory that `current` leaked and that is never freed.
    let Some(directory) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    // A child that never asked for it has only borrowed the parent's lock.
    if directory.owner == process::id() {
        directory.give_up();
    }
}

impl Directory {
    /// Removes the directory unless other processes use it.
    fn give_up(&self) {
        // Not with this file, which children have as well: as long as one runs, the directory would
        // stay locked, and the child that opens it now to lock it would wait for itself.
        let _ = self.lock.unlock();
        if let Ok(again) = File::open(&self.path) {
            remove_unused(&again, &self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_can_lock_what_its_parent_gives_up() {
        let name = format!("feroce-directory-{}", process::id());
        let path = std::env::temp_dir().join(name).join("sys-0");
        fs::create_dir_all(&path).expect("a directory");
        let lock = take(&path).expect("it opens").expect("it is there");
        // A child has the files of its parent, and opens the directory before that removes it.
        let inherited = lock.try_clone().expect("a descriptor");
        let opened = File::open(&path).expect("it is there");
        let parent = Directory { path, lock, owner: process::id() };
        parent.give_up();
        assert!(!parent.path.exists());
        opened.try_lock_shared().expect("the parent keeps no lock in the child's files");
        drop(inherited);
        fs::remove_dir(parent.path.with_file_name("")).expect("it is empty");
    }
}
