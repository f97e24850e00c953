//! Paths that are lost and come back, in virtual time: the moments follow from seeds.

use std::sync::Arc;
use std::time::Duration;

use feroce::sim::{Fault, Host as Machine, World};
use feroce_nvme::wire::Status;
use feroce_nvme::{
    Host, HostError, HostOptions, MemoryNamespace, Multipath, Namespace as _, Subsystem, Target,
};

use crate::together::{Result, nqn, pattern};

const PORT: u16 = 4420;

/// Tasks, and how often each writes and reads its blocks.
const TASKS: u64 = 12;
const ROUNDS: u64 = 60;

async fn serve(machine: Machine, disks: Subsystem) -> Result<()> {
    let at = (machine.addr_of(machine.name()), PORT).into();
    Target::bind(&machine.manager()?, at, [disks])?.serve().await?;
    Ok(())
}

fn options() -> HostOptions {
    let patience = Duration::from_secs(60);
    HostOptions { keep_alive_ms: 200, patience, queues: 2, ..HostOptions::default() }
}

fn multipath(machine: &Machine, targets: &[&str], options: &HostOptions) -> Result<Multipath> {
    let paths: Vec<_> = targets.iter().map(|name| (machine.addr_of(name), PORT).into()).collect();
    let sleeper = machine.clone();
    let sleep = move |time| sleeper.sleep(time);
    let (host, running) =
        Multipath::new(&machine.manager()?, &paths, &nqn("paths"), options, sleep);
    drop(machine.spawn(running));
    Ok(host)
}

/// Every block holds what was written last, although targets crash and start again meanwhile.
async fn write_and_read(machine: Machine, targets: &'static [&'static str]) -> Result<()> {
    let host = multipath(&machine, targets, &options())?;
    let disk = Arc::new(host.namespace(1).await?);
    let tasks: Vec<_> = (0..TASKS)
        .map(|i| {
            let (disk, machine_of_task) = (Arc::clone(&disk), machine.clone());
            machine.spawn(async move {
                for round in 0..ROUNDS {
                    // In the capsule and beside it.
                    let data = pattern((1 + i as usize) * 1024, i * ROUNDS + round);
                    disk.write(i * 64, &data).await.expect("written");
                    disk.flush().await.expect("flushed");
                    machine_of_task.sleep(Duration::from_millis(20)).await;
                    let mut found = vec![0; data.len()];
                    disk.read(i * 64, &mut found).await.expect("read");
                    assert!(found == data, "task {i}, round {round}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    let connections: u64 = host.paths().iter().map(|path| path.connections).sum();
    assert!(connections > targets.len() as u64, "no path was connected again: {connections}");
    Ok(())
}

#[test]
fn a_host_connects_again_after_its_target_was_killed() {
    for seed in 0..3 {
        let mut world = World::new(seed).expect("a world");
        // The disk outlives the program that serves it, as a file does.
        let disks = Subsystem::new(nqn("paths")).disk(MemoryNamespace::new(4096));
        let target = world.server("target", move |machine| serve(machine, disks.clone()));
        world.host("host", |machine| write_and_read(machine, &["target"]));
        for i in 1..4 {
            let (at, pause) = (world.random(300_000), world.random(200_000));
            let at = Duration::from_micros(i * 600_000 + at);
            world.at(at, Fault::Crash(target));
            world.at(at + Duration::from_micros(pause), Fault::Restart(target));
        }
        world.run().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A target that starts again knows nothing of the controller that a host was about to add queues
/// to. It refuses them for good, which is no reason for the host not to connect anew.
#[test]
fn a_target_that_is_started_again_while_a_host_connects_is_used() {
    for moment in 0..12 {
        let mut world = World::new(moment).expect("a world");
        let disks = Subsystem::new(nqn("paths")).disk(MemoryNamespace::new(64));
        let target = world.server("target", move |machine| serve(machine, disks.clone()));
        world.host("host", |machine| async move {
            let options = HostOptions { queues: 8, ..options() };
            let host = multipath(&machine, &["target"], &options)?;
            let disk = host.namespace(1).await.map_err(|e| format!("{e}: {:?}", host.paths()))?;
            disk.write(0, &[1; 512]).await?;
            Ok::<(), Box<dyn std::error::Error>>(())
        });
        world.at(Duration::from_micros(moment * 50), Fault::Restart(target));
        world.run().unwrap_or_else(|e| panic!("moment {moment}: {e}"));
    }
}

#[test]
fn commands_take_another_path_when_one_is_lost() {
    for seed in 0..3 {
        let mut world = World::new(seed).expect("a world");
        let disks = Subsystem::new(nqn("paths")).disk(MemoryNamespace::new(4096));
        let of = |disks: &Subsystem| {
            let disks = disks.clone();
            move |machine| serve(machine, disks.clone())
        };
        let a = world.server("a", of(&disks));
        let b = world.server("b", of(&disks));
        world.host("host", |machine| write_and_read(machine, &["a", "b"]));
        // One of the two is always there.
        for (i, target) in [a, b, a].into_iter().enumerate() {
            let at = Duration::from_micros(i as u64 * 700_000 + world.random(300_000) + 20_000);
            world.at(at, Fault::Crash(target));
            world.at(at + Duration::from_millis(200), Fault::Restart(target));
        }
        world.run().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_disk_that_has_lost_its_bytes_is_another_disk() {
    let mut world = World::new(1).expect("a world");
    // Each start of the program has a new disk in memory.
    let target = world.server("target", |machine| {
        serve(machine, Subsystem::new(nqn("paths")).disk(MemoryNamespace::new(64)))
    });
    world.host("host", |machine| async move {
        let host = multipath(&machine, &["target"], &options())?;
        let disk = host.namespace(1).await?;
        disk.write(0, &[1; 512]).await?;
        machine.sleep(Duration::from_secs(2)).await;
        let mut found = [0; 512];
        assert_eq!(disk.read(0, &mut found).await, Err(Status::PATH));
        let failure = host.paths()[0].failure.clone().unwrap_or_default();
        assert!(failure.contains("another disk under the same number"), "{failure}");
        Ok::<(), Box<dyn std::error::Error>>(())
    });
    world.at(Duration::from_secs(1), Fault::Restart(target));
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_path_ends_with_the_patience_of_the_host_or_when_it_is_refused() {
    let mut world = World::new(2).expect("a world");
    let disks = Subsystem::new(nqn("paths")).disk(MemoryNamespace::new(64)).allow(nqn("friend"));
    world.server("target", move |machine| serve(machine, disks.clone()));
    let absent = world.server("absent", |machine| async move {
        machine.sleep(Duration::from_secs(3600)).await;
    });
    world.host("host", |machine| async move {
        let refused = multipath(&machine, &["target"], &options())?;
        assert!(matches!(refused.namespace(1).await, Err(HostError::Lost)));
        let failure = refused.paths()[0].failure.clone().unwrap_or_default();
        assert!(failure.contains("does not let this host use"), "{failure}");
        let options = HostOptions { patience: Duration::from_secs(1), ..options() };
        let unreachable = multipath(&machine, &["absent"], &options)?;
        assert!(matches!(unreachable.namespace(1).await, Err(HostError::Lost)));
        let direct = (machine.addr_of("absent"), PORT).into();
        let refused = Host::connect(&machine.manager()?, direct, &nqn("paths"), &options).await;
        assert!(matches!(refused, Err(HostError::Rdma(_))), "{refused:?}");
        Ok::<(), Box<dyn std::error::Error>>(())
    });
    world.at(Duration::ZERO, Fault::Crash(absent));
    world.run().unwrap_or_else(|e| panic!("{e}"));
}
