//! The end that answers.

mod call;
mod options;
mod receive;
mod shared;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use feroce::cm::{Accepting, Listener, Manager};
use feroce::{Inbox, Pd, Pool, Router};

use crate::error::{Error, Rejection};
use crate::limits::{Limits, rejection};
use crate::tasks::Tasks;
use crate::turns::Turns;
pub use options::{Handler, ServerOptions};
use receive::{post_receives, receive, take};
use shared::{Shared, lock};

/// Answers the calls of clients. All of its connections share one domain, one pool of buffers, one
/// completion queue for receives, and one shared receive queue.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
    tasks: Tasks,
}

/// Shuts a server down.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<Shared>);

impl Shutdown {
    /// From now on requests are refused with [`Status::ShuttingDown`](crate::Status), and
    /// connections are rejected. [`Server::serve`] resolves when the calls that were under way are
    /// answered and the clients have the replies. A program that does not want to wait for its
    /// handlers drops the future of [`Server::serve`].
    pub fn begin(&self) {
        self.0.is_shutting_down.store(true, Ordering::Release);
        // Has the server look.
        self.0.spawner.spawn(async {});
    }
}

impl Server {
    /// Listens at an address of one device. Port 0 selects a free port.
    pub fn bind(manager: &Manager, at: SocketAddr, options: ServerOptions) -> Result<Self, Error> {
        let context = manager.context_for(at.ip())?;
        let (limits, pd) = (options.limits, context.alloc_pd()?);
        let calls = options.connections * usize::from(limits.window);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let srq = pd.create_srq(count(2 * calls), 1)?;
        let recv_cq = context.create_cq(count(2 * calls))?;
        // Queue pairs that end are flushed while others take their places.
        let send_cq = context.create_cq(count(2 * options.connections * limits.sends()))?;
        // Two receives for each call, and its request and reply beside them.
        let messages = Pool::new(&pd, 4 * calls, limits.message_len())?;
        let long = Pool::new(&pd, options.long_requests.max(1), limits.longest as usize)?;
        let tasks = Tasks::default();
        let shared = Arc::new(Shared {
            inbox: Inbox::new(&recv_cq),
            sends: Router::new(&send_cq),
            spawner: tasks.spawner(),
            handlers: Turns::new(options.handlers.max(1)),
            peers: Mutex::default(),
            corked: Mutex::default(),
            under_way: AtomicUsize::new(0),
            is_shutting_down: AtomicBool::new(false),
            options,
            pd,
            srq,
            recv_cq,
            send_cq,
            messages,
            long,
        });
        Ok(Self { shared, listener: Listener::bind(manager, at)?, tasks })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The domain of its connections: pools for long answers are made there.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// What shuts it down.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown(Arc::clone(&self.shared))
    }

    /// Answers calls with `service` until it is [shut down](Shutdown::begin). All handlers run in
    /// this future; one that computes for long should spawn a task of the runtime.
    pub async fn serve(self, service: impl Handler) -> Result<(), Error> {
        let Self { shared, listener, mut tasks } = self;
        shared.spawner.spawn(receive(Arc::clone(&shared), service.clone()));
        let failure = Arc::new(Mutex::new(None));
        shared.spawner.spawn({
            let (shared, failure) = (Arc::clone(&shared), Arc::clone(&failure));
            async move {
                let error = accept(&shared, &listener, &service).await;
                *lock(&failure) = Some(error);
            }
        });
        poll_fn(|cx| {
            // There may be no task now and some later.
            let _ = tasks.poll_all(cx, || false);
            shared.flush();
            let is_over = shared.is_shutting_down.load(Ordering::Acquire)
                && shared.under_way.load(Ordering::Acquire) == 0;
            match lock(&failure).take() {
                Some(error) => Poll::Ready(Err(error)),
                None if is_over => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await?;
        let peers = std::mem::take(&mut lock(&shared.peers).by_qpn);
        // The last replies are to arrive before their connections end.
        let probes: Vec<_> = peers.values().map(|peer| peer.link.probe()).collect();
        for (peer, probe) in peers.values().zip(probes) {
            if let Ok(probe) = probe {
                // A client that is gone does not get its reply.
                let _ = probe.await;
            }
            peer.link.end();
        }
        Ok(())
    }
}

/// Accepts connections until the listener fails.
async fn accept(shared: &Arc<Shared>, listener: &Listener, service: &impl Handler) -> Error {
    loop {
        let request = match listener.accept_async().await {
            Ok(request) => request,
            Err(e) => return e.into(),
        };
        let limits = match admit(shared, request.private_data()) {
            Ok(limits) => limits,
            Err(why) => {
                // A client that is gone does not hear it.
                let _ = request.reject(&rejection(why));
                continue;
            }
        };
        let plan = request.param(limits.param()).pd(&shared.pd).srq(&shared.srq);
        let plan = plan.cap(limits.cap(0)).cqs(&shared.send_cq, &shared.recv_cq);
        // Dropping a request rejects it.
        let Ok(prepared) = plan.prepare() else { continue };
        if post_receives(shared, limits) {
            lock(&shared.peers).accepting.insert(prepared.qpn(), Vec::new());
            let connection = connection(Arc::clone(shared), prepared, limits, service.clone());
            shared.spawner.spawn(connection);
        } else {
            lock(&shared.peers).needed -= limits.receives();
        }
    }
}

/// What a client and the server agree on, or why the client is not let in.
fn admit(shared: &Arc<Shared>, hello: &[u8]) -> Result<Limits, Rejection> {
    let options = shared.options;
    let limits = options.limits.agree(hello).ok_or(Rejection::Version)?;
    if shared.is_shutting_down.load(Ordering::Acquire) {
        return Err(Rejection::ShuttingDown);
    }
    let are_full = || lock(&shared.peers).are_full(options.connections);
    if are_full() {
        shared.look_for_the_vanished();
    }
    if are_full() { Err(Rejection::Full) } else { Ok(limits) }
}

/// A connection, from its acceptance to its end.
async fn connection(
    shared: Arc<Shared>,
    prepared: Accepting,
    limits: Limits,
    service: impl Handler,
) {
    let qpn = prepared.qpn();
    let accepted = prepared.accept_async().await.ok();
    let Some((peer, early)) = shared.accepted(qpn, limits, accepted) else { return };
    for (cqe, message) in early {
        take(&shared, &peer, &cqe, message, &service);
    }
    peer.link.ended().await;
    shared.leave(&peer);
    lock(&shared.peers).ending -= 1;
}
