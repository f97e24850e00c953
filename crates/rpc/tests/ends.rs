//! Hosts that vanish, and what becomes of their peers.

use std::time::Duration;

use feroce::Pool;
use feroce::sim::{Fault, World};
use feroce_rpc::{Error, Reconnecting, Rejection, Request, ServerOptions};

use crate::harness::*;

#[test]
fn the_places_of_vanished_clients_are_given_to_others() {
    let mut world = World::new(1).expect("a world");
    let options = ServerOptions { connections: 3, ..options() };
    world.server("server", move |host| serve(host, options));
    for name in ["a", "b"] {
        let vanishes = world.server(name, |host| async move {
            let client = connect(&host).await?;
            let _ = client.call(Request::new(BLOCK, b"")).await;
            Result::Ok(())
        });
        world.at(Duration::from_millis(100), Fault::Crash(vanishes));
    }
    world.host("stays", |host| async move {
        let client = connect(&host).await?;
        host.sleep(Duration::from_secs(30)).await;
        assert_eq!(&*client.call(Request::new(ECHO, b"still here")).await?, b"still here");
        Result::Ok(())
    });
    world.host("comes", |host| async move {
        host.sleep(Duration::from_millis(200)).await;
        let rejected = connect(&host).await;
        assert!(matches!(rejected, Err(Error::Rejected(Rejection::Full))), "{rejected:?}");
        host.sleep(Duration::from_secs(3)).await;
        let (one, two) = (connect(&host).await?, connect(&host).await?);
        for client in [one, two] {
            assert_eq!(&*client.call(Request::new(ECHO, b"here")).await?, b"here");
        }
        Result::Ok(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_client_that_vanishes_in_a_rendezvous_frees_what_it_used() {
    // At every moment of the transfer of a request and of its reply.
    for moment in 0..40 {
        let mut world = World::new(moment).expect("a world");
        let options = ServerOptions { long_requests: 1, ..options() };
        world.server("server", move |host| serve(host, options));
        let vanishes = world.server("vanishes", |host| async move {
            let client = connect(&host).await?;
            let pool = Pool::new(client.pd(), 2, LONG)?;
            host.sleep(Duration::from_millis(10) - host.now()).await;
            loop {
                let request = Request::from_buf(ECHO, pool.take().await, LONG);
                client.call(request.reply_into(pool.take().await)).await?;
            }
            #[expect(unreachable_code, reason = "it is the type of the program")]
            Result::Ok(())
        });
        world.at(Duration::from_micros(10_000 + 7 * moment), Fault::Crash(vanishes));
        world.host("comes", |host| async move {
            host.sleep(Duration::from_millis(50)).await;
            let client = connect(&host).await?;
            let pool = Pool::new(client.pd(), 2, LONG)?;
            // The server has one buffer for long requests, and the other client had it.
            let request = Request::from_buf(ECHO, pool.take().await, LONG);
            let reply = client.call(request.reply_into(pool.take().await)).await?;
            assert_eq!(reply.len(), LONG);
            Result::Ok(())
        });
        world.run().unwrap_or_else(|e| panic!("moment {moment}: {e}"));
    }
}

#[test]
fn a_server_that_vanishes_in_a_rendezvous_gives_the_buffers_back() {
    for moment in 0..20 {
        let mut world = World::new(moment).expect("a world");
        let server = world.server("server", |host| serve(host, options()));
        world.at(Duration::from_micros(10_000 + 15 * moment), Fault::Crash(server));
        world.host("client", |host| async move {
            let client = connect(&host).await?;
            let (prober, sleeper) = (client.clone(), host.clone());
            drop(host.spawn(async move {
                while prober.probe().await.is_ok() {
                    sleeper.sleep(Duration::from_millis(100)).await;
                }
            }));
            let pool = Pool::new(client.pd(), 2, LONG)?;
            host.sleep(Duration::from_millis(10) - host.now()).await;
            let failure = loop {
                let request = Request::from_buf(ECHO, pool.take().await, LONG);
                match client.call(request.reply_into(pool.take().await)).await {
                    Ok(_) => {}
                    Err(e) => break e,
                }
            };
            assert!(matches!(failure, Error::Disconnected), "{failure}");
            assert_eq!(pool.available(), 2);
            Result::Ok(())
        });
        world.run().unwrap_or_else(|e| panic!("moment {moment}: {e}"));
    }
}

#[test]
fn a_client_connects_again_when_the_server_is_back() {
    let mut world = World::new(4).expect("a world");
    let server = world.server("server", |host| serve(host, options()));
    for second in [10, 30] {
        world.at(Duration::from_secs(second), Fault::Crash(server));
        world.at(Duration::from_secs(second + 5), Fault::Restart(server));
    }
    world.host("client", |host| async move {
        let (to, manager) = ((host.addr_of("server"), PORT).into(), host.manager()?);
        let sleeper = host.clone();
        let wait = move |failures: u32| sleeper.sleep(Duration::from_millis(10 << failures.min(6)));
        let (client, running) = Reconnecting::new(&manager, to, limits(), wait);
        drop(host.spawn(running));
        let (mut answered, mut failed) = (0, 0);
        while host.now() < Duration::from_secs(60) {
            let now = client.client().await?;
            // Only one that is asked for a sign of life fails in time.
            let result = match now.probe().await {
                Ok(()) => now.call(Request::new(ECHO, b"hello")).await.map(|reply| reply.len()),
                Err(e) => Err(e),
            };
            match result {
                Ok(len) => answered += len,
                Err(Error::Disconnected) => failed += 1,
                Err(e) => return Err(e.into()),
            }
            host.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(client.connections(), 3);
        assert!(answered > 1000 && (2..10).contains(&failed), "{answered} {failed}");
        Result::Ok(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}
