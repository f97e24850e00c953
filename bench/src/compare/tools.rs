//! The programs that are measured, and where they come from.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::unistd::Uid;
use serde_json::Value;

/// The programs that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    Iperf3,
    Ucx,
    Libfabric,
    Feroce,
    /// perftest, which talks to libibverbs, with our library in its place.
    DropIn,
    /// This program: plain UDP.
    Itself,
}

/// A program of the system.
struct Program {
    name: &'static str,
    package: &'static str,
}

/// What every measurement needs: namespaces, and processes that do not survive this one.
const NEEDED: &[Program] = &[
    Program { name: "ip", package: "iproute2" },
    Program { name: "setpriv", package: "util-linux" },
    Program { name: "unshare", package: "util-linux" },
    Program { name: "chrt", package: "util-linux" },
];

const PEERS: &[Tool] = &[Tool::Iperf3, Tool::Ucx, Tool::Libfabric, Tool::DropIn];

impl Tool {
    /// Whether it takes our command to run it.
    pub(crate) fn needs_feroce(self) -> bool {
        matches!(self, Self::Feroce | Self::DropIn)
    }

    /// The program of the system, for those that are not ours alone.
    fn program(self) -> Option<Program> {
        match self {
            Self::Iperf3 => Some(Program { name: "iperf3", package: "iperf3" }),
            Self::Ucx => Some(Program { name: "ucx_perftest", package: "ucx-utils" }),
            Self::Libfabric => Some(Program { name: "fi_pingpong", package: "libfabric-bin" }),
            Self::DropIn => Some(Program { name: "ib_write_bw", package: "perftest" }),
            Self::Feroce | Self::Itself => None,
        }
    }
}

/// Where each of them is.
#[derive(Default)]
pub(crate) struct Tools {
    feroce: Option<PathBuf>,
}

impl Tools {
    /// All of them. `feroce` is built unless its path is given.
    pub(crate) fn with_feroce(given: Option<&Path>) -> anyhow::Result<Self> {
        let feroce = match given {
            Some(path) => {
                path.canonicalize().with_context(|| format!("--feroce {}", path.display()))?
            }
            None => build_feroce()?,
        };
        Ok(Self { feroce: Some(feroce) })
    }

    /// The program to start.
    pub(crate) fn path(&self, tool: Tool) -> anyhow::Result<PathBuf> {
        let program = match tool.program() {
            Some(Program { name, package }) => {
                on_path(name).with_context(|| format!("no `{name}`: install {package}"))?
            }
            None => std::env::current_exe()?,
        };
        if tool.needs_feroce() {
            return self.feroce.clone().context("feroce was not built");
        }
        Ok(program)
    }
}

/// Installs what is missing, where that can be done.
pub(crate) fn install() -> anyhow::Result<()> {
    let peers = PEERS.iter().filter_map(|tool| tool.program());
    let mut packages: Vec<&str> = NEEDED
        .iter()
        .map(|program| (program.name, program.package))
        .chain(peers.map(|program| (program.name, program.package)))
        .filter(|(name, _)| on_path(name).is_none())
        .map(|(_, package)| package)
        .collect();
    packages.dedup();
    if packages.is_empty() || !Uid::effective().is_root() || on_path("apt-get").is_none() {
        return Ok(());
    }
    eprintln!("compare: installing {}", packages.join(", "));
    let apt_get = |args: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new("apt-get");
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        let status = command.stdout(Stdio::null()).status()?;
        ensure!(status.success(), "apt-get {} failed", args.join(" "));
        Ok(())
    };
    // Old package lists may suffice.
    let _ = apt_get(&["-q", "update"]);
    let install = ["-q", "-y", "--no-install-recommends", "install"];
    apt_get(&[&install[..], &packages].concat())
}

/// Builds the command and the library as their users do, and asks cargo where the command went. It
/// finds the library beside itself.
fn build_feroce() -> anyhow::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--package", "feroce-cli", "--package", "feroce-capi"])
        .args(["--message-format", "json"])
        .arg("--manifest-path")
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo; --feroce names a command that is built")?;
    ensure!(output.status.success(), "feroce does not build");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == "feroce")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo does not say where it put feroce")
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}
