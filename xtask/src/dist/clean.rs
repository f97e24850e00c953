//! A root file system with a few packages of Debian and nothing else, made from the files that this
//! machine has of them. What is given to others is tried out there, without a network: so nothing
//! that a developer happens to have can make it work.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{failed, make_room};
use crate::shell::{ask, run};
use crate::{Failure, Outcome};

/// Folders of packages that no program needs.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc", "/usr/share/locale", "/usr/share/man"];

/// Such a file system.
pub(super) struct Root {
    folder: PathBuf,
}

impl Root {
    /// Makes one from packages that are installed here, and what they depend on.
    pub(super) fn new(folder: &Path, packages: &[&str]) -> Outcome<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|e| failed(folder, e))?;
        }
        for name in ["dev", "etc", "opt", "proc", "root", "sys", "tmp", "usr/bin", "usr/lib"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|e| failed(&path, e))?;
        }
        for name in ["bin", "lib", "lib64", "sbin"] {
            let (to, link) = (format!("usr/{name}"), folder.join(name));
            fs::create_dir_all(folder.join(&to)).map_err(|e| failed(&link, e))?;
            symlink(to, &link).map_err(|e| failed(&link, e))?;
        }
        let root = Self { folder: folder.to_owned() };
        for package in with_dependencies(packages)? {
            root.add(&package)?;
        }
        Ok(root)
    }

    /// Copies the files of a package.
    fn add(&self, package: &str) -> Outcome {
        let files = ask(Command::new("dpkg-query").args(["--listfiles", package]));
        let files = files.ok_or_else(|| Failure::Failed(format!("{package} is not installed")))?;
        let is_wanted = |path: &&str| !LEFT_OUT.iter().any(|folder| path.starts_with(folder));
        for path in files.lines().filter(|path| path.starts_with('/')).filter(is_wanted) {
            let target = self.folder.join(path.trim_start_matches('/'));
            // What another package has replaced is not there under its own name.
            let Ok(metadata) = fs::symlink_metadata(path) else { continue };
            if metadata.is_symlink() {
                make_room(&target)?;
                let to = fs::read_link(path).map_err(|e| failed(path, e))?;
                if fs::symlink_metadata(&target).is_err() {
                    symlink(to, &target).map_err(|e| failed(&target, e))?;
                }
            } else if metadata.is_file() {
                make_room(&target)?;
                fs::copy(path, &target).map_err(|e| failed(path, e))?;
            }
        }
        Ok(())
    }

    /// A place in it.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside.trim_start_matches('/'))
    }

    /// Runs a command in it, with a network of its own that has nothing but the loopback address,
    /// and an empty environment.
    pub(super) fn run(&self, command: &[&str]) -> Outcome {
        const ENTER: &str = "ip link set lo up
            mount --rbind /proc \"$1/proc\"
            mount --rbind /dev \"$1/dev\"
            mount -t tmpfs tmpfs \"$1/dev/shm\"
            root=$1; shift
            exec chroot \"$root\" /usr/bin/env -i PATH=/usr/bin HOME=/root \"$@\"";
        let mut enter = Command::new("unshare");
        enter.args(["--map-root-user", "--mount", "--net", "--ipc", "sh", "-e", "-c", ENTER, "sh"]);
        run(enter.arg(&self.folder).args(command))
    }
}

/// Packages and everything that they depend on, as far as it is installed here.
fn with_dependencies(packages: &[&str]) -> Outcome<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let mut left: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    while let Some(package) = left.pop() {
        let mut query = Command::new("dpkg-query");
        let format = "--showformat=${db:Status-Abbrev}${Depends}, ${Pre-Depends}\n";
        let known = ask(query.args(["--show", format, &package]).stderr(Stdio::null()));
        // One of several alternatives need not be there, and some names are those of no package.
        let known = known.as_deref().unwrap_or_default();
        if let Some(depends) = known.strip_prefix("ii ")
            && all.insert(package)
        {
            left.extend(names(depends).map(str::to_owned));
        }
    }
    for package in packages {
        let is_there = all.contains(*package);
        let missing = || Failure::Failed(format!("the package {package} is not installed here"));
        is_there.then_some(()).ok_or_else(missing)?;
    }
    Ok(all)
}

/// The packages that a field like `libc6 (>= 2.34), a:any | b` names.
fn names(depends: &str) -> impl Iterator<Item = &str> {
    let alternatives = depends.split([',', '|']).map(str::trim);
    let names = alternatives.map(|one| one.split([' ', ':', '(']).next().unwrap_or_default());
    names.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_named_without_versions() {
        let depends = "libc6 (>= 2.34), python3:any | dash, libgcc-s1, \n";
        assert_eq!(names(depends).collect::<Vec<_>>(), ["libc6", "python3", "dash", "libgcc-s1"]);
    }
}
