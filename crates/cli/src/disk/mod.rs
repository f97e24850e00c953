//! `feroce disk`: remote disks, served and used.

mod args;
mod serve;

use std::fs::File;
use std::io::{Read, Write, stdin, stdout};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use anyhow::{Context as _, bail, ensure};
use feroce::cm::Manager;
use feroce_nvme::wire::Nqn;
use feroce_nvme::{Host, HostOptions, Namespace as _, RemoteNamespace, discover};
use serde_json::json;

pub(crate) use args::Command;
use args::{DiscoverArgs, DiskArgs, HostArgs, LsArgs, ReadArgs, WriteArgs};

/// Bytes that are read or written at a time.
const CHUNK: usize = 1 << 20;

/// Runs a command.
pub(crate) fn run(command: &Command, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::run(args, json)?,
        Command::Discover(args) => block_on(list_subsystems(args, json))?,
        Command::Ls(args) => block_on(list_disks(args, json))?,
        Command::Read(args) => block_on(read(args))?,
        Command::Write(args) => block_on(write(args, json))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
            return result;
        }
        std::thread::park();
    }
}

fn options(args: &HostArgs) -> HostOptions {
    let usual = HostOptions::default();
    let host = args.host_nqn.clone().unwrap_or_else(|| usual.host.clone());
    HostOptions { host, ..usual }
}

fn asked(at: SocketAddr) -> impl Fn() -> String {
    move || format!("cannot ask the target at {at}")
}

async fn list_subsystems(args: &DiscoverArgs, json: bool) -> anyhow::Result<()> {
    let found = discover(&Manager::new(), args.address, &options(&args.host)).await;
    for entry in found.with_context(asked(args.address))? {
        if json {
            let (nqn, address, service) = (entry.subsystem, entry.address, entry.service);
            println!("{}", json!({ "nqn": nqn, "address": address, "service": service }));
        } else {
            println!("{}  {} port {}", entry.subsystem, entry.address, entry.service);
        }
    }
    Ok(())
}

async fn list_disks(args: &LsArgs, json: bool) -> anyhow::Result<()> {
    let (manager, options) = (Manager::new(), options(&args.host));
    let found = discover(&manager, args.address, &options).await;
    for entry in found.with_context(asked(args.address))? {
        let nqn: Nqn = entry.subsystem.parse()?;
        let at = entry.socket_addr().unwrap_or(args.address);
        let host = Host::connect(&manager, at, &nqn, &options).await;
        let host = host.with_context(|| format!("cannot connect to {nqn} at {at}"))?;
        for nsid in host.namespaces().await? {
            let disk = host.namespace(nsid).await?;
            let (blocks, size, read_only) = (disk.blocks(), disk.block_size(), disk.is_read_only());
            let bytes = blocks.saturating_mul(size.into());
            if json {
                let line = json!({
                    "nqn": nqn.as_str(), "disk": nsid, "bytes": bytes, "block": size,
                    "read_only": read_only, "model": host.identity().model,
                });
                println!("{line}");
            } else {
                let how = if read_only { ", read only" } else { "" };
                println!("{nqn}  disk {nsid}: {bytes} bytes in blocks of {size}{how}");
            }
        }
        host.disconnect().await?;
    }
    Ok(())
}

/// Connects to the disk that the arguments name.
async fn open(args: &DiskArgs) -> anyhow::Result<(Host, RemoteNamespace)> {
    let (manager, options) = (Manager::new(), options(&args.host));
    let nqn = match &args.nqn {
        Some(nqn) => nqn.clone(),
        None => {
            let found = discover(&manager, args.address, &options).await;
            let found = found.with_context(asked(args.address))?;
            match &found[..] {
                [] => bail!("the target at {} has no disks for this host", args.address),
                [only] => only.subsystem.parse()?,
                all => {
                    let names: Vec<&str> = all.iter().map(|e| e.subsystem.as_str()).collect();
                    bail!("the target has several subsystems: --nqn {}", names.join(" or "));
                }
            }
        }
    };
    let host = Host::connect(&manager, args.address, &nqn, &options).await;
    let host = host.with_context(|| format!("cannot connect to {nqn} at {}", args.address))?;
    let disk = host.namespace(args.disk).await;
    let disk = disk.with_context(|| format!("cannot use disk {}", args.disk))?;
    let block = u64::from(disk.block_size());
    ensure!(
        args.offset.is_multiple_of(block),
        "--offset: not a multiple of {block}, the bytes of a block"
    );
    Ok((host, disk))
}

async fn read(args: &ReadArgs) -> anyhow::Result<()> {
    let (host, disk) = open(&args.disk).await?;
    let block = u64::from(disk.block_size());
    let (blocks, first) = (disk.blocks(), args.disk.offset / block);
    let most = blocks.saturating_sub(first).saturating_mul(block);
    let length = args.length.unwrap_or(most);
    ensure!(
        length.is_multiple_of(block),
        "--length: not a multiple of {block}, the bytes of a block"
    );
    ensure!(length <= most, "the disk ends {most} bytes behind the offset");
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => {
            let file = File::create(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => Box::new(stdout().lock()),
    };
    let (mut lba, mut left) = (first, length);
    let mut bytes = vec![0; CHUNK];
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK);
        disk.read(lba, &mut bytes[..now]).await.context("cannot read the disk")?;
        out.write_all(&bytes[..now]).context("cannot write the output")?;
        (lba, left) = (lba + now as u64 / block, left - now as u64);
    }
    out.flush().context("cannot write the output")?;
    drop(disk);
    host.disconnect().await?;
    Ok(())
}

async fn write(args: &WriteArgs, json: bool) -> anyhow::Result<()> {
    let mut from: Box<dyn Read> = match &args.file {
        Some(path) => {
            let file = File::open(path);
            Box::new(file.with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => Box::new(stdin().lock()),
    };
    let (host, disk) = open(&args.disk).await?;
    let block = u64::from(disk.block_size());
    let mut lba = args.disk.offset / block;
    let (mut bytes, mut total) = (Vec::new(), 0);
    loop {
        bytes.clear();
        let found = from.by_ref().take(CHUNK as u64).read_to_end(&mut bytes);
        let found = found.context("cannot read the input")? as u64;
        if found == 0 {
            break;
        }
        ensure!(
            found.is_multiple_of(block),
            "the input has {} bytes, not a multiple of {block}, the bytes of a block",
            total + found
        );
        disk.write(lba, &bytes).await.context("cannot write the disk")?;
        (lba, total) = (lba + found / block, total + found);
    }
    disk.flush().await.context("cannot flush the disk")?;
    drop(disk);
    host.disconnect().await?;
    if json {
        println!("{}", json!({ "bytes": total }));
    }
    Ok(())
}
