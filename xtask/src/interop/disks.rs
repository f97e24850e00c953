//! `cargo xtask disks`: the kernel's own NVMe host uses disks that feroce serves.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::cells::Network;
use super::disk_ends::{Guest, Served};
use super::driver::Driver;
use super::image::Image;
use super::lab::{self, Lab, Side};
use super::{failed, mirror, now};
use crate::args::Args;
use crate::packages::{self, Package};
use crate::shell::{cargo, run, target_dir};
use crate::{Failure, Outcome};

pub(crate) const HELP: &str = "\
Boots a small machine with Debian's kernel and lets its NVMe host, over Soft-RoCE, use a file that
`feroce disk serve` serves here: refusals, connect, mkfs, mount, data compared, trim, fsck, fio with
verification, the target ended and started again under load, disconnect. Then `feroce disk` reads
and writes a disk of the kernel's own target. Takes about two minutes.
Needs QEMU, but neither KVM nor hardware; root only to install packages.

With --mirror, three processes serve a disk each, and that kernel makes a mirror of them with md and
a volume with LVM on it. A target is killed while fio writes with verification: the mirror goes on,
the disk returns, and what was written meanwhile is copied to it. Then another target is killed, and
all files are compared. At last the kernel makes a stripe with LVM, which waits for a target that is
killed and started again. Takes about four minutes.

With one of the other options, only that, without a machine: processes `feroce disk serve` and a
host that writes, flushes and notes what was acknowledged are killed at moments that follow from a
seed, and started again; or the file system under the disk loses its power. The disk is compared
after that: nothing acknowledged (after a loss of power: nothing flushed) is lost, no block is a
mixture, none holds what was not written. Or messages that are almost right are given to controllers
and parsers, and one in fifty over queue pairs.

Usage: cargo xtask disks [--mirror] [--driver NAME] [--suite NAME]
       cargo xtask disks [--kills N] [--power N] [--capsules N] [--seed S]

Options:
  --mirror       A mirror and a stripe of three disks
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

const SUBSYSTEM: &str = "nqn.2024-01.com.example:disks";

pub(crate) fn main(mut args: Args) -> Outcome {
    let is_inside = args.flag("--inside");
    let is_mirror = args.flag("--mirror");
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
        let run = if is_mirror { mirror::run_steps } else { run_steps };
        return run(&Image::prepare(suite.as_deref(), driver)?, driver);
    }
    packages::require(PACKAGES)?;
    if is_mirror {
        packages::require(mirror::PACKAGES)?;
    }
    run(&mut cargo(["build", "-p", "feroce-cli"]))?;
    Image::prepare(suite.as_deref(), driver)?;
    let mut again = lab::inside(packages::is_root(), "disks")?;
    again.arg("--inside").args(is_mirror.then_some("--mirror"));
    again.args(suite.map(|suite| format!("--suite={suite}")));
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
    let ours = Side::Ours.address(Network::V4);
    let (disk, subsystem) = (folder.join("disk.img"), SUBSYSTEM.to_owned());
    let served = Served { disk, subsystem, address: ours.to_owned(), driver };
    served.make(SIZE)?;
    let target = served.start()?;
    let guest = Guest::new(image, "disks.sh");
    for step in ["refused", "connect", "files", "verify"] {
        guest.run(step, &[ours])?;
    }
    let before = target.written()?;
    let begun = now();
    let running = guest.start("killed", &[ours])?;
    target.await_writes(before)?;
    drop(target);
    let _target = served.start()?;
    guest.finish("killed", running, begun.elapsed())?;
    guest.run("disconnect", &[ours])?;
    fs::remove_file(&served.disk).map_err(|e| failed(&served.disk, e))?;
    guest.run("export", &[Side::Kernel.address(Network::V4)])?;
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
