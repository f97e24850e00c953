//! The Debian package, made by hand: an archive of what `dist` has laid out, under `/usr`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{NAMES, copy, failed, write};
use crate::shell::{ask, root, run};
use crate::{Failure, Outcome};

/// Builds the package of `folder` in `out`.
pub(super) fn build(out: &Path, folder: &Path, version: &str) -> Outcome<PathBuf> {
    let architecture = ask(Command::new("dpkg").arg("--print-architecture"));
    let architecture =
        architecture.ok_or_else(|| Failure::Failed("dpkg does not answer".into()))?;
    let architecture = architecture.trim();
    let staging = out.join("deb");
    if staging.exists() {
        fs::remove_dir_all(&staging).map_err(|e| failed(&staging, e))?;
    }
    copy_tree(folder, &staging.join("usr"))?;
    let mit = root().join("LICENSE-MIT");
    copy(&mit, &staging.join("usr/share/doc/feroce/copyright"))?;
    let binaries = ["usr/bin/feroce", "usr/lib/feroce/libferoce.so"].map(|p| staging.join(p));
    let libc = newest_libc(&binaries)?;
    write(&staging.join("DEBIAN/control"), &control(version, architecture, &libc))?;
    let package = out.join(format!("feroce_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    run(pack.args(["--root-owner-group", "--build"]).args([&staging, &package]))?;
    Ok(package)
}

fn control(version: &str, architecture: &str, libc: &str) -> String {
    format!(
        "\
Package: feroce
Version: {version}
Architecture: {architecture}
Maintainer: The feroce project <feroce@localhost>
Section: net
Priority: optional
Depends: libc6 (>= {libc}), libgcc-s1
Suggests: ibverbs-utils, rdmacm-utils, perftest
Description: RDMA without RDMA hardware
 A software RDMA adapter in user space, which needs no kernel module and no
 privileges. It speaks RoCEv2 on the wire, and it runs programs that use
 libibverbs and librdmacm as they are.
"
    )
}

/// The newest version of the C library that one of the files was linked with.
pub(super) fn newest_libc(files: &[PathBuf]) -> Outcome<String> {
    let mut newest = (2, 17);
    for file in files {
        let bytes = fs::read(file).map_err(|e| failed(file, e))?;
        newest = newest.max(needed_libc(&bytes).unwrap_or(newest));
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}

/// The newest of the version names that a linked file carries: `GLIBC_2.34` and such.
fn needed_libc(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let places = bytes.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    let versions = places.filter_map(|(at, _)| {
        let rest = &bytes[at + MARK.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let (major, minor) = core::str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max()
}

/// Copies a tree of files and links.
fn copy_tree(from: &Path, to: &Path) -> Outcome {
    for entry in fs::read_dir(from).map_err(|e| failed(from, e))?.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if NAMES.iter().any(|name| entry.file_name() == *name) {
            let leads_to = fs::read_link(&path).map_err(|e| failed(&path, e))?;
            std::os::unix::fs::symlink(leads_to, &target).map_err(|e| failed(&target, e))?;
        } else if path.is_dir() {
            fs::create_dir_all(&target).map_err(|e| failed(&target, e))?;
            copy_tree(&path, &target)?;
        } else {
            copy(&path, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let bytes = b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0";
        assert_eq!(needed_libc(bytes), Some((2, 34)));
        assert_eq!(needed_libc(b"nothing"), None);
    }

    #[test]
    fn the_control_file_has_what_dpkg_asks_for() {
        let text = control("1.2.3", "amd64", "2.34");
        for field in ["Package", "Version", "Architecture", "Maintainer", "Description"] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{field}: "))), "{field}");
        }
        assert!(text.ends_with('\n'));
    }
}
