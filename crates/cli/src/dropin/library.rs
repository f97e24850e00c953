//! Finds the library that replaces libibverbs and librdmacm.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The file as cargo names it.
const BUILT: &str = "libferoce_capi.so";

/// Its name where it is installed.
const INSTALLED: &str = "libferoce.so";

/// Finds it: `FEROCE_LIB`, or beside this command as cargo builds it, or where `cargo xtask dist`
/// puts it.
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
