//! Calls in a simulated world, with losses, cancellations and ends at any time.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use feroce::Pool;
use feroce::sim::{Fault, Host, World};
use feroce_rpc::{
    Answer, Client, Error, Incoming, Limits, Request, Server, ServerOptions, Shutdown, Status,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PORT: u16 = 4000;
const ECHO: u32 = 1;
const LENGTHEN: u32 = 2;
const BLOCK: u32 = 3;
const LONG: usize = 200_000;

fn limits() -> Limits {
    Limits { window: 8, eager: 4096, longest: 1 << 18 }
}

/// What a handler waits for, if it is asked to.
#[derive(Clone, Default)]
struct Gate(Arc<(AtomicBool, AtomicUsize, AtomicUsize, Mutex<Vec<Waker>>)>);

impl Gate {
    fn open(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.3.lock().unwrap().drain(..).for_each(Waker::wake);
    }

    /// Handlers that have begun to wait, and those that were dropped meanwhile.
    fn counts(&self) -> (usize, usize) {
        (self.0.1.load(Ordering::Acquire), self.0.2.load(Ordering::Acquire))
    }

    async fn wait(self) {
        struct Dropped(Gate, bool);
        impl Drop for Dropped {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.0.2.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        self.0.1.fetch_add(1, Ordering::AcqRel);
        let mut guard = Dropped(self.clone(), false);
        poll_fn(|cx| {
            if self.0.0.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            self.0.3.lock().unwrap().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard.1 = true;
    }
}

async fn answer(gate: Gate, call: Incoming) -> std::result::Result<Answer, Status> {
    match call.method {
        ECHO => {
            let (buf, range) = call.into_buf();
            Ok(Answer::Copied(buf[range].to_vec()))
        }
        LENGTHEN => Ok(Answer::Copied(call.repeat(LONG / call.len()))),
        BLOCK => {
            gate.wait().await;
            Ok(Answer::Copied(b"waited".to_vec()))
        }
        other => Err(Status::Handler(other as u8)),
    }
}

fn server(host: &Host, gate: Gate) -> Result<(Shutdown, impl Future<Output = ()> + use<>)> {
    let options = ServerOptions { limits: limits(), connections: 4, long_requests: 2 };
    let server = Server::bind(&host.manager()?, (host.addr_of("server"), PORT).into(), options)?;
    let shutdown = server.shutdown();
    let service = tower::service_fn(move |call| answer(gate.clone(), call));
    let serving = server.serve(service);
    Ok((shutdown, async move { serving.await.unwrap() }))
}

async fn connect(host: &Host) -> Result<Client> {
    let to = (host.addr_of("server"), PORT).into();
    let (client, connection) = Client::connect(&host.manager()?, to, limits()).await?;
    drop(host.spawn(connection));
    Ok(client)
}

/// Runs a server until the client has done, and checks that it shuts down.
fn run<F>(seed: u64, loss: f64, client: impl Fn(Host, Gate) -> F + 'static)
where
    F: Future<Output = Result<()>> + 'static,
{
    let mut world = World::new(seed).expect("a world");
    let gate = Gate::default();
    let stop: Arc<Mutex<Option<Shutdown>>> = Arc::default();
    let (there, stopper) = (gate.clone(), Arc::clone(&stop));
    world.host("server", move |host| {
        let (gate, stopper) = (there.clone(), Arc::clone(&stopper));
        async move {
            let (shutdown, serving) = server(&host, gate)?;
            *stopper.lock().unwrap() = Some(shutdown);
            serving.await;
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    let client = Arc::new(client);
    world.host("client", move |host| {
        let (gate, stop, client) = (gate.clone(), Arc::clone(&stop), Arc::clone(&client));
        async move {
            client(host, gate).await?;
            stop.lock().unwrap().as_ref().expect("a server").begin();
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    world.at(Duration::ZERO, Fault::Loss(loss));
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

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
            // Every buffer has come back.
            assert_eq!(pool.available(), 4);
            assert_eq!(client.credits(), 8);
            Ok(())
        });
    }
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
        let (shutdown, serving) = server(&host, gate.clone())?;
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
        assert_eq!(&*waiting.await?, b"waited");
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

/// A peer that is not a client of this crate: it says what `hello` says, and sends `message`.
async fn stranger(host: &Host, hello: &[u8], message: &[u8]) -> Result<()> {
    use feroce::cm::Connector;
    use feroce::{Data, InlineBytes, QpCap, SendOp, SendWr};
    let cap = QpCap { max_inline: 256, ..QpCap::new(4, 4) };
    let connector = Connector::new(&host.manager()?).private_data(hello).cap(cap);
    let mut peer = connector.connect_async((host.addr_of("server"), PORT).into()).await?;
    let data = Data::Inline(InlineBytes::new(message));
    peer.post_send([SendWr::new(1, SendOp::Send, data)])?;
    peer.wait_disconnected_async().await?;
    Ok(())
}

/// Private data of a client, and the head of a request.
const HELLO: &[u8] = b"fRPC\x01\x00\x08\x00\x00\x10\x00\x00\x04\x00\x00";

#[test]
fn a_peer_that_breaks_the_protocol_loses_its_connection_alone() {
    run(1, 0.0, |host, _| async move {
        let client = connect(&host).await?;
        let mut request = vec![1, 1, 0, 0, 0, 0, 0, 1];
        request.resize(24, 0);
        let with = |at: usize, value: u8| {
            let mut message = request.clone();
            message[at] = value;
            message
        };
        // Nothing, half a header, another version, another kind, wrong flags, a wrong length, an
        // answer to nothing, and a body at an address that is not the peer's.
        let mut far = with(2, 1);
        far[20..24].copy_from_slice(&100u32.to_be_bytes());
        far.resize(56, 7);
        let messages = [
            vec![],
            request[..20].to_vec(),
            with(0, 2),
            with(1, 9),
            with(2, 0x80),
            with(23, 5),
            with(1, 2),
            far,
        ];
        for message in messages {
            stranger(&host, HELLO, &message).await?;
        }
        // Those who do not say hello are not let in.
        let mut other_version = HELLO.to_vec();
        other_version[4] = 2;
        assert!(stranger(&host, &other_version, &request).await.is_err());
        assert!(stranger(&host, b"hello", &request).await.is_err());
        assert_eq!(&*client.call(Request::new(ECHO, b"still here")).await?, b"still here");
        Ok(())
    });
}
