//! Where the registry of this user is, and which of several is the one.

use std::fs::File;
use std::io;
use std::path::Path;

use super::REGISTRY;
use super::names::{FIRST_SLOT, SETUP};
use crate::directory::Directory;
use crate::layout::SLOTS;
use crate::lock;

/// The directory of a registry with living processes, or one without, or a new one.
pub(super) fn find_or_create(root: &Path) -> io::Result<Directory> {
    let mut ours = Directory::ours(root)?;
    let lives = |directory: &Directory| {
        directory.file(REGISTRY, false).and_then(|file| has_slots(&file)).unwrap_or(false)
    };
    let at = ours.iter().position(lives).unwrap_or(0);
    if ours.is_empty() { Directory::create(root) } else { Ok(ours.swap_remove(at)) }
}

/// Whether processes live in another registry than this one, in which none does yet and whose setup
/// the caller has locked. This happens if a stranger takes the name of the directory or gives it
/// back between the looks of two processes. Both look here once more, each with its own setup
/// locked: so the later one sees the registry of the earlier one, or both see that the other is
/// joining and try again.
pub(super) fn is_beside_others(
    root: &Path,
    directory: &Directory,
    file: &File,
) -> io::Result<bool> {
    for other in Directory::ours(root)?.iter().filter(|other| other.differs(directory)) {
        let Ok(theirs) = other.file(REGISTRY, false) else { continue };
        if lock::is_held(&theirs, SETUP, 1)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if has_slots(&theirs)? && !has_slots(file)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether living processes have slots of a registry.
fn has_slots(file: &File) -> io::Result<bool> {
    lock::is_held(file, FIRST_SLOT, SLOTS as i64)
}

/// Removes a registry without living processes. If it belongs to another network namespace,
/// possibly no process enters that namespace again that would remove it.
pub(super) fn remove_if_dead(directory: &Directory) {
    let Ok(file) = directory.file(REGISTRY, false) else { return };
    if lock::try_hold(&file, SETUP).unwrap_or(false) && !has_slots(&file).unwrap_or(true) {
        directory.remove_all(|_| true);
        directory.remove_self();
    }
}
