//! Finds the library that replaces libibverbs and librdmacm.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::{Context as _, bail, ensure};

/// The file as cargo names it.
const BUILT: &str = "libferoce_capi.so";

/// Its name where it is installed.
const INSTALLED: &str = "libferoce.so";

/// The library that was built into this command, under `cargo install`; see `build.rs`.
const BUNDLED: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/bundle.rs"));

/// Finds it: `FEROCE_LIB`, or beside this command as cargo builds it, or where `cargo xtask dist`
/// puts it, or in this command itself.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("FEROCE_LIB").filter(|path| !path.is_empty()) {
        let named = PathBuf::from(path);
        return named
            .canonicalize()
            .ok()
            .and_then(|path| if path.is_dir() { in_folder(&path) } else { Some(path) })
            .with_context(|| format!("FEROCE_LIB={}: there is no library", named.display()));
    }
    let own = env::current_exe().and_then(|path| path.canonicalize());
    let own = own.context("cannot tell where this command is")?;
    let beside = own.parent().context("cannot tell where this command is")?;
    let places = [beside.to_owned(), beside.join("../lib/feroce")];
    if let Some(library) = places.iter().find_map(|place| in_folder(place)) {
        return Ok(library);
    }
    if let Some(content) = BUNDLED {
        return unpack(content, &cache()?);
    }
    let profile = if beside.ends_with("release") { " --release" } else { "" };
    bail!(
        "{BUILT} is neither in {0} nor in {0}/../lib/feroce.\n\
         Build it with `cargo build{profile} -p feroce-capi`, or say where it is with FEROCE_LIB.",
        beside.display()
    )
}

fn in_folder(folder: &Path) -> Option<PathBuf> {
    [INSTALLED, BUILT].iter().find_map(|name| folder.join(name).canonicalize().ok())
}

/// Where the user keeps what can be made again, or else the runtime directory.
fn cache() -> anyhow::Result<PathBuf> {
    let named = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || named("HOME").map(|home| home.join(".cache"));
    if let Some(folder) = named("XDG_CACHE_HOME").or_else(home) {
        let folder = folder.join("feroce");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        if made.is_ok() && is_ours(&folder).unwrap_or(false) {
            return Ok(folder);
        }
    }
    feroce::runtime_dir().context("there is no place for the library")
}

/// Whether this user alone can write to a folder.
fn is_ours(folder: &Path) -> io::Result<bool> {
    let metadata = fs::metadata(folder)?;
    Ok(metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0)
}

/// Writes the library to a file whose name depends on its content, unless it is there. A process
/// that comes upon the name finds the whole file: it is written under another name first.
fn unpack(content: &[u8], folder: &Path) -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let name = format!("libferoce-{}-{:016x}.so", env!("CARGO_PKG_VERSION"), hasher.finish());
    let library = folder.join(&name);
    let is_there = fs::symlink_metadata(&library)
        .is_ok_and(|there| there.is_file() && there.len() == content.len() as u64);
    if !is_there {
        let draft = folder.join(format!("{name}.{}", std::process::id()));
        let written = (|| {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(content)?;
            fs::rename(&draft, &library)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.with_context(|| format!("cannot unpack the library to {}", library.display()))?;
    }
    ensure!(library.is_file(), "{} is not a file: remove it", library.display());
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_unpacked_once_and_whole() {
        let folder = env::temp_dir().join(format!("feroce-unpack-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let library = unpack(b"one", &folder).unwrap();
        assert_eq!(fs::read(&library).unwrap(), b"one");
        let written = fs::metadata(&library).unwrap().modified().unwrap();
        assert_eq!(unpack(b"one", &folder).unwrap(), library);
        assert_eq!(fs::metadata(&library).unwrap().modified().unwrap(), written);
        let other = unpack(b"two", &folder).unwrap();
        assert_ne!(other, library, "versions do not share a file");
        fs::write(&library, "cut").unwrap();
        fs::write(&other, "t").unwrap();
        unpack(b"two", &folder).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"two", "a file of another length is replaced");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no draft is left");
        fs::remove_dir_all(&folder).unwrap();
    }
}
