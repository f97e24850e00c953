//! A directory with links to the library under the names that programs load.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context as _;

/// The names: those that programs are linked with, and those that some programs load at run time.
const NAMES: [&str; 6] = [
    "libibumad.so",
    "libibumad.so.3",
    "libibverbs.so",
    "libibverbs.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
];

/// The name to preload. It is also the library's own name (SONAME).
pub(super) const PRELOAD: &str = "libibverbs.so.1";

/// Returns the directory to load `library` from: the directory of the library itself if that has
/// links of all [`NAMES`], or else one that this function makes in the user's runtime directory.
/// The name of the latter contains the version and a hash of the library's path, so that a link in
/// it never has to change while a running program uses it.
pub(super) fn directory(library: &Path) -> anyhow::Result<PathBuf> {
    if let Some(folder) = library.parent().filter(|folder| is_complete(folder, library)) {
        return Ok(folder.to_owned());
    }
    let base = feroce::runtime_dir().context("there is no place for links to the library")?;
    let folder = base.join(format!("lib-{}-{:016x}", env!("CARGO_PKG_VERSION"), hash(library)));
    make(&folder, library)
        .with_context(|| format!("cannot make links to the library in {}", folder.display()))?;
    Ok(folder)
}

fn is_complete(folder: &Path, library: &Path) -> bool {
    // The dynamic linker treats these characters as separators of paths.
    if folder.as_os_str().as_encoded_bytes().iter().any(|byte| b" \t:;".contains(byte)) {
        return false;
    }
    let leads_there = |name: &&str| folder.join(name).canonicalize().is_ok_and(|to| to == library);
    NAMES.iter().all(leads_there)
}

fn make(folder: &Path, library: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    for name in NAMES {
        match symlink(library, folder.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// A hash of a path, so that two libraries do not share a directory.
fn hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_once_and_found_again() {
        let place = std::env::temp_dir().join(format!("feroce-links-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let library = place.join("library.so");
        fs::write(&library, "").unwrap();
        let library = library.canonicalize().unwrap();
        let folder = place.join("links");
        assert!(!is_complete(&folder, &library));
        make(&folder, &library).unwrap();
        make(&folder, &library).unwrap();
        assert!(is_complete(&folder, &library));
        fs::remove_dir_all(&place).unwrap();
    }
}
