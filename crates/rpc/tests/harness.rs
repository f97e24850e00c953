//! A server and its clients in a world.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use feroce::sim::{Fault, Host, World};
use feroce_rpc::{
    Answer, Client, Error, Incoming, Limits, Server, ServerOptions, Shutdown, Status,
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) const PORT: u16 = 4000;
pub(crate) const ECHO: u32 = 1;
pub(crate) const LENGTHEN: u32 = 2;
pub(crate) const BLOCK: u32 = 3;
pub(crate) const LONG: usize = 200_000;

pub(crate) fn limits() -> Limits {
    Limits { window: 8, eager: 4096, longest: 1 << 18 }
}

/// What a handler waits for, if it is asked to.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(AtomicBool, AtomicUsize, AtomicUsize, Mutex<Vec<Waker>>)>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.3.lock().unwrap().drain(..).for_each(Waker::wake);
    }

    /// Handlers that have begun to wait, and those that were dropped meanwhile.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.0.1.load(Ordering::Acquire), self.0.2.load(Ordering::Acquire))
    }

    pub(crate) async fn wait(self) {
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

pub(crate) async fn answer(gate: Gate, call: Incoming) -> std::result::Result<Answer, Status> {
    match call.method {
        ECHO => Ok(Answer::Copied(call.to_vec())),
        LENGTHEN => Ok(Answer::Copied(call.repeat(LONG / call.len()))),
        BLOCK => {
            gate.wait().await;
            Ok(Answer::Copied(b"waited".to_vec()))
        }
        other => Err(Status::Handler(other as u8)),
    }
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions { limits: limits(), connections: 4, long_requests: 2, handlers: 256 }
}

pub(crate) fn server(
    host: &Host,
    options: ServerOptions,
    gate: Gate,
) -> Result<(Shutdown, impl Future<Output = ()> + use<>)> {
    let server = Server::bind(&host.manager()?, (host.addr_of("server"), PORT).into(), options)?;
    let shutdown = server.shutdown();
    let service = tower::service_fn(move |call| answer(gate.clone(), call));
    let serving = server.serve(service);
    Ok((shutdown, async move { serving.await.unwrap() }))
}

/// A server that runs until its host does not.
pub(crate) async fn serve(host: Host, options: ServerOptions) -> Result<()> {
    server(&host, options, Gate::default())?.1.await;
    Ok(())
}

pub(crate) async fn connect(host: &Host) -> std::result::Result<Client, Error> {
    let to = (host.addr_of("server"), PORT).into();
    let (client, connection) = Client::connect(&host.manager()?, to, limits()).await?;
    drop(host.spawn(connection));
    Ok(client)
}

/// Runs a server until the client has done, and checks that it shuts down.
pub(crate) fn run<F>(seed: u64, loss: f64, client: impl Fn(Host, Gate) -> F + 'static)
where
    F: Future<Output = Result<()>> + 'static,
{
    run_with(seed, loss, options(), client);
}

/// The same for a server with other options.
pub(crate) fn run_with<F>(
    seed: u64,
    loss: f64,
    options: ServerOptions,
    client: impl Fn(Host, Gate) -> F + 'static,
) where
    F: Future<Output = Result<()>> + 'static,
{
    let mut world = World::new(seed).expect("a world");
    let gate = Gate::default();
    let stop: Arc<Mutex<Option<Shutdown>>> = Arc::default();
    let (there, stopper) = (gate.clone(), Arc::clone(&stop));
    world.host("server", move |host| {
        let (gate, stopper) = (there.clone(), Arc::clone(&stopper));
        async move {
            let (shutdown, serving) = server(&host, options, gate)?;
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
