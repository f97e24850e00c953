//! A subnet manager that the fabric starts itself: opensm on one of its hosts.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fabric::pace::monotonic_ns;
use crate::fabric::place::Place;

/// How long it may take until all ports are active: more than for a thousand hosts.
const BRING_UP: Duration = Duration::from_secs(120);
/// How long it may take to end.
const END: Duration = Duration::from_secs(5);

/// A process that runs opensm.
#[derive(Debug)]
pub(in super::super) struct Manager {
    child: Child,
    log: String,
    /// When it was started, or asked to end.
    started_ns: u64,
}

impl Manager {
    /// Starts it.
    pub(in super::super) fn start(place: &Place, host: &str) -> anyhow::Result<Self> {
        let folder = place.manager();
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let log = folder.join("opensm.log");
        let own = std::env::current_exe().context("cannot tell where this command is")?;
        let mut command = Command::new(own);
        command.args(["fabric", "--name", place.name(), "run", "--end-with-parent", "-n", host]);
        command.args(["--", "opensm", "-f"]).arg(&log);
        command.env("OSM_TMP_DIR", &folder).env("OSM_CACHE_DIR", &folder);
        let output = File::create(folder.join("opensm.out"))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("cannot start opensm")?;
        Ok(Self {
            child,
            log: folder.join("opensm.out").display().to_string(),
            started_ns: monotonic_ns(),
        })
    }

    /// Fails if it has ended, or takes too long.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            let last = said.lines().next_back().unwrap_or_default().trim().to_owned();
            bail!("opensm has ended ({status}): {last} (install it with `apt install opensm`)");
        }
        if since(self.started_ns) > BRING_UP {
            bail!("opensm has not brought all ports up in {} s", BRING_UP.as_secs());
        }
        Ok(())
    }

    /// Begins its end.
    pub(super) fn ask_to_end(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        self.started_ns = monotonic_ns();
    }

    /// Whether it has ended, or takes too long for it.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None)) || since(self.started_ns) > END
    }
}

fn since(ns: u64) -> Duration {
    Duration::from_nanos(monotonic_ns() - ns)
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
