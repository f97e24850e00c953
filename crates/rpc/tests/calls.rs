//! What calls do when nothing is wrong but the network.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feroce::sim::World;
use feroce::{Access, Pool, Remote, Rkey};
use feroce_rpc::{Error, Rejection, Request, Server, ServerOptions, Status};

use crate::harness::*;

#[test]
fn calls_of_every_length() {
    for seed in 0..6 {
        run(seed, 0.01 * (seed % 3) as f64, |host, _| async move {
            let client = connect(&host).await?;
            let pool = Pool::new(client.pd(), 4, LONG)?;
            for len in [0, 1, 200, 201, 232, 233, 256, 1000, 4095, 4096] {
                let body: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                assert_eq!(&*client.call(Request::new(ECHO, &body)).await?, body);
            }
            for len in [1, 4096, 4097, LONG] {
                let mut buf = pool.take().await;
                buf.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 249) as u8);
                let sent = buf[..len].to_vec();
                let request = Request::from_buf(ECHO, buf, len).reply_into(pool.take().await);
                let reply = client.call(request).await?;
                assert_eq!(*reply, *sent);
                assert_eq!(reply.request.is_some(), len > 4096);
                assert_eq!(reply.unused.is_some(), len <= 4096);
            }
            for len in [4096, 4097, LONG] {
                let body = vec![5; len];
                let request = client.request(ECHO, &body)?.reply_into(pool.take().await);
                assert_eq!(&*client.call(request).await?, body);
            }
            // Every buffer has come back.
            assert_eq!(pool.available(), 4);
            assert_eq!(client.credits(), 8);
            Ok(())
        });
    }
}

#[test]
fn a_client_reads_memory_of_the_server() {
    let mut world = World::new(1).expect("a world");
    // Where the server's memory is; told beside the network.
    let place: Arc<Mutex<Option<Remote>>> = Arc::default();
    let told = Arc::clone(&place);
    world.host("server", move |host| {
        let told = Arc::clone(&told);
        async move {
            let at = (host.addr_of("server"), PORT).into();
            let server = Server::bind(&host.manager()?, at, options())?;
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let mr = server.pd().alloc_mr(10_000, access)?;
            mr.write_at(5000, b"a value")?;
            *told.lock().unwrap() = Some(mr.remote(5000));
            let gate = Gate::default();
            let service = tower::service_fn(move |call| answer(gate.clone(), call));
            let shutdown = server.shutdown();
            let serving = server.serve(service);
            drop(host.spawn(async move {
                let _mr = mr;
                serving.await.unwrap();
            }));
            host.sleep(Duration::from_secs(5)).await;
            shutdown.begin();
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    world.host("client", move |host| {
        let place = Arc::clone(&place);
        async move {
            let client = connect(&host).await?;
            let pool = Pool::new(client.pd(), 2, 64)?;
            let from = place.lock().unwrap().expect("a place");
            let read = client.read(from, pool.take().await, 7).await?;
            assert_eq!(&read[..7], b"a value");
            assert_eq!(client.credits(), 8);
            // Another key: the server's adapter refuses it, and the connection ends.
            let other = Remote { rkey: Rkey(!from.rkey.0), ..from };
            let refused = client.read(other, pool.take().await, 7).await;
            assert!(matches!(refused, Err(Error::Disconnected)));
            assert!(client.read(from, pool.take().await, 7).await.is_err());
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn many_calls_at_once_wait_for_their_turn() {
    run(1, 0.01, |host, _| async move {
        let client = connect(&host).await?;
        let calls: Vec<_> = (0..100u32)
            .map(|i| {
                let client = client.clone();
                host.spawn(async move {
                    let reply = client.call(Request::new(ECHO, &i.to_be_bytes())).await.unwrap();
                    assert_eq!(&*reply, i.to_be_bytes());
                })
            })
            .collect();
        for call in calls {
            call.await;
        }
        Ok(())
    });
}

#[test]
fn what_is_wrong_with_a_call_is_told() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let refused = |result: std::result::Result<_, Error>| match result {
            Err(Error::Refused(status)) => status,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it succeeded"),
        };
        assert_eq!(refused(client.call(Request::new(9, b"")).await), Status::Handler(9));
        let too_long = client.call(Request::new(ECHO, &[0; 5000])).await;
        assert!(matches!(too_long, Err(Error::TooLong)));
        // No buffer for the reply, and one that is too short.
        assert_eq!(refused(client.call(Request::new(LENGTHEN, b"ab")).await), Status::ReplyTooLong);
        let short = Pool::new(client.pd(), 1, 5000)?;
        let request = Request::new(LENGTHEN, b"ab").reply_into(short.take().await);
        assert_eq!(refused(client.call(request).await), Status::ReplyTooLong);
        assert_eq!(short.available(), 1);
        let enough = Pool::new(client.pd(), 1, LONG)?;
        let request = Request::new(LENGTHEN, b"ab").reply_into(enough.take().await);
        assert_eq!(*client.call(request).await?, *b"ab".repeat(LONG / 2));
        Ok(())
    });
}

#[test]
fn a_dropped_call_is_cancelled_and_its_buffers_come_back() {
    for seed in 0..5 {
        run(seed, 0.02, |host, gate| async move {
            let client = connect(&host).await?;
            let pool = Pool::new(client.pd(), 2, LONG)?;
            for round in 1..=20 {
                let buf = pool.take().await;
                let request = Request::from_buf(BLOCK, buf, LONG).reply_into(pool.take().await);
                let time = Duration::from_micros(200 * round);
                assert!(host.timeout(time, client.call(request)).await.is_none());
            }
            host.sleep(Duration::from_secs(2)).await;
            assert_eq!((pool.available(), client.credits()), (2, 8));
            // Handlers that had begun were dropped.
            let (begun, dropped) = gate.counts();
            assert_eq!(begun, dropped);
            assert!(begun > 0);
            gate.open();
            assert_eq!(&*client.call(Request::new(BLOCK, b"")).await?, b"waited");
            Ok(())
        });
    }
}

#[test]
fn a_call_that_is_too_late_is_not_answered() {
    run(1, 0.0, |host, gate| async move {
        let client = connect(&host).await?;
        let opener = gate.clone();
        let sleeper = host.clone();
        drop(host.spawn(async move {
            sleeper.sleep(Duration::from_millis(50)).await;
            opener.open();
        }));
        let request = Request::new(BLOCK, b"").timeout(Duration::from_millis(10));
        let late = client.call(request).await;
        assert!(matches!(late, Err(Error::Refused(Status::Expired))), "{late:?}");
        let request = Request::new(BLOCK, b"").timeout(Duration::from_millis(10));
        assert_eq!(&*client.call(request).await?, b"waited");
        Ok(())
    });
}

#[test]
fn calls_fail_when_the_connection_ends() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let pool = Pool::new(client.pd(), 2, LONG)?;
        let closer = client.clone();
        let sleeper = host.clone();
        drop(host.spawn(async move {
            sleeper.sleep(Duration::from_millis(5)).await;
            closer.close();
        }));
        let buf = pool.take().await;
        let request = Request::from_buf(BLOCK, buf, LONG).reply_into(pool.take().await);
        let failed = client.call(request).await;
        assert!(matches!(failed, Err(Error::Disconnected)), "{failed:?}");
        assert_eq!(pool.available(), 2);
        let after = client.call(Request::new(ECHO, b"")).await;
        assert!(matches!(after, Err(Error::Disconnected)));
        // The server goes on; a new connection finds it.
        let again = connect(&host).await?;
        assert_eq!(&*again.call(Request::new(ECHO, b"here")).await?, b"here");
        Ok(())
    });
}

#[test]
fn a_server_that_shuts_down_answers_what_it_has_begun() {
    let mut world = World::new(1).expect("a world");
    world.host("server", |host| async move {
        let gate = Gate::default();
        let (shutdown, serving) = server(&host, options(), gate.clone())?;
        let sleeper = host.clone();
        drop(host.spawn(async move {
            sleeper.sleep(Duration::from_millis(50)).await;
            shutdown.begin();
            sleeper.sleep(Duration::from_millis(50)).await;
            gate.open();
        }));
        serving.await;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.host("client", |host| async move {
        let client = connect(&host).await?;
        let waits = client.clone();
        let waiting = host.spawn(async move { waits.call(Request::new(BLOCK, b"")).await });
        host.sleep(Duration::from_millis(75)).await;
        let refused = client.call(Request::new(ECHO, b"")).await;
        assert!(matches!(refused, Err(Error::Refused(Status::ShuttingDown))), "{refused:?}");
        let rejected = connect(&host).await;
        assert!(matches!(rejected, Err(Error::Rejected(Rejection::ShuttingDown))), "{rejected:?}");
        assert_eq!(&*waiting.await?, b"waited");
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn long_calls_wait_for_the_buffers_of_others() {
    let options = ServerOptions { long_requests: 1, ..options() };
    run_with(3, 0.01, options, |host, _| async move {
        let client = connect(&host).await?;
        let pool = Pool::new(client.pd(), 32, LONG)?;
        let mut calls = Vec::new();
        for _ in 0..16 {
            let request = Request::from_buf(ECHO, pool.take().await, LONG);
            let (client, into) = (client.clone(), pool.take().await);
            calls.push(host.spawn(async move { client.call(request.reply_into(into)).await }));
        }
        for call in calls {
            assert_eq!(call.await?.len(), LONG);
        }
        assert_eq!(pool.available(), 32);
        Ok(())
    });
}

#[test]
fn a_program_may_keep_replies() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let mut kept = Vec::new();
        for i in 0..100u8 {
            kept.push(client.call(Request::new(ECHO, &[i; 300])).await?);
        }
        assert!((0..100).zip(&kept).all(|(i, reply)| reply[..] == [i; 300]));
        Ok(())
    });
}

#[test]
fn a_probe_is_answered_by_the_adapter() {
    run(2, 0.05, |host, _| async move {
        let client = connect(&host).await?;
        client.probe().await?;
        client.close();
        assert!(matches!(client.probe().await, Err(Error::Disconnected)));
        Ok(())
    });
}

/// How many SENDs eight calls take whose tasks are woken by the same message.
fn sends_of_eight_calls(len: usize) -> u64 {
    let sends = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&sends);
    run(1, 0.0, move |host, gate| {
        let counted = Arc::clone(&counted);
        async move {
            let client = connect(&host).await?;
            let sends = || client.pd().context().counters().rdma_sends;
            let before = sends();
            let callers: Vec<_> = (0..8u8)
                .map(|i| {
                    let (client, body) = (client.clone(), vec![i; len]);
                    host.spawn(async move {
                        client.call(Request::new(BLOCK, &[])).await.unwrap();
                        assert_eq!(*client.call(Request::new(ECHO, &body)).await.unwrap(), *body);
                    })
                })
                .collect();
            while gate.counts().0 < 8 {
                host.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(sends() - before, 8);
            gate.open();
            for caller in callers {
                caller.await;
            }
            let many = sends();
            // One at a time, each leaves at once.
            for _ in 0..10 {
                client.call(Request::new(ECHO, b"alone")).await?;
            }
            assert_eq!(sends() - many, 10);
            counted.store(many - before - 8, Ordering::Relaxed);
            Ok(())
        }
    });
    sends.load(Ordering::Relaxed)
}

#[test]
fn short_calls_of_many_tasks_leave_together() {
    // All in one; three in one, of which there are three; each by itself.
    for (len, sends) in [(8, 1), (300, 3), (600, 8)] {
        assert_eq!(sends_of_eight_calls(len), sends, "{len} bytes");
    }
}
