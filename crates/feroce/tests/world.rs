//! Programs in a simulated world.
#![cfg(feature = "sim")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use feroce::cm::{Connection, Connector, Listener};
use feroce::sim::HostId;
use feroce::sim::{Fault, Host, Report, Topology, World, WorldError};
use feroce::{Access, SendOp, SendWr, WcStatus};

type Error = Box<dyn std::error::Error>;

const PORT: u16 = 4000;
const MS: Duration = Duration::from_millis(1);

async fn serve(host: &Host) -> Result<Connection, Error> {
    let listener = Listener::bind(&host.manager()?, (host.addr_of("server"), PORT).into())?;
    Ok(listener.accept_async().await?.accept_async().await?)
}

async fn connect(host: &Host) -> Result<Connection, Error> {
    let to = (host.addr_of("server"), PORT).into();
    Ok(Connector::new(&host.manager()?).connect_async(to).await?)
}

/// A client writes a message of `len` bytes, and a send after it tells the server to look.
fn exchange(
    seed: u64,
    len: usize,
    prepare: impl FnOnce(&mut World, HostId),
) -> Result<Report, WorldError> {
    let mut world = World::new(seed)?;
    let target = Rc::new(RefCell::new(None));
    let there = Rc::clone(&target);
    let server = world.host("server", move |host| {
        let there = Rc::clone(&there);
        async move {
            let mut peer = serve(&host).await?;
            let memory = peer.pd().alloc_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            peer.post_recv([memory.recv(1, 0..0)])?;
            *there.borrow_mut() = Some(memory.remote(0));
            assert_eq!(peer.recv_cq().next().await.status, WcStatus::Success);
            let mut bytes = vec![0; len];
            memory.read_at(0, &mut bytes)?;
            assert!(bytes.iter().all(|&byte| byte == 7), "the write came before the send");
            host.sleep(MS).await;
            Ok::<_, Error>(())
        }
    });
    world.host("client", move |host| {
        let target = Rc::clone(&target);
        async move {
            let mut peer = connect(&host).await?;
            let memory = peer.pd().alloc_mr(len, Access::LOCAL_WRITE)?;
            memory.write_at(0, &vec![7; len])?;
            while target.borrow().is_none() {
                host.sleep(MS).await;
            }
            let remote = target.borrow().expect("it was there");
            let write = SendWr::new(1, SendOp::Write(remote), memory.data(0..len));
            let send = SendWr::new(2, SendOp::Send, memory.data(0..0));
            peer.post_send([write, send])?;
            for _ in 0..2 {
                assert_eq!(peer.send_cq().next().await.status, WcStatus::Success);
            }
            Ok::<_, Error>(())
        }
    });
    prepare(&mut world, server);
    world.run()
}

#[test]
fn programs_connect_and_exchange_messages() {
    let report = exchange(1, 1 << 20, |_, _| {}).expect("the run");
    assert_eq!(report.lost, 0);
    // 1 MiB at 100 Gb/s takes 84 us, and everything but the payload little.
    assert!(report.elapsed > Duration::from_micros(84), "{report:?}");
    assert!(report.elapsed < 20 * MS, "{report:?}");
    assert!(report.delivered > 256, "{report:?}");
}

#[test]
fn a_seed_replays_its_run_and_another_seed_does_not() {
    let lossy = |seed| {
        exchange(seed, 1 << 20, |world, _| world.at(Duration::ZERO, Fault::Loss(0.02)))
            .expect("run")
    };
    let (first, again, other) = (lossy(3), lossy(3), lossy(4));
    assert_eq!(first, again);
    assert!(first.lost > 0);
    assert_ne!(first.digest, other.digest);
}

#[test]
fn messages_survive_losses_partitions_and_slow_hosts() {
    for seed in 0..20 {
        exchange(seed, 200_000, |world, server| {
            world.at(Duration::ZERO, Fault::Loss(0.01));
            let at = Duration::from_micros(world.random(3000));
            world.at(at, Fault::Partition(vec![server]));
            world.at(at + MS, Fault::Heal);
            world.at(at, Fault::Slow(server, Duration::from_micros(50)));
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
}

/// A world with one host that waits for ever.
fn waiting() -> World {
    let mut world = World::new(9).expect("a world");
    world.host("lonely", |host| async move {
        let cq = host.context().create_cq(1).expect("a queue");
        cq.next().await;
    });
    world
}

#[test]
fn a_world_in_which_nothing_can_happen_says_who_waits() {
    let error = waiting().run().expect_err("nothing happens");
    assert_eq!(
        error.to_string(),
        "seed 9, after 0ns: nothing will ever happen again, and lonely still wait"
    );
    assert_eq!((error.seed(), error.at()), (9, Duration::ZERO));
    // A failed program is named.
    let mut world = World::new(10).expect("a world");
    world.host("wrong", |_| async { Err::<(), _>("no") });
    let error = world.run().expect_err("it fails");
    assert_eq!(error.to_string(), "seed 10, after 0ns: the program of wrong failed: no");
}

#[test]
fn the_time_limit_ends_a_run() {
    let mut world = World::new(9).expect("a world").limit(MS);
    world.host("patient", |host| async move { host.sleep(2 * MS).await });
    let error = world.run().expect_err("it takes too long").to_string();
    assert!(error.ends_with("the time is up, and patient still run"), "{error}");
}

#[test]
fn one_thread_is_in_one_world_and_topologies_have_room_for_all_hosts() {
    let world = World::new(1).expect("a world");
    assert!(World::new(2).is_err());
    drop(world);
    let topology = Topology::star(2, feroce::sim::Rate::from_gbps(1), 0);
    let mut world = World::new(2).expect("a world").topology(topology);
    for name in ["a", "b", "c"] {
        world.host(name, |_| async {});
    }
    let error = world.run().expect_err("too few hosts").to_string();
    assert!(error.contains("fewer hosts than the 3"), "{error}");
}

#[test]
#[should_panic(expected = "a call that blocks")]
fn blocking_calls_are_refused() {
    let mut world = World::new(1).expect("a world");
    world.host("blocked", |host| async move {
        let _ = host.context().create_cq(1).expect("a queue").wait();
    });
    let _ = world.run();
}

#[test]
fn a_host_that_crashes_is_silent_and_begins_anew() {
    let mut world = World::new(5).expect("a world");
    let starts = Rc::new(Cell::new(0));
    let count = Rc::clone(&starts);
    let server = world.server("server", move |host| {
        count.set(count.get() + 1);
        async move {
            loop {
                let mut peer = serve(&host).await?;
                let memory = peer.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
                peer.post_recv([memory.recv(1, 0..8)])?;
                peer.recv_cq().next().await;
                peer.disconnect_async().await?;
            }
            #[expect(unreachable_code, reason = "it gives the block its type")]
            Ok::<_, Error>(())
        }
    });
    world.host("client", |host| async move {
        let mut peer = connect(&host).await?;
        host.sleep(10 * MS).await;
        let memory = peer.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
        let send = || SendWr::new(1, SendOp::Send, memory.data(0..8));
        peer.post_send([send()])?;
        // The server has crashed meanwhile.
        assert_eq!(peer.send_cq().next().await.status, WcStatus::RetryExceeded);
        drop(peer);
        let waited = host.timeout(Duration::from_secs(100), connect(&host)).await;
        let mut peer = waited.expect("the server is back")?;
        let memory = peer.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
        peer.post_send([SendWr::new(1, SendOp::Send, memory.data(0..8))])?;
        assert_eq!(peer.send_cq().next().await.status, WcStatus::Success);
        Ok::<_, Error>(())
    });
    world.at(5 * MS, Fault::Crash(server));
    world.at(Duration::from_secs(20), Fault::Restart(server));
    world.run().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(starts.get(), 2);
}
