//! A host and a target in virtual time, where nothing depends on the speed of this machine.

use std::sync::Arc;
use std::time::Duration;

use feroce::sim::{Fault, Host as Machine, World};
use feroce_nvme::{Host, HostOptions, MemoryNamespace, Namespace as _, Subsystem, Target};

use crate::together::{Result, nqn, pattern};

const PORT: u16 = 4420;

async fn serve(machine: Machine) -> Result<()> {
    let disks = Subsystem::new(nqn("deep")).disk(MemoryNamespace::new(16 * 1024));
    let at = (machine.addr_of("target"), PORT).into();
    Target::bind(&machine.manager()?, at, [disks])?.serve().await?;
    Ok(())
}

/// More commands than places, of lengths that go in the capsule and beside it.
async fn write_and_read(machine: Machine) -> Result<()> {
    let options = HostOptions { depth: 128, queues: 2, ..HostOptions::default() };
    let to = (machine.addr_of("target"), PORT).into();
    let host = Host::connect(&machine.manager()?, to, &nqn("deep"), &options).await?;
    assert_eq!(host.queues(), 2);
    let disk = Arc::new(host.namespace(1).await?);
    let tasks: Vec<_> = (0..300_u64)
        .map(|i| {
            let disk = Arc::clone(&disk);
            machine.spawn(async move {
                let data = pattern((1 + i as usize % 40) * 512, i);
                for _ in 0..2 {
                    disk.write(i * 48, &data).await.expect("written");
                    let mut found = vec![0; data.len()];
                    disk.read(i * 48, &mut found).await.expect("read");
                    assert!(found == data, "task {i}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    drop(disk);
    host.disconnect().await?;
    Ok(())
}

#[test]
fn every_place_of_a_queue_is_used_at_once_with_and_without_loss() {
    for (seed, loss) in [(1, 0.0), (2, 0.001), (3, 0.01)] {
        let mut world = World::new(seed).expect("a world");
        world.server("target", serve);
        world.host("host", write_and_read);
        world.at(Duration::ZERO, Fault::Loss(loss));
        world.run().unwrap_or_else(|e| panic!("{e}"));
    }
}
