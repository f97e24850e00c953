//! Two network namespaces with a cable (veth) between them, which end with this process.
//!
//! Only files that this process holds open refer to the namespaces, and the kernel kills the
//! processes in them when this process ends, so nothing has to be cleaned up, however it ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Uid;

/// Set where this program has started itself again as root of a user namespace.
const INSIDE: &str = "FEROCE_TEST_COMPARE_INSIDE";
/// The interface, in both namespaces.
pub(crate) const INTERFACE: &str = "wire";
/// The address of the client.
pub(crate) const CLIENT: &str = "10.9.0.1";
/// The address of the server.
pub(crate) const SERVER: &str = "10.9.0.2";
const MTU: u32 = 9000;

/// Which of the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Client,
    Server,
}

/// Where the two processes of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// At the two ends of the cable.
    Cable,
    /// Both at the end of the server: what they send each other stays on their host.
    Host,
}

/// The namespaces. Only the thread that made them may use them: another thread would not return to
/// its own namespace.
pub(crate) struct Cable {
    before: File,
    client: File,
    server: File,
}

impl Cable {
    /// Makes them. If that needs a user namespace, this program executes itself again inside one.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let before = current()?;
        if let Err(why) = unshare(CloneFlags::CLONE_NEWNET) {
            return Err(start_over(why));
        }
        let server = current()?;
        unshare(CloneFlags::CLONE_NEWNET).context("no second network namespace")?;
        let client = current()?;
        let cable = Self { before, client, server };
        let there = format!("/proc/{}/fd/{}", std::process::id(), cable.server.as_raw_fd());
        let pair = format!("link add {INTERFACE} mtu {MTU} type veth peer name {INTERFACE}");
        let made = ip(&format!("{pair} mtu {MTU} netns {there}"));
        setns(&cable.before, CloneFlags::CLONE_NEWNET).context("no way back")?;
        made?;
        cable.inside(End::Client, || configure(CLIENT))??;
        cable.inside(End::Server, || configure(SERVER))??;
        // Packets are dropped until the kernel has noticed that both ends are up.
        for end in [End::Client, End::Server] {
            cable.inside(end, wait_for_carrier)??;
        }
        Ok(cable)
    }

    /// Runs `f` with this thread where one of the processes of a table belongs. What it starts
    /// stays there.
    pub(crate) fn at<R>(&self, place: Place, end: End, f: impl FnOnce() -> R) -> anyhow::Result<R> {
        self.inside(if place == Place::Host { End::Server } else { end }, f)
    }

    /// Runs `f` with this thread in the namespace of one end.
    fn inside<R>(&self, end: End, f: impl FnOnce() -> R) -> anyhow::Result<R> {
        let namespace = match end {
            End::Client => &self.client,
            End::Server => &self.server,
        };
        setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter a namespace")?;
        let result = f();
        setns(&self.before, CloneFlags::CLONE_NEWNET).context("cannot leave a namespace")?;
        Ok(result)
    }
}

/// Replaces this process by itself as root of a user namespace. Returns only if that fails.
fn start_over(why: nix::Error) -> anyhow::Error {
    let hint = "run this as root, or allow user namespaces";
    if Uid::effective().is_root() || std::env::var_os(INSIDE).is_some() {
        return anyhow::anyhow!("no network namespaces ({why}): {hint}");
    }
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => return e.into(),
    };
    let mut again = Command::new("unshare");
    again.args(["-Urn", "--"]).arg(exe).args(std::env::args_os().skip(1)).env(INSIDE, "1");
    anyhow::anyhow!("no network namespaces ({why}; unshare: {}): {hint}", again.exec())
}

fn configure(address: &str) -> anyhow::Result<()> {
    ip("link set lo up")?;
    ip(&format!("link set {INTERFACE} up"))?;
    ip(&format!("addr add {address}/24 dev {INTERFACE}"))?;
    // The results of TCP must not depend on the congestion control of the machine, which may be
    // one for long paths.
    let route = format!("route replace 10.9.0.0/24 dev {INTERFACE} src {address}");
    ip(&format!("{route} congctl cubic")).or_else(|_| ip(&route))?;
    Ok(())
}

fn wait_for_carrier() -> anyhow::Result<()> {
    for _ in 0..1000 {
        if ip(&format!("link show {INTERFACE}"))?.contains("state UP") {
            return Ok(());
        }
    }
    bail!("the cable does not come up")
}

fn current() -> anyhow::Result<File> {
    File::open("/proc/thread-self/ns/net").context("no network namespaces in /proc")
}

/// Runs `ip` in the namespace of this thread and returns what it says.
fn ip(args: &str) -> anyhow::Result<String> {
    let output = Command::new("ip").args(args.split(' ')).output().context("cannot run `ip`")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {args}: {}", complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
