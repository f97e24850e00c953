//! A host and a target of this crate.

use std::net::SocketAddr;
use std::sync::Arc;

use feroce::cm::Manager;
use feroce::{Device, Region};
use feroce_nvme::wire::{Nqn, Status};
use feroce_nvme::{
    AuthFailure, DirectNamespace, FileNamespace, Host, HostError, HostOptions, Io, MemoryNamespace,
    Namespace, Secret, Subsystem, Target, discover,
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) fn manager(ip: &str) -> Result<Manager> {
    Ok(Manager::with([Device::at([ip.parse()?]).open()?])?)
}

pub(crate) fn nqn(name: &str) -> Nqn {
    format!("nqn.2024-01.com.example:{name}").parse().expect("a name")
}

/// Serves subsystems in a task of the test.
pub(crate) fn serve(ip: &str, subsystems: Vec<Subsystem>) -> Result<SocketAddr> {
    let target = Target::bind(&manager(ip)?, SocketAddr::new(ip.parse()?, 0), subsystems)?;
    let at = target.local_addr();
    tokio::spawn(async move { drop(target.serve().await) });
    Ok(at)
}

pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(byte).take(len).collect()
}

#[tokio::test]
async fn blocks_are_written_and_read() -> Result<()> {
    write_and_read("127.32.1.1", MemoryNamespace::new(4096)).await
}

#[tokio::test]
async fn blocks_move_to_and_from_memory_without_a_copy() -> Result<()> {
    write_and_read("127.32.15.1", DirectNamespace::new(4096).ok_or("no memory")?).await?;
    // A disk that refuses to copy.
    let memory = Region::alloc(64 * 512)?;
    let disks = Subsystem::new(nqn("direct")).disk(Uncopied(Arc::clone(&memory)));
    let at = serve("127.32.16.1", vec![disks])?;
    let options = HostOptions::default();
    let host = Host::connect(&manager("127.32.16.2")?, at, &nqn("direct"), &options).await?;
    let disk = host.namespace(1).await?;
    let data = pattern(16 * 512, 5);
    disk.write(8, &data).await?;
    let mut found = vec![0; data.len()];
    memory.read_at(8 * 512, &mut found)?;
    assert_eq!(found, data);
    memory.write_at(8 * 512, &[3; 512])?;
    disk.read(8, &mut found).await?;
    assert_eq!((&found[..512], &found[512..]), (&[3; 512][..], &data[512..]));
    // What is in the capsule is there already, and is copied.
    assert_eq!(disk.write(0, &[1; 512]).await, Err(Status::INTERNAL));
    Ok(())
}

/// A disk in memory that nothing is copied from or to.
#[derive(Debug)]
struct Uncopied(Arc<Region>);

impl Namespace for Uncopied {
    fn blocks(&self) -> u64 {
        self.0.len() as u64 / 512
    }

    fn block_size(&self) -> u32 {
        512
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        Some(&self.0)
    }

    fn read<'a>(&'a self, _: u64, _: &'a mut [u8]) -> Io<'a> {
        Box::pin(async { Err(Status::INTERNAL) })
    }

    fn write<'a>(&'a self, _: u64, _: &'a [u8]) -> Io<'a> {
        Box::pin(async { Err(Status::INTERNAL) })
    }

    fn flush(&self) -> Io<'_> {
        Box::pin(async { Ok(()) })
    }
}

async fn write_and_read(ip: &str, disk: impl Namespace + 'static) -> Result<()> {
    let disks = Subsystem::new(nqn("blocks")).disk(disk).disk(MemoryNamespace::new(100));
    let at = serve(ip, vec![disks])?;
    let options = HostOptions { queues: 3, ..HostOptions::default() };
    let here = ip.replace(".1.1", ".1.2").replace(".15.1", ".15.2");
    let host = Host::connect(&manager(&here)?, at, &nqn("blocks"), &options).await?;
    assert_eq!((host.queues(), host.namespaces().await?), (3, vec![1, 2]));
    assert_eq!(host.identity().model, "feroce disk");
    let disk = host.namespace(1).await?;
    assert_eq!((disk.blocks(), disk.block_size()), (4096, 512));
    // In the capsule, by one READ, and in several commands.
    for (i, blocks) in [1, 8, 9, 256, 700].into_iter().enumerate() {
        let (lba, data) = (i as u64 * 800, pattern(blocks * 512, i as u64));
        disk.write(lba, &data).await?;
        let mut found = vec![0; data.len()];
        disk.read(lba, &mut found).await?;
        assert_eq!(found, data, "{blocks} blocks");
        disk.compare(lba, &data).await?;
        found[blocks * 512 - 1] ^= 1;
        assert_eq!(disk.compare(lba, &found).await, Err(Status::COMPARE.do_not_retry()));
    }
    disk.flush().await?;
    disk.write_zeroes(800, 4).await?;
    disk.deallocate(804, 2).await?;
    let mut found = vec![1; 8 * 512];
    disk.read(800, &mut found).await?;
    assert!(found[..6 * 512].iter().all(|&byte| byte == 0));
    assert_eq!(found[6 * 512..], pattern(8 * 512, 1)[6 * 512..]);
    let mut block = [0; 512];
    assert_eq!(disk.read(4096, &mut block).await, Err(Status::LBA_RANGE.do_not_retry()));
    assert_eq!(disk.write(u64::MAX, &block).await, Err(Status::LBA_RANGE.do_not_retry()));
    assert!(matches!(
        host.namespace(3).await,
        Err(HostError::Command(status)) if status == Status::INVALID_NAMESPACE.do_not_retry()
    ));
    host.keep_alive().await?;
    drop(disk);
    host.disconnect().await?;
    Ok(())
}

#[tokio::test]
async fn discovery_shows_what_a_host_may_use() -> Result<()> {
    let options = HostOptions::default();
    let open = Subsystem::new(nqn("open")).disk(MemoryNamespace::new(8));
    let mine =
        Subsystem::new(nqn("mine")).disk(MemoryNamespace::new(8)).allow(options.host.clone());
    let other = Subsystem::new(nqn("other")).disk(MemoryNamespace::new(8)).allow(nqn("host"));
    let at = serve("127.32.3.1", vec![open, mine, other])?;
    let here = manager("127.32.3.2")?;
    let found = discover(&here, at, &options).await?;
    let names: Vec<String> = found.iter().map(|entry| entry.subsystem.clone()).collect();
    assert_eq!(names, [nqn("open").to_string(), nqn("mine").to_string()]);
    assert!(found.iter().all(|entry| entry.socket_addr() == Some(at)));
    for (name, status) in [("other", Status::CONNECT_HOST), ("none", Status::CONNECT_PARAMETERS)] {
        let refused = Host::connect(&here, at, &nqn(name), &options).await;
        let Err(HostError::Refused(found)) = refused else { panic!("{name}: {refused:?}") };
        assert_eq!(found, status.do_not_retry());
    }
    // The target is as it was.
    Host::connect(&here, at, &nqn("mine"), &options).await?.disconnect().await?;
    Ok(())
}

#[tokio::test]
async fn files_keep_what_was_written_and_disks_stack() -> Result<()> {
    let path = std::env::temp_dir().join(format!("feroce-nvme-{}.img", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20])?;
    let file = FileNamespace::open(&path)?;
    assert!(FileNamespace::open(&path).is_err(), "two disks in one file");
    let at = serve("127.32.4.1", vec![Subsystem::new(nqn("file")).disk(file)])?;
    let middle = manager("127.32.4.2")?;
    let options = HostOptions::default();
    let lower = Host::connect(&middle, at, &nqn("file"), &options).await?;
    // The disk of the target, served once more.
    let again = Subsystem::new(nqn("again")).disk(lower.namespace(1).await?);
    let target = Target::bind(&middle, "127.32.4.2:0".parse()?, [again])?;
    let at = target.local_addr();
    tokio::spawn(async move { drop(target.serve().await) });
    let host = Host::connect(&manager("127.32.4.3")?, at, &nqn("again"), &options).await?;
    let disk = host.namespace(1).await?;
    let data = pattern(100 * 512, 9);
    disk.write(7, &data).await?;
    disk.write_zeroes(10, 3).await?;
    disk.deallocate(20, 3).await?;
    disk.flush().await?;
    let mut expected = data;
    expected[3 * 512..6 * 512].fill(0);
    expected[13 * 512..16 * 512].fill(0);
    let found = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    assert_eq!(found[7 * 512..107 * 512], expected);
    assert_eq!(found.len(), 1 << 20);
    Ok(())
}

#[tokio::test]
async fn a_read_only_file_is_not_written() -> Result<()> {
    let path = std::env::temp_dir().join(format!("feroce-nvme-ro-{}.img", std::process::id()));
    std::fs::write(&path, pattern(4096, 3))?;
    let file = FileNamespace::open_read_only(&path)?;
    std::fs::remove_file(&path)?;
    let at = serve("127.32.5.1", vec![Subsystem::new(nqn("ro")).disk(file)])?;
    let options = HostOptions::default();
    let host = Host::connect(&manager("127.32.5.2")?, at, &nqn("ro"), &options).await?;
    let disk = host.namespace(1).await?;
    assert!(disk.is_read_only());
    let mut found = vec![0; 4096];
    disk.read(0, &mut found).await?;
    assert_eq!(found, pattern(4096, 3));
    let protected = Err(Status::WRITE_PROTECTED.do_not_retry());
    assert_eq!(disk.write(0, &found).await, protected);
    assert_eq!(disk.write_zeroes(0, 1).await, protected);
    Ok(())
}

#[tokio::test]
async fn dropping_a_call_leaves_the_queue_usable() -> Result<()> {
    let disks = Subsystem::new(nqn("drop")).disk(MemoryNamespace::new(64));
    let at = serve("127.32.6.1", vec![disks])?;
    let options = HostOptions { depth: 2, ..HostOptions::default() };
    let host = Host::connect(&manager("127.32.6.2")?, at, &nqn("drop"), &options).await?;
    let disk = host.namespace(1).await?;
    for _ in 0..10 {
        let mut flush = disk.flush();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = flush.as_mut().poll(&mut cx);
        drop(flush);
        // The queue has one place, which is free when the target has answered.
        disk.write(0, &[1; 512]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn commands_wait_for_authentication() -> Result<()> {
    let options = HostOptions { queues: 2, ..HostOptions::default() };
    let (secret, own) = (Secret::random(), Secret::random());
    let disks = Subsystem::new(nqn("auth"))
        .disk(MemoryNamespace::new(64))
        .authenticate(options.host.clone(), secret.clone(), Some(own.clone()))
        .allow(nqn("trusted"));
    let at = serve("127.32.7.1", vec![disks])?;
    let here = manager("127.32.7.2")?;
    let connect =
        async |options: &HostOptions| Host::connect(&here, at, &nqn("auth"), options).await;
    assert!(matches!(connect(&options).await, Err(HostError::NoSecret)));
    let known = HostOptions { secret: Some(secret), ..options.clone() };
    let both = HostOptions { subsystem_secret: Some(own.clone()), ..known.clone() };
    for options in [&known, &both] {
        let host = connect(options).await?;
        let disk = host.namespace(1).await?;
        disk.write(0, &[1; 512]).await?;
        drop(disk);
        host.disconnect().await?;
    }
    let wrong = HostOptions { secret: Some(own), ..options.clone() };
    let failed = connect(&wrong).await;
    assert!(matches!(failed, Err(HostError::Authentication(AuthFailure::Failed))), "{failed:?}");
    // A host without a secret is believed its name.
    let trusted = HostOptions { host: nqn("trusted"), ..options };
    connect(&trusted).await?.disconnect().await?;
    Ok(())
}
