//! Debian's package lists: those of this machine, or of another suite of the same archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::failed;
use crate::shell::{ask, run};
use crate::{Failure, Outcome};

/// The package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// Where packages come from.
#[derive(Debug)]
pub(super) struct Apt {
    /// Options of apt that lead to lists of our own; none for those of the machine.
    options: Vec<String>,
}

impl Apt {
    /// The lists of this machine or, with a suite, lists in the folder `cache`: the configuration
    /// of the machine stays as it is.
    pub(super) fn new(suite: Option<&str>, cache: &Path) -> Outcome<Self> {
        let Some(suite) = suite else {
            return Ok(Self { options: Vec::new() });
        };
        let folder = cache.join(format!("apt-{suite}"));
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(|e| failed(&part, e))?;
        }
        let sources = folder.join("sources.list");
        if !sources.exists() {
            let line = format!("deb [signed-by={KEYRING}] {} {suite} main\n", archive()?);
            fs::write(&sources, line).map_err(|e| failed(&sources, e))?;
        }
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let options = [
            option("Dir::Etc::sourcelist", sources),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            option("Dir::State::lists", folder.join("lists")),
            option("Dir::Cache", folder.join("cache")),
        ];
        Ok(Self { options: options.into_iter().flat_map(|o| ["-o".to_owned(), o]).collect() })
    }

    /// The package with the newest kernel. Updates the lists if they know none.
    pub(super) fn newest_kernel(&self) -> Outcome<String> {
        if let Some(package) = self.known_kernel() {
            return Ok(package);
        }
        run(self.command("apt-get").args(["--quiet", "update"]))?;
        self.known_kernel().ok_or_else(|| Failure::Failed(format!("apt knows no {NEWEST}")))
    }

    /// Downloads a package into `folder`.
    pub(super) fn download(&self, package: &str, folder: &Path) -> Outcome {
        let mut download = self.command("apt-get");
        download.args(["--quiet", "-o", "APT::Sandbox::User=root", "download", package]);
        run(download.current_dir(folder))
    }

    /// Installs a package on this machine.
    pub(super) fn install(&self, package: &str) -> Outcome {
        let mut install = self.command("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        run(install.args(["--quiet", "--yes", "--no-install-recommends", "install", package]))
    }

    /// The version of a package.
    pub(super) fn version_of(&self, package: &str) -> Outcome<String> {
        let mut show = self.command("apt-cache");
        let text = ask(show.args(["show", "--no-all-versions", package])).unwrap_or_default();
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        let none = || Failure::Failed(format!("apt knows no version of {package}"));
        version.map(str::to_owned).ok_or_else(none)
    }

    fn known_kernel(&self) -> Option<String> {
        let depends = ask(self.command("apt-cache").args(["depends", NEWEST]))?;
        let mut lines = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        lines.find(|name| name.starts_with("linux-image-")).map(str::to_owned)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }
}

/// What Debian signs its archive with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The address from which this machine gets Debian's own packages.
fn archive() -> Outcome<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(LABEL) $(SITE)", "Created-By: Packages"]);
    let lines = ask(&mut targets).unwrap_or_default();
    let site = lines.lines().find_map(|line| line.strip_prefix("Debian "));
    let none = || Failure::Failed("apt of this machine has no archive of Debian".into());
    site.map(str::to_owned).ok_or_else(none)
}
