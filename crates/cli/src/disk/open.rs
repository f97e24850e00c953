//! A disk of a target, as the arguments name it.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use feroce::cm::Manager;
use feroce_nvme::wire::Nqn;
use feroce_nvme::{Host, HostOptions, Multipath, Namespace as _, RemoteNamespace, discover};

use super::args::DiskArgs;
use super::executor::{block_on, sleep};
use super::{asked, options};

/// How long a target may be silent, where the command connects again.
const KEEP_ALIVE_MS: u32 = 5000;

/// An open disk, and what it needs to be.
#[derive(Debug)]
pub(super) struct OpenDisk {
    disk: RemoteNamespace,
    by: By,
}

#[derive(Debug)]
enum By {
    Host(Box<Host>),
    /// Paths, and the thread that keeps them connected while this one waits for its input.
    Paths(Multipath, JoinHandle<()>),
}

impl OpenDisk {
    /// Connects.
    pub(super) async fn open(args: &DiskArgs) -> anyhow::Result<Self> {
        let usual = HostOptions::default();
        Self::open_with(args, usual.queues, usual.depth).await
    }

    /// Connects with so many queues of so many entries.
    pub(super) async fn open_with(
        args: &DiskArgs,
        queues: u16,
        depth: u16,
    ) -> anyhow::Result<Self> {
        let manager = Manager::new();
        let options = HostOptions { queues, depth, ..options(&args.host)? };
        let nqn = subsystem(&manager, args.address, args.nqn.as_ref(), &options).await?;
        let number = args.disk;
        let lacks = || format!("cannot use disk {number}");
        let this = if args.path.is_empty() && args.patience == 0 {
            let host = Host::connect(&manager, args.address, &nqn, &options).await;
            let host =
                host.with_context(|| format!("cannot connect to {nqn} at {}", args.address))?;
            let disk = host.namespace(number).await.with_context(lacks)?;
            Self { disk, by: By::Host(Box::new(host)) }
        } else {
            let patience = Duration::from_secs(args.patience.into());
            let options = HostOptions { keep_alive_ms: KEEP_ALIVE_MS, patience, ..options };
            let all: Vec<_> = [args.address].iter().chain(&args.path).copied().collect();
            let (paths, running) = Multipath::new(&manager, &all, &nqn, &options, sleep);
            let run = || drop(block_on(running));
            let running = thread::Builder::new().name("disk-paths".to_owned()).spawn(run)?;
            let disk = paths.namespace(number).await;
            let disk = disk.with_context(lacks).with_context(|| failures(&paths))?;
            Self { disk, by: By::Paths(paths, running) }
        };
        let block = u64::from(this.disk.block_size());
        ensure!(
            args.offset.is_multiple_of(block),
            "--offset: not a multiple of {block}, the bytes of a block"
        );
        Ok(this)
    }

    /// The disk.
    pub(super) fn disk(&self) -> &RemoteNamespace {
        &self.disk
    }

    /// Says of an error which paths are lost.
    pub(super) fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        match &self.by {
            By::Host(_) => result,
            By::Paths(paths, _) => result.with_context(|| failures(paths)),
        }
    }

    /// Disconnects.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        drop(self.disk);
        match self.by {
            By::Host(host) => host.disconnect().await?,
            By::Paths(paths, running) => {
                paths.disconnect();
                ensure!(running.join().is_ok(), "the thread of the paths has failed");
            }
        }
        Ok(())
    }
}

/// The subsystem that the arguments name, or the only one.
pub(super) async fn subsystem(
    manager: &Manager,
    at: SocketAddr,
    nqn: Option<&Nqn>,
    options: &HostOptions,
) -> anyhow::Result<Nqn> {
    if let Some(nqn) = nqn {
        return Ok(nqn.clone());
    }
    let found = discover(manager, at, options).await;
    let found = found.with_context(asked(at))?;
    match &found[..] {
        [] => bail!("the target at {at} has no disks for this host"),
        [only] => Ok(only.subsystem.parse()?),
        all => {
            let names: Vec<&str> = all.iter().map(|e| e.subsystem.as_str()).collect();
            bail!("the target has several subsystems: --nqn {}", names.join(" or "));
        }
    }
}

/// Why paths are not connected.
fn failures(paths: &Multipath) -> String {
    let failures = paths.paths().into_iter().filter_map(|path| {
        path.failure.map(|failure| format!("the path to {} is lost: {failure}", path.to))
    });
    failures.collect::<Vec<_>>().join("; ")
}
