//! `cargo xtask disks`: the kernel's own NVMe host uses disks that feroce serves.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;

use core::time::Duration;

use super::cells::Network;
use super::driver::Driver;
use super::image::Image;
use super::lab::{self, Lab, Running, Side, in_guest, start_in_guest};
use super::{PAUSE, deadline, failed, is_past, now};
use crate::args::Args;
use crate::packages::{self, Package};
use crate::shell::{cargo, root, run, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Boots a small machine with Debian's kernel and lets its NVMe host, over Soft-RoCE, use a file that
`feroce disk serve` serves here: refusals, connect, mkfs, mount, data compared, trim, fsck, fio with
verification, the target ended and started again under load, disconnect. Then `feroce disk` reads
and writes a disk of the kernel's own target. Takes about two minutes.
Needs QEMU, but neither KVM nor hardware; root only to install packages.

With one of the other options, only that, without a machine: processes `feroce disk serve` and a
host that writes, flushes and notes what was acknowledged are killed at moments that follow from a
seed, and started again; or the file system under the disk loses its power. The disk is compared
after that: nothing acknowledged (after a loss of power: nothing flushed) is lost, no block is a
mixture, none holds what was not written. Or messages that are almost right are given to controllers
and parsers, and one in fifty over queue pairs.

Usage: cargo xtask disks [--driver NAME] [--suite NAME]
       cargo xtask disks [--kills N] [--power N] [--capsules N] [--seed S]

Options:
  --driver NAME  What the kernel's end speaks: rxe (default), or siw for iWARP
  --suite NAME   Take the kernel from another suite of Debian, such as bookworm-backports
  --kills N      Kill N processes
  --power N      Lose the power N times; needs root, loop devices, e2fsprogs and xfsprogs
  --capsules N   Send N capsules that are almost right
  --seed S       First seed of kills and losses of power (default: 1)
";

#[rustfmt::skip] // a table
const PACKAGES: &[Package] = &[
    packages::program("qemu-system-x86", "qemu-system-x86_64", "the guest"),
    packages::library("busybox-static", "the first program of the guest"),
    packages::program("kmod", "modprobe", "modules of the guest"),
    packages::program("iproute2", "rdma", "the network, and Soft-RoCE in the guest"),
    packages::program("e2fsprogs", "mkfs.ext4", "a file system on the disk"),
    packages::program("fio", "fio", "reads and writes that are verified"),
];

/// Bytes of the disk.
const SIZE: u64 = 256 << 20;

/// Blocks of 512 bytes that the file must have got before the target is ended.
const SOME: u64 = 256;

/// How long a step may take where a busy machine emulates another.
const LIMIT: Duration = Duration::from_secs(110);

const SUBSYSTEM: &str = "nqn.2024-01.com.example:disks";
const HOST: &str = "nqn.2024-01.com.example:guest";

pub(crate) fn main(mut args: Args) -> Outcome {
    let is_inside = args.flag("--inside");
    let suite: Option<String> = args.value("--suite")?;
    let driver = Driver::of_option(args.value("--driver")?)?;
    let mut campaigns = Vec::new();
    for campaign in CAMPAIGNS {
        let count: Option<u64> = args.value(campaign.option)?;
        campaigns.extend(count.map(|count| (campaign, count)));
    }
    let seed = args.value("--seed")?.unwrap_or(1);
    args.finish()?;
    if !campaigns.is_empty() {
        return campaigns.iter().try_for_each(|(campaign, count)| campaign.run(*count, seed));
    }
    if is_inside {
        return run_steps(&Image::prepare(suite.as_deref(), driver)?, driver);
    }
    packages::require(PACKAGES)?;
    run(&mut cargo(["build", "-p", "feroce-cli"]))?;
    Image::prepare(suite.as_deref(), driver)?;
    let mut again = lab::inside(packages::is_root(), "disks")?;
    again.arg("--inside").args(suite.map(|suite| format!("--suite={suite}")));
    again.arg(format!("--driver={}", driver.name()));
    run(&mut again)
}

/// Tests that go on for as long as a variable says.
struct Campaign {
    option: &'static str,
    variable: &'static str,
    package: &'static str,
    tests: &'static str,
    /// Some of them are beside the code.
    has_unit_tests: bool,
}

const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        option: "--kills",
        variable: "FEROCE_TEST_DISK_KILLS",
        package: "feroce-cli",
        tests: "no_acknowledged_write_is_lost",
        has_unit_tests: false,
    },
    Campaign {
        option: "--power",
        variable: "FEROCE_TEST_DISK_POWER",
        package: "feroce-cli",
        tests: "no_flushed_write_is_lost",
        has_unit_tests: false,
    },
    Campaign {
        option: "--capsules",
        variable: "FEROCE_TEST_CAPSULES",
        package: "feroce-nvme",
        tests: "malformed::",
        has_unit_tests: true,
    },
];

impl Campaign {
    fn run(&self, count: u64, seed: u64) -> Outcome {
        let mut tests = cargo(["test", "--test=tests", "--package", self.package]);
        if self.has_unit_tests {
            tests.arg("--lib");
        }
        tests.arg("--");
        // One at a time: some look at the memory of the process.
        tests.args(["--nocapture", "--test-threads=1", self.tests]);
        tests.env("FEROCE_SEED", seed.to_string());
        run(tests.env(self.variable, count.to_string()))
    }
}

fn run_steps(image: &Image, driver: Driver) -> Outcome {
    println!("disks: booting Linux {} with {}", image.version, driver.name());
    let _lab = Lab::boot(image)?;
    let folder = target_dir().join("interop");
    let disk = folder.join("disk.img");
    let made = File::create(&disk).and_then(|file| file.set_len(SIZE));
    made.map_err(|e| failed(&disk, e))?;
    let target = Target::start(&folder, &disk, driver)?;
    let modules = image.kernel.parent().and_then(Path::parent).unwrap_or(&image.kernel);
    let guest = Guest { modules: in_guest(modules) };
    for step in ["refused", "connect", "files", "verify"] {
        guest.run(step)?;
    }
    // The file has no blocks there until the guest writes.
    let before = blocks(&disk)?;
    let begun = now();
    let running = guest.start("killed")?;
    let limit = deadline(LIMIT);
    while blocks(&disk)? < before + SOME {
        if is_past(limit) {
            return Err(Failure::Failed("the guest does not write".into()));
        }
        park_timeout(PAUSE);
    }
    drop(target);
    let _target = Target::start(&folder, &disk, driver)?;
    guest.finish("killed", running, begun.elapsed())?;
    guest.run("disconnect")?;
    fs::remove_file(&disk).map_err(|e| failed(&disk, e))?;
    guest.run("export")?;
    use_kernels_disk(&folder, driver)?;
    println!("disks: 8 steps ran, 0 failed");
    Ok(())
}

/// Our host with the kernel's target.
fn use_kernels_disk(folder: &Path, driver: Driver) -> Outcome {
    let begun = now();
    let at = Side::Kernel.address(Network::V4);
    let feroce = |words: &[&str]| {
        let mut command = Command::new(target_dir().join("debug/feroce"));
        command.arg("disk").args(words).current_dir(folder).envs(driver.settings());
        command
    };
    run(&mut feroce(&["discover", at]))?;
    run(&mut feroce(&["ls", at]))?;
    // Lengths that need several commands, and bytes that repeat nowhere.
    let data: Vec<u8> =
        (0..704_u32 * 128).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let (from, to) = (folder.join("disks.from"), folder.join("disks.to"));
    fs::write(&from, &data).map_err(|e| failed(&from, e))?;
    run(&mut feroce(&["write", at, "--nqn", SUBSYSTEM, "--offset", "1M", "disks.from"]))?;
    let length = data.len().to_string();
    let read = ["read", at, "--nqn", SUBSYSTEM, "--offset", "1M", "--length", &length];
    run(feroce(&read).args(["-o", "disks.to"]))?;
    let found = fs::read(&to).map_err(|e| failed(&to, e))?;
    if found != data {
        return Err(Failure::Failed("the kernel's target returns other bytes".into()));
    }
    for path in [from, to] {
        fs::remove_file(&path).map_err(|e| failed(&path, e))?;
    }
    println!("the kernel's disk: ok ({:.1} s)", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Blocks of 512 bytes that a file occupies.
fn blocks(path: &Path) -> Outcome<u64> {
    Ok(fs::metadata(path).map_err(|e| failed(path, e))?.blocks())
}

/// The machine that uses the disks.
struct Guest {
    /// Where it finds modules of its kernel.
    modules: String,
}

impl Guest {
    fn start(&self, step: &str) -> Outcome<Running> {
        let script = in_guest(&root().join("interop/disks.sh"));
        let side = if step == "export" { Side::Kernel } else { Side::Ours };
        let address = side.address(Network::V4);
        let words = ["sh", &script, step, &self.modules, address].map(str::to_owned);
        Ok(Running::Guest(start_in_guest(&words)?))
    }

    fn finish(&self, step: &str, running: Running, before: Duration) -> Outcome {
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

    fn run(&self, step: &str) -> Outcome {
        let running = self.start(step)?;
        self.finish(step, running, Duration::ZERO)
    }
}

/// A target, which ends with this value at once and without a word to its hosts.
struct Target(Child);

impl Target {
    fn start(folder: &Path, disk: &Path, driver: Driver) -> Outcome<Self> {
        let path: PathBuf = folder.join("disks.out");
        let output = File::create(&path).map_err(|e| failed(&path, e))?;
        let program = target_dir().join("debug/feroce");
        let mut command = Command::new(&program);
        command.args(["disk", "serve", "--nqn", SUBSYSTEM, "--allow", HOST, "--listen"]);
        command.arg(Side::Ours.address(Network::V4)).arg(disk);
        command.stdin(Stdio::null()).stdout(output).envs(driver.settings());
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
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
