//! `feroce disk`: remote disks, served and used.

mod args;
mod bench;
mod executor;
mod load;
mod open;
mod report;
mod secrets;
mod serve;
mod stat;

use std::fs::File;
use std::io::{Read, Write, stdin, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::cm::Manager;
use feroce_nvme::wire::Nqn;
use feroce_nvme::{Host, HostOptions, Namespace as _, RemoteNamespace, Secret, discover};
use serde_json::json;

pub(crate) use args::Command;
use args::{DiscoverArgs, HostArgs, LsArgs, ReadArgs, WriteArgs};
use executor::block_on;
use open::OpenDisk;

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
        Command::Bench(args) => block_on(bench::run(args, json))?,
        Command::Stat(args) => block_on(stat::run(args, json))?,
        Command::Secret(_) => println!("{}", Secret::random().to_text()),
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &HostArgs) -> anyhow::Result<HostOptions> {
    let usual = HostOptions::default();
    let host = args.host_nqn.clone().unwrap_or_else(|| usual.host.clone());
    let secrets = args.secret.as_deref().map(secrets::of_host).transpose()?;
    let (secret, subsystem_secret) = secrets.unzip();
    Ok(HostOptions { host, secret, subsystem_secret: subsystem_secret.flatten(), ..usual })
}

fn asked(at: SocketAddr) -> impl Fn() -> String {
    move || format!("cannot ask the target at {at}")
}

async fn list_subsystems(args: &DiscoverArgs, json: bool) -> anyhow::Result<()> {
    let found = discover(&Manager::new(), args.address, &options(&args.host)?).await;
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
    let (manager, options) = (Manager::new(), options(&args.host)?);
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

async fn read(args: &ReadArgs) -> anyhow::Result<()> {
    let open = OpenDisk::open(&args.disk).await?;
    open.explain(read_from(open.disk(), args).await)?;
    open.close().await
}

async fn read_from(disk: &RemoteNamespace, args: &ReadArgs) -> anyhow::Result<()> {
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
    out.flush().context("cannot write the output")
}

async fn write(args: &WriteArgs, json: bool) -> anyhow::Result<()> {
    let mut from: Box<dyn Read> = match &args.file {
        Some(path) => {
            let file = File::open(path);
            Box::new(file.with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => Box::new(stdin().lock()),
    };
    let open = OpenDisk::open(&args.disk).await?;
    let total = open.explain(write_to(open.disk(), args, &mut from).await)?;
    open.close().await?;
    if json {
        println!("{}", json!({ "bytes": total }));
    }
    Ok(())
}

async fn write_to(
    disk: &RemoteNamespace,
    args: &WriteArgs,
    from: &mut impl Read,
) -> anyhow::Result<u64> {
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
    Ok(total)
}
