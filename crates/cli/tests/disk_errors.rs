//! Files that cannot be read or written: the host gets a status, and its connection lives on.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

use feroce::cm::Manager;
use feroce_nvme::wire::Status;
use feroce_nvme::{Host, HostOptions, Namespace as _};

use crate::disk::Target;

const FEROCE: &str = env!("CARGO_BIN_EXE_feroce");

/// Bytes of a disk.
const SIZE: u64 = 1 << 20;

/// Bytes that are written at a time, and their blocks.
const CHUNK: usize = 16 << 10;
const CHUNK_BLOCKS: u64 = CHUNK as u64 / 512;

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("feroce-errors-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a name")
}

/// Runs a script that serves `FILE` at an address by `$serve FILE`.
fn served(wrapper: &[&str], script: &str, at: &str) -> Target {
    let serve = format!("serve=\"exec {FEROCE} disk serve --json --listen {at}\"; {script}");
    let mut words = wrapper.iter().copied().chain(["sh", "-c", &serve]);
    let mut command = Command::new(words.next().expect("a program"));
    Target::start_by(command.args(words))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}

async fn connect(target: &Target) -> Host {
    let nqn = "nqn.2026-11.feroce:disks".parse().expect("a name");
    let at = target.address.parse().expect("an address");
    let options = HostOptions { queues: 2, ..HostOptions::default() };
    Host::connect(&Manager::new(), at, &nqn, &options).await.expect("connected")
}

/// Writes everything; `full` is the status of the writes for which there is no room.
async fn fill_up(target: &Target, full: Status) {
    let host = connect(target).await;
    let disk = host.namespace(1).await.expect("a disk");
    let mut written = Vec::new();
    for chunk in 0..SIZE / CHUNK as u64 {
        let data = [chunk as u8 + 1; CHUNK];
        match disk.write(chunk * CHUNK_BLOCKS, &data).await {
            Ok(()) => written.push(chunk),
            Err(status) => assert_eq!(status, full, "chunk {chunk}"),
        }
    }
    let all = SIZE / CHUNK as u64;
    assert!(!written.is_empty() && (written.len() as u64) < all, "{} of {all}", written.len());
    // What was acknowledged is there, on the same connection.
    for &chunk in &written {
        let mut found = vec![0; CHUNK];
        disk.read(chunk * CHUNK_BLOCKS, &mut found).await.expect("read");
        assert!(found.iter().all(|&byte| byte == chunk as u8 + 1), "chunk {chunk}");
    }
    disk.flush().await.expect("flushed");
    disk.write(0, &[9; 512]).await.expect("written where there is room");
    host.keep_alive().await.expect("alive");
}

#[test]
fn a_full_file_system_is_capacity_exceeded() {
    let folder = folder("full");
    let at = name(&folder);
    let script = format!(
        "mount -t tmpfs -o size=256k tmpfs {at} && truncate -s {SIZE} {at}/disk && $serve {at}/disk"
    );
    let target = served(&["unshare", "-rm"], &script, "127.33.9.1:0");
    block_on(async {
        fill_up(&target, Status::CAPACITY.do_not_retry()).await;
        // Blocks that are given back make room.
        let host = connect(&target).await;
        let disk = host.namespace(1).await.expect("a disk");
        let last = SIZE / 512 - CHUNK_BLOCKS;
        let full = Err(Status::CAPACITY.do_not_retry());
        assert_eq!(disk.write(last, &[1; CHUNK]).await, full);
        assert_eq!(disk.write_zeroes(last, CHUNK_BLOCKS).await, full);
        disk.deallocate(0, 2 * CHUNK_BLOCKS).await.expect("given back");
        disk.write(last, &[1; CHUNK]).await.expect("written");
    });
    drop(target);
    std::fs::remove_dir(folder).expect("removed");
}

#[test]
fn a_limit_on_files_is_capacity_exceeded() {
    let folder = folder("limit");
    let at = name(&folder);
    // 128 times 512 bytes; sharing addresses with other processes needs longer files.
    let limit = "ulimit -f 128; export FEROCE_SHARED=off";
    let script = format!("truncate -s {SIZE} {at}/disk; {limit}; $serve {at}/disk");
    let target = served(&[], &script, "127.33.9.2:0");
    block_on(fill_up(&target, Status::CAPACITY.do_not_retry()));
    drop(target);
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_file_that_was_shortened_is_an_unrecovered_read_error() {
    let folder = folder("short");
    let image = folder.join("disk");
    std::fs::write(&image, vec![7; SIZE as usize]).expect("a file");
    let target = served(&[], &format!("$serve {}", name(&image)), "127.33.9.3:0");
    block_on(async {
        let host = connect(&target).await;
        let disk = host.namespace(1).await.expect("a disk");
        let file = OpenOptions::new().write(true).open(&image).expect("the file");
        file.set_len(SIZE / 2).expect("a shorter file");
        let mut found = vec![0; CHUNK];
        let last = SIZE / 512 - CHUNK_BLOCKS;
        assert_eq!(disk.read(last, &mut found).await, Err(Status::READ_ERROR));
        // Half of it is there.
        let across = SIZE / 2 / 512 - CHUNK_BLOCKS / 2;
        assert_eq!(disk.read(across, &mut found).await, Err(Status::READ_ERROR));
        assert_eq!(disk.compare(last, &found).await, Err(Status::READ_ERROR));
        disk.read(0, &mut found).await.expect("read");
        assert_eq!(found, [7; CHUNK]);
        assert_eq!(host.health().await.expect("figures").media_errors, 3);
        // A write makes the file longer again.
        disk.write(last, &[8; CHUNK]).await.expect("written");
        disk.read(last, &mut found).await.expect("read");
        assert_eq!(found, [8; CHUNK]);
    });
    drop(target);
    std::fs::remove_dir_all(folder).expect("removed");
}

/// A block device whose sectors cannot be read: a loop device of a file that was shortened. Only
/// root can make one, and not everywhere.
#[test]
fn a_device_that_fails_is_an_unrecovered_read_error() {
    let folder = folder("device");
    let image = folder.join("image");
    std::fs::write(&image, vec![7; SIZE as usize]).expect("a file");
    let made = Command::new("losetup").args(["--show", "-f", name(&image)]).output();
    let device = made.ok().filter(|out| out.status.success());
    let device = device.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    if let Some(device) = device {
        let file = OpenOptions::new().write(true).open(&image).expect("the file");
        file.set_len(SIZE / 2).expect("a shorter file");
        let target = served(&[], &format!("$serve {device}"), "127.33.9.4:0");
        block_on(async {
            let host = connect(&target).await;
            let disk = host.namespace(1).await.expect("a disk");
            assert_eq!(disk.blocks(), SIZE / 512);
            let mut found = vec![0; CHUNK];
            let last = SIZE / 512 - CHUNK_BLOCKS;
            assert_eq!(disk.read(last, &mut found).await, Err(Status::READ_ERROR));
            disk.read(0, &mut found).await.expect("read");
            assert_eq!(found, [7; CHUNK]);
            disk.write(0, &[8; CHUNK]).await.expect("written");
            disk.flush().await.expect("flushed");
            assert_eq!(host.health().await.expect("figures").media_errors, 1);
        });
        drop(target);
        let removed = Command::new("losetup").args(["-d", &device]).status();
        assert!(removed.expect("losetup starts").success());
    } else {
        eprintln!("SKIPPED: losetup makes no loop device here");
    }
    std::fs::remove_dir_all(folder).expect("removed");
}
