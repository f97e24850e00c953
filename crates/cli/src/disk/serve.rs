//! Serving disks.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use feroce::cm::Manager;
use feroce_nvme::{FileNamespace, MemoryNamespace, Namespace as _, Subsystem, Target};
use serde_json::json;

use super::args::ServeArgs;
use super::block_on;

/// How often the target looks for hosts that are silent.
const LOOK: Duration = Duration::from_secs(1);

/// Serves disks until the process is ended.
pub(super) fn run(args: &ServeArgs, json: bool) -> anyhow::Result<()> {
    let mut disks = Subsystem::new(args.nqn.clone());
    let mut sizes = Vec::new();
    for path in &args.file {
        let open = if args.read_only { FileNamespace::open_read_only } else { FileNamespace::open };
        let disk = open(path).with_context(|| format!("cannot serve {}", path.display()))?;
        sizes.push((path.display().to_string(), disk.blocks() * u64::from(disk.block_size())));
        disks = disks.disk(disk);
    }
    for &size in &args.memory {
        let disk = MemoryNamespace::new(size / 512);
        sizes.push(("memory".to_owned(), disk.blocks() * u64::from(disk.block_size())));
        disks = disks.disk(disk);
    }
    disks = args.allow.iter().cloned().fold(disks, Subsystem::allow);
    let target = Target::bind(&Manager::new(), args.listen, [disks]);
    let target = target.with_context(|| format!("cannot listen at {}", args.listen))?;
    let at = target.local_addr();
    if json {
        let disks: Vec<_> =
            sizes.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        let line = json!({ "nqn": args.nqn.as_str(), "address": at.to_string(), "disks": disks });
        println!("{line}");
    } else {
        for (number, (name, bytes)) in (1..).zip(&sizes) {
            println!("disk {number}: {name}, {bytes} bytes");
        }
        println!("serving {} at {at}; Ctrl-C ends it", args.nqn);
    }
    std::io::stdout().flush()?;
    let watch = target.watch();
    thread::Builder::new().name("disk-watch".to_owned()).spawn(move || {
        loop {
            #[expect(clippy::disallowed_methods, reason = "a thread of the command")]
            thread::sleep(LOOK);
            watch.expire();
        }
    })?;
    loop {
        let queue = block_on(target.accept())?;
        // Disks in files block their thread, so each queue has one.
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
