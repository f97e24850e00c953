//! The test network: a network namespace of its own, a guest with the kernel's driver in it, and a
//! cable between the two.
//!
//! Everything runs in namespaces that end with the process that made them, so that nothing is left
//! behind, however that process ends.

use core::fmt;
use core::time::Duration;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::park_timeout;

use super::agent::{self, Remote};
use super::cells::Network;
use super::image::Image;
use super::ready::Ready;
use super::rows::Row;
use super::{PAUSE, deadline, failed, is_past};
use crate::shell::{run, target_dir};
use crate::{Failure, Outcome};

/// Addresses on the cable: ours and the guest's.
const OURS: &str = "10.91.0.1";
const GUEST: &str = "10.91.0.2";
const OURS6: &str = "fd91::1";
const GUEST6: &str = "fd91::2";

/// Has room for a path MTU of 4096.
const MTU: &str = "4500";

/// Packets that may wait for the guest, which is slow: the cable shall lose none.
const QUEUE: u32 = 20_000;

/// Our end of the cable.
pub(super) const CABLE: &str = "cable";

/// The guest on the network of QEMU, over which it is told what to do: faults of the cable do not
/// matter there.
const MANAGED: &str = "192.168.231.15";

/// What the guest says of itself, in the folder of the laboratory.
const CONSOLE: &str = "console.log";

/// An emulated machine is slow on a busy host.
const BOOT_LIMIT: Duration = Duration::from_mins(5);

/// How long a command may take, and how much longer the host waits for its exit status.
const COMMAND_SECONDS: u64 = 90;
const COMMAND_LIMIT: Duration = Duration::from_secs(COMMAND_SECONDS + 30);

/// Turns off features of a network card that make packets differ from those on a wire.
const PLAIN: &str = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,\
                     guest_ufo=off,guest_ecn=off,host_tso4=off,host_tso6=off,host_ufo=off,\
                     host_ecn=off";

/// A command that runs a task of this program in namespaces of its own, which end with it.
pub(super) fn inside(is_root: bool, task: &str) -> Outcome<Command> {
    let own = env::current_exe().map_err(|e| failed("this program", e))?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--mount", "--fork", "--kill-child"]);
    if !is_root {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--").arg(own).arg(task);
    Ok(command)
}

/// A guest that runs.
#[derive(Debug)]
pub(super) struct Lab {
    qemu: Child,
    /// For what the ends write.
    folder: PathBuf,
    /// The process id of this process, as processes outside the namespaces see it.
    pid: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Lab {
    /// Makes the cable, boots the guest and waits until it is ready.
    pub(super) fn boot(image: &Image) -> Outcome<Self> {
        let folder = target_dir().join("interop");
        fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
        let own = fs::read_link("/proc/self").map_err(|e| failed("/proc/self", e))?;
        let pid = own.display().to_string();
        run(Command::new("mount").args(["-t", "proc", "proc", "/proc"]))?;
        for line in [
            "link set lo up",
            &format!("tuntap add dev {CABLE} mode tap"),
            &format!("link set {CABLE} mtu {MTU} txqueuelen {QUEUE} up"),
            &format!("address add {OURS}/24 dev {CABLE}"),
            &format!("address add {OURS6}/64 dev {CABLE} nodad"),
        ] {
            run(Command::new("ip").args(line.split_whitespace()))?;
        }
        let mut lab = Self { qemu: start_qemu(image, &folder)?, folder, pid };
        lab.await_guest()?;
        Ok(lab)
    }

    fn stop(&mut self) {
        // It may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    fn await_guest(&mut self) -> Outcome {
        let limit = deadline(BOOT_LIMIT);
        while !Self::is_up() {
            let ended = self.qemu.try_wait().map_err(|e| failed("qemu", e))?;
            if ended.is_some() || is_past(limit) {
                let said = fs::read_to_string(self.folder.join(CONSOLE)).unwrap_or_default();
                return Err(Failure::Failed(format!("the guest does not come up:\n{said}")));
            }
            park_timeout(PAUSE);
        }
        Ok(())
    }

    /// Whether there is a guest that answers in our namespace.
    pub(super) fn is_up() -> bool {
        start_in_guest(&agent::count()).is_ok()
    }

    /// The commands with which the user enters the namespaces and runs commands in the guest.
    pub(super) fn how_to_get_in(&self) -> String {
        let own = env::current_exe().unwrap_or_else(|_| "xtask".into());
        let enter = format!("nsenter --net --pid --mount --target {}", self.pid);
        [
            "interop: the guest stays, until this is interrupted".to_owned(),
            format!("  our end:   {enter}"),
            format!("  the guest: {enter} {} interop --inside --guest COMMAND", own.display()),
        ]
        .join("\n")
    }

    /// Runs a command in the guest to its end, which must be good.
    pub(super) fn ask_guest(&self, words: &[&str]) -> Outcome<String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        self.finish_in_guest(&words)
    }

    /// The counters of the guest, a name and a number each.
    pub(super) fn counters(&self) -> Outcome<Vec<(String, u64)>> {
        let text = self.finish_in_guest(&agent::count())?;
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter_map(pair).collect())
    }

    /// What is at the other end, in words.
    pub(super) fn versions(&self, image: &Image) -> Outcome<String> {
        let packages = ["ibverbs-utils", "perftest"];
        let mut words = vec![format!("Linux {}", image.version)];
        for package in packages {
            let query = ["dpkg-query", "--show", "--showformat=${Package} ${Version}", package];
            words.push(self.ask_guest(&query)?.trim().to_owned());
        }
        Ok(words.join(", "))
    }

    fn finish_in_guest(&self, words: &[String]) -> Outcome<String> {
        let end = run_in_guest(words)?;
        match end.is_success() {
            true => Ok(end.output),
            false => Err(Failure::Failed(format!("in the guest, `{}`: {end}", words.join(" ")))),
        }
    }

    /// Starts one end of a cell.
    pub(super) fn start(&self, side: Side, command: &[String], row: &Row) -> Outcome<Running> {
        let fault = row.fault;
        let limit = COMMAND_SECONDS.to_string();
        let limited = ["timeout", "--kill-after=5", &limit].map(str::to_owned);
        let words: Vec<String> = limited.iter().chain(command).cloned().collect();
        if side == Side::Kernel {
            return Ok(Running::Guest(start_in_guest(&words)?));
        }
        let path = self.folder.join("ours.out");
        let output = File::create(&path).map_err(|e| failed(&path, e))?;
        let errors = output.try_clone().map_err(|e| failed(&path, e))?;
        let mut child = Command::new(&words[0]);
        child.args(&words[1..]).env("FEROCE_FAULT", fault).current_dir(&self.folder);
        child.envs(row.settings.iter().copied());
        if !fault.is_empty() {
            child.env("FEROCE_PCAP", self.capture());
        }
        child.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = child.spawn().map_err(|e| failed(&words[0], e))?;
        Ok(Running::Here { child, output: path })
    }

    /// What our end sent and received in the last cell with faults, in packets.
    pub(super) fn capture(&self) -> PathBuf {
        self.folder.join("ours.pcapng")
    }

    /// Waits until a server is ready at a side, or until it has ended.
    pub(super) fn await_server(
        &self,
        side: Side,
        ready: Ready,
        port: u16,
        server: &mut Running,
    ) -> Outcome {
        let there = match side {
            Side::Kernel => Some(start_in_guest(&agent::wait_for(ready, port))?),
            Side::Ours => None,
        };
        let is_ready = || match &there {
            Some(wait) => wait.has_ended(),
            None => ready.is_reached(Side::Ours, port),
        };
        while !is_ready() {
            if server.has_ended() {
                return Err(Failure::Failed("the server ends before it is ready".into()));
            }
            park_timeout(PAUSE);
        }
        Ok(())
    }
}

/// A file of ours as the guest sees it, wherever it is.
pub(super) fn in_guest(path: &Path) -> String {
    format!("/run/host{}", path.display())
}

/// Runs a command in the guest to its end.
pub(super) fn run_in_guest(words: &[String]) -> Outcome<End> {
    Running::Guest(start_in_guest(words)?).finish(COMMAND_LIMIT)
}

pub(super) fn start_in_guest(words: &[String]) -> Outcome<Remote> {
    let remote = Remote::start(words).map_err(|e| failed("the guest", e))?;
    remote.ok_or_else(|| Failure::Failed("the guest does not answer".into()))
}

fn start_qemu(image: &Image, folder: &Path) -> Outcome<Child> {
    let log = File::create(folder.join("qemu.log")).map_err(|e| failed(folder, e))?;
    let mut qemu = qemu(image, &folder.join(CONSOLE))?;
    qemu.stdin(Stdio::null()).stderr(log).spawn().map_err(|e| failed("qemu", e))
}

fn qemu(image: &Image, console: &Path) -> Outcome<Command> {
    let own = env::current_exe().map_err(|e| failed("this program", e))?;
    let (own, port) = (own.display(), agent::PORT);
    let mut qemu = Command::new("qemu-system-x86_64");
    // Plain emulation works everywhere. KVM may be there and yet hang where this machine is itself
    // a guest.
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024"]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    qemu.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
    // The cycle counter of the processor runs on while the guest waits for a processor of a busy
    // host. A guest that calibrated its clock by it then would have a clock, and timeouts, many
    // times too fast.
    qemu.arg("-append").arg(format!(
        "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off nokaslr tsc=unstable \
         agent={own} manage={MANAGED}/24 address={GUEST}/24 address6={GUEST6}/64 mtu={MTU} \
         driver={}",
        image.driver.name()
    ));
    qemu.args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    qemu.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    qemu.args(["-netdev", &format!("tap,id=cable,ifname={CABLE},script=no,downscript=no")]);
    qemu.args(["-device", &format!("virtio-net-pci,netdev=cable,romfile=,{PLAIN}")]);
    let forward = format!("hostfwd=tcp:127.0.0.1:{port}-{MANAGED}:{port}");
    let net = "user,id=manage,restrict=on,ipv6=off,net=192.168.231.0/24";
    qemu.args(["-netdev", &format!("{net},{forward}")]);
    qemu.args(["-device", "virtio-net-pci,netdev=manage,romfile="]);
    Ok(qemu)
}

/// One of the two ends of the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The guest, with the kernel's driver.
    Kernel,
    /// Here, with feroce.
    Ours,
}

impl Side {
    pub(super) fn address(self, network: Network) -> &'static str {
        match (self, network) {
            (Self::Kernel, Network::V4) => GUEST,
            (Self::Kernel, Network::V6) => GUEST6,
            (Self::Ours, Network::V4) => OURS,
            (Self::Ours, Network::V6) => OURS6,
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Kernel => Self::Ours,
            Self::Ours => Self::Kernel,
        }
    }
}

/// A command that has been started at a side.
#[derive(Debug)]
pub(super) enum Running {
    Guest(Remote),
    Here { child: Child, output: PathBuf },
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) output: String,
    pub(super) status: String,
}

impl End {
    pub(super) fn is_success(&self) -> bool {
        self.status == ExitStatus::default().to_string()
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.status, self.output)
    }
}

impl Running {
    fn has_ended(&mut self) -> bool {
        match self {
            Self::Guest(remote) => remote.has_ended(),
            Self::Here { child, .. } => child.try_wait().is_ok_and(|status| status.is_some()),
        }
    }

    /// Ends a command that would not do so by itself.
    pub(super) fn stop(self) -> Outcome<End> {
        self.finish(PAUSE)
    }

    /// Waits for the end, but no longer than `limit`; then the command is ended.
    pub(super) fn finish(self, limit: Duration) -> Outcome<End> {
        match self {
            Self::Guest(remote) => {
                let end = remote.finish(limit).map_err(|e| failed("the guest", e))?;
                let (output, status) = end.unwrap_or_else(|| (String::new(), "hangs".to_owned()));
                Ok(End { output, status })
            }
            Self::Here { mut child, output } => {
                let limit = deadline(limit);
                let status = loop {
                    match child.try_wait().map_err(|e| failed("a command", e))? {
                        Some(status) => break status.to_string(),
                        None if is_past(limit) => break "hangs".to_owned(),
                        None => park_timeout(PAUSE),
                    }
                };
                // `timeout` passes this on; if it has ended, the signal is lost.
                let _ =
                    Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
                child.wait().map_err(|e| failed("a command", e))?;
                let output = fs::read(&output).map_err(|e| failed(&output, e))?;
                Ok(End { output: String::from_utf8_lossy(&output).into_owned(), status })
            }
        }
    }
}
