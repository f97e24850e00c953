//! Serving disks.

use std::io::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use feroce::cm::Manager;
use feroce_nvme::{
    DirectNamespace, FileNamespace, MemoryNamespace, Namespace as _, Subsystem, Target, Watch,
};
use serde_json::json;

use super::args::ServeArgs;
use super::executor::block_on;
use super::secrets;

/// How often the target looks for hosts that are silent.
const LOOK: Duration = Duration::from_secs(1);

/// Serves disks until the process is ended.
pub(super) fn run(args: &ServeArgs, json: bool) -> anyhow::Result<()> {
    let mut disks = Subsystem::new(args.nqn.clone());
    let mut sizes = Vec::new();
    for path in &args.file {
        let open = match args {
            ServeArgs { read_only: true, .. } => FileNamespace::open_read_only,
            ServeArgs { shared: true, .. } => FileNamespace::open_shared,
            _ => FileNamespace::open,
        };
        let disk = open(path).with_context(|| format!("cannot serve {}", path.display()))?;
        sizes.push((path.display().to_string(), disk.blocks() * u64::from(disk.block_size())));
        disks = disks.disk(disk);
    }
    for &size in &args.memory {
        sizes.push(("memory".to_owned(), size as u64 / 512 * 512));
        disks = if args.direct {
            let disk = DirectNamespace::new(size / 512);
            disks.disk(disk.with_context(|| format!("no memory for a disk of {size} bytes"))?)
        } else {
            disks.disk(MemoryNamespace::new(size / 512))
        };
    }
    disks = args.allow.iter().cloned().fold(disks, Subsystem::allow);
    if let Some(path) = &args.secrets {
        let entries = secrets::of_target(path)?;
        disks = entries
            .into_iter()
            .fold(disks, |disks, (host, secret, own)| disks.authenticate(host, secret, own));
    }
    let targets = listen(&args.listen, disks)?;
    let all: Vec<String> = targets.iter().map(|target| target.local_addr().to_string()).collect();
    if json {
        let disks: Vec<_> =
            sizes.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        let line = json!({
            "nqn": args.nqn.as_str(), "address": all.first(), "addresses": all, "disks": disks,
        });
        println!("{line}");
    } else {
        for (number, (name, bytes)) in (1..).zip(&sizes) {
            println!("disk {number}: {name}, {bytes} bytes");
        }
        println!("serving {} at {}; Ctrl-C ends it", args.nqn, all.join(" and "));
    }
    std::io::stdout().flush()?;
    let watch: Vec<_> = targets.first().map(Target::watch).into_iter().collect();
    thread::Builder::new().name("disk-watch".to_owned()).spawn(move || {
        loop {
            #[expect(clippy::disallowed_methods, reason = "a thread of the command")]
            thread::sleep(LOOK);
            watch.iter().for_each(Watch::expire);
        }
    })?;
    thread::scope(|scope| {
        let accepting: Vec<_> =
            targets.iter().map(|target| scope.spawn(move || accept(target))).collect();
        // None ends while its listener lasts.
        let mut ended = accepting.into_iter().map(|thread| thread.join());
        ended.try_for_each(|end| end.unwrap_or(Ok(())))
    })
}

/// Listens at all addresses.
fn listen(at: &[SocketAddr], disks: Subsystem) -> anyhow::Result<Vec<Target>> {
    let manager = Manager::new();
    let mut disks = Some(disks);
    let mut targets: Vec<Target> = Vec::new();
    for &at in at {
        let target = match targets.first() {
            Some(first) => first.bind_also(&manager, at),
            None => Target::bind(&manager, at, disks.take()),
        };
        targets.push(target.with_context(|| format!("cannot listen at {at}"))?);
    }
    Ok(targets)
}

/// Accepts queues of hosts, and serves each in a thread: disks in files block their thread.
fn accept(target: &Target) -> anyhow::Result<()> {
    loop {
        let queue = block_on(target.accept())?;
        let serve = move || {
            if let Err(e) = block_on(queue.serve()) {
                eprintln!("feroce: a host could not connect: {e}");
            }
        };
        if let Err(e) = thread::Builder::new().name("disk-queue".to_owned()).spawn(serve) {
            eprintln!("feroce: no thread for a queue of a host: {e}");
        }
    }
}
