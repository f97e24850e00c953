//! Disks of three computers, which the kernel of a fourth makes a mirror and a stripe of.

use std::fs;
use std::process::Command;

use super::disk_ends::{Guest, Served, Target};
use super::driver::Driver;
use super::image::Image;
use super::lab::{CABLE, Lab, Running};
use super::{failed, now};
use crate::Outcome;
use crate::packages::{self, Package};
use crate::shell::{run, target_dir};

#[rustfmt::skip] // a table
pub(super) const PACKAGES: &[Package] = &[
    packages::program("nvme-cli", "nvme", "connects to the disks"),
    packages::program("mdadm", "mdadm", "a mirror of the disks"),
    packages::program("lvm2", "lvm", "volumes on the mirror, and a stripe"),
];

/// Bytes of each disk.
const SIZE: u64 = 48 << 20;

/// The addresses of the three, on our end of the cable.
const ADDRESSES: [&str; 3] = ["10.91.0.11", "10.91.0.12", "10.91.0.13"];

/// Steps of the guest.
const STEPS: u32 = 7;

/// The computers that have disks: a process each, with an address of its own.
struct Computers {
    served: Vec<Served>,
    targets: Vec<Target>,
}

impl Computers {
    fn start(driver: Driver) -> Outcome<Self> {
        let folder = target_dir().join("interop");
        let mut this = Self { served: Vec::new(), targets: Vec::new() };
        for (number, address) in (1..).zip(ADDRESSES) {
            let device = ["address", "add", &format!("{address}/24"), "dev", CABLE];
            run(Command::new("ip").args(device))?;
            let served = Served {
                disk: folder.join(format!("disk-{number}.img")),
                subsystem: format!("nqn.2024-01.com.example:disk-{number}"),
                address: address.to_owned(),
                driver,
            };
            served.make(SIZE)?;
            this.targets.push(served.start()?);
            this.served.push(served);
        }
        Ok(this)
    }

    fn kill(&mut self, number: usize) {
        self.targets[number].kill();
    }

    fn restart(&mut self, number: usize) -> Outcome {
        self.targets[number] = self.served[number].start()?;
        Ok(())
    }

    /// Kills the process of a computer while a step writes to its disk.
    fn kill_under_load(&mut self, number: usize, guest: &Guest, step: &str) -> Outcome<Running> {
        let target = &self.targets[number];
        let before = target.written()?;
        let running = guest.start(step, &ADDRESSES)?;
        target.await_writes(before)?;
        self.kill(number);
        Ok(running)
    }

    fn end(self) -> Outcome {
        drop(self.targets);
        for served in &self.served {
            fs::remove_file(&served.disk).map_err(|e| failed(&served.disk, e))?;
        }
        Ok(())
    }
}

pub(super) fn run_steps(image: &Image, driver: Driver) -> Outcome {
    println!("disks: booting Linux {} with {}", image.version, driver.name());
    let _lab = Lab::boot(image)?;
    let mut computers = Computers::start(driver)?;
    let guest = Guest::new(image, "mirror.sh");
    guest.run("connect", &ADDRESSES)?;
    guest.run("make", &ADDRESSES)?;
    let begun = now();
    let load = computers.kill_under_load(1, &guest, "load")?;
    guest.run("lost", &ADDRESSES)?;
    guest.finish("load", load, begun.elapsed())?;
    computers.restart(1)?;
    guest.run("returned", &ADDRESSES)?;
    computers.kill(0);
    guest.run("other", &ADDRESSES)?;
    computers.restart(0)?;
    guest.run("stripe", &ADDRESSES)?;
    let begun = now();
    let load = computers.kill_under_load(2, &guest, "wait")?;
    computers.restart(2)?;
    guest.finish("wait", load, begun.elapsed())?;
    computers.end()?;
    println!("disks: {STEPS} steps ran, 0 failed");
    Ok(())
}
