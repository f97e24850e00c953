//! The two ends of `cargo xtask disks`: processes that serve disks here, and the guest that uses
//! them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;

use core::time::Duration;

use super::driver::Driver;
use super::image::Image;
use super::lab::{self, Running, in_guest, start_in_guest};
use super::{PAUSE, deadline, failed, is_past, now};
use crate::shell::{root, target_dir};
use crate::{Failure, Outcome};

/// How long a step may take where a busy machine emulates another.
pub(super) const LIMIT: Duration = Duration::from_secs(110);

/// Bytes that a step must have written before its target is ended.
const SOME: u64 = 128 << 10;

const HOST: &str = "nqn.2024-01.com.example:guest";

/// The machine that uses the disks.
pub(super) struct Guest {
    script: String,
    /// Where it finds modules of its kernel.
    modules: String,
}

impl Guest {
    /// Its steps are those of a script of `interop`.
    pub(super) fn new(image: &Image, script: &str) -> Self {
        let modules = image.kernel.parent().and_then(Path::parent).unwrap_or(&image.kernel);
        let script = in_guest(&root().join("interop").join(script));
        Self { script, modules: in_guest(modules) }
    }

    pub(super) fn start(&self, step: &str, addresses: &[&str]) -> Outcome<Running> {
        let words = ["sh", &self.script, step, &self.modules];
        let words: Vec<String> = words.iter().chain(addresses).map(|&w| w.to_owned()).collect();
        Ok(Running::Guest(start_in_guest(&words)?))
    }

    pub(super) fn finish(&self, step: &str, running: Running, before: Duration) -> Outcome {
        let begun = now();
        let end = running.finish(LIMIT)?;
        if end.is_success() {
            println!("{step}: ok ({:.1} s)", (before + begun.elapsed()).as_secs_f64());
            return Ok(());
        }
        let log = ["sh", "-c", "dmesg | tail -n 30"].map(str::to_owned);
        let log = lab::run_in_guest(&log)?;
        Err(Failure::Failed(format!("{step}: {end}\nthe kernel says:\n{}", log.output)))
    }

    pub(super) fn run(&self, step: &str, addresses: &[&str]) -> Outcome {
        let running = self.start(step, addresses)?;
        self.finish(step, running, Duration::ZERO)
    }
}

/// What a target serves, and where.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) disk: PathBuf,
    pub(super) subsystem: String,
    pub(super) address: String,
    pub(super) driver: Driver,
}

impl Served {
    /// Makes its disk: a file without blocks.
    pub(super) fn make(&self, bytes: u64) -> Outcome {
        let made = File::create(&self.disk).and_then(|file| file.set_len(bytes));
        made.map_err(|e| failed(&self.disk, e))
    }

    pub(super) fn start(&self) -> Outcome<Target> {
        Target::start(self)
    }
}

/// A target, which ends with this value at once and without a word to its hosts.
pub(super) struct Target(Child);

impl Target {
    fn start(served: &Served) -> Outcome<Self> {
        let Served { disk, subsystem, address, driver } = served;
        let path = disk.with_extension("out");
        let output = File::create(&path).map_err(|e| failed(&path, e))?;
        let program = target_dir().join("debug/feroce");
        let mut command = Command::new(&program);
        command.args(["disk", "serve", "--nqn", subsystem, "--allow", HOST, "--listen", address]);
        command.arg(disk).stdin(Stdio::null()).stdout(output).envs(driver.settings());
        let mut target = Self(command.spawn().map_err(|e| failed(&program, e))?);
        let limit = deadline(LIMIT);
        loop {
            let said = fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
            if said.contains("serving ") {
                return Ok(target);
            }
            let ended = target.0.try_wait().map_err(|e| failed(&program, e))?;
            if ended.is_some() || is_past(limit) {
                return Err(Failure::Failed(format!("the target does not start: {said}")));
            }
            park_timeout(PAUSE);
        }
    }

    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Bytes that the process has written, to its disk for the most part.
    pub(super) fn written(&self) -> Outcome<u64> {
        let path = format!("/proc/{}/io", self.0.id());
        let counts = fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
        let written = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
        let written = written.and_then(|bytes| bytes.parse().ok());
        written.ok_or_else(|| Failure::Failed(format!("{path} does not say what was written")))
    }

    /// Waits until the guest has written some more than there was.
    pub(super) fn await_writes(&self, before: u64) -> Outcome {
        let limit = deadline(LIMIT);
        while self.written()? < before + SOME {
            if is_past(limit) {
                return Err(Failure::Failed("the guest does not write".into()));
            }
            park_timeout(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}
