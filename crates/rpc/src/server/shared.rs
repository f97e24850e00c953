//! What a server knows of its clients.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use feroce::cm::Connection;
use feroce::{Cq, Cqe, Inbox, Instant, Pd, Pool, Qpn, Router, Srq, WcStatus};

use super::options::ServerOptions;
use crate::header::Header;
use crate::limits::Limits;
use crate::message::Body;
use crate::sending::{Ended, Link};
use crate::tasks::Spawner;
use crate::turns::Turns;

/// How long a client may leave a sign of life owing when others want its place.
const PATIENCE_NS: u64 = 2_000_000_000;

/// What connections and calls share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: ServerOptions,
    pub(super) pd: Pd,
    pub(super) srq: Srq,
    pub(super) recv_cq: Cq,
    pub(super) send_cq: Cq,
    pub(super) inbox: Inbox,
    pub(super) sends: Router,
    pub(super) messages: Pool,
    pub(super) long: Pool,
    pub(super) spawner: Spawner,
    pub(super) handlers: Turns,
    pub(super) peers: Mutex<Peers>,
    /// Clients for which messages wait.
    pub(super) corked: Mutex<Vec<Arc<Peer>>>,
    /// Calls that are not answered yet.
    pub(super) under_way: AtomicUsize,
    pub(super) is_shutting_down: AtomicBool,
}

/// Messages that have arrived before their connection was accepted.
pub(super) type Early = Vec<(Cqe, Body)>;

/// The clients.
#[derive(Debug, Default)]
pub(super) struct Peers {
    pub(super) by_qpn: BTreeMap<Qpn, Arc<Peer>>,
    /// Connections that are being accepted. The first messages of a client may arrive before the
    /// server hears that it is ready, and wait here.
    pub(super) accepting: BTreeMap<Qpn, Early>,
    /// Connections that have ended, and whose queue pairs are still there.
    pub(super) ending: usize,
    /// Receives that are posted, and those that connections need.
    pub(super) posted: usize,
    pub(super) needed: usize,
}

impl Peers {
    /// Whether another connection would be one too many. Connections that end do not count, unless
    /// there are very many.
    pub(super) fn are_full(&self, most: usize) -> bool {
        let open = self.by_qpn.len() + self.accepting.len();
        open >= most || open + self.ending >= 2 * most
    }

    /// The client that a message is from. The message waits if its connection is still being
    /// accepted, as long as there are no more than a client may send, and is dropped if it has
    /// ended.
    pub(super) fn sort(
        &mut self,
        cqe: Cqe,
        message: Body,
        most: usize,
    ) -> Option<(Arc<Peer>, Body)> {
        if let Some(peer) = self.by_qpn.get(&cqe.qpn) {
            return Some((Arc::clone(peer), message));
        }
        let early = self.accepting.get_mut(&cqe.qpn).filter(|early| early.len() < most);
        if let Some(early) = early {
            early.push((cqe, message));
        }
        None
    }
}

/// A client.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    pub(super) limits: Limits,
    pub(super) calls: Mutex<BTreeMap<u64, Arc<Cancel>>>,
    /// Since when it owes a sign of life.
    probed: Mutex<Option<Instant>>,
}

impl Shared {
    fn peer(&self, connection: Connection, limits: Limits) -> Arc<Peer> {
        let link = Link::new(connection, self.sends.clone(), self.messages.clone(), limits);
        link.cork();
        let (calls, probed) = Default::default();
        Arc::new(Peer { link, limits, calls, probed })
    }

    /// Sends a message to a client, together with others that the tasks send before
    /// [`flush`](Self::flush).
    pub(super) fn send(&self, peer: &Arc<Peer>, header: &Header, body: &[u8]) {
        match peer.link.send(header, body) {
            Ok(false) => {}
            Ok(true) => lock(&self.corked).push(Arc::clone(peer)),
            Err(Ended) => self.leave(peer),
        }
    }

    /// Every task has run that could. Sends what they have sent.
    pub(super) fn flush(&self) {
        let corked = std::mem::take(&mut *lock(&self.corked));
        for peer in corked {
            if peer.link.flush().is_err() {
                self.leave(&peer);
            }
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.pd.context().now()
    }

    /// A connection was accepted, or was not. Returns the client and the messages that have waited
    /// for it.
    pub(super) fn accepted(
        &self,
        qpn: Qpn,
        limits: Limits,
        connection: Option<Connection>,
    ) -> Option<(Arc<Peer>, Early)> {
        let mut peers = lock(&self.peers);
        let early = peers.accepting.remove(&qpn).unwrap_or_default();
        let Some(connection) = connection else {
            peers.needed -= limits.receives();
            return None;
        };
        let peer = self.peer(connection, limits);
        peers.by_qpn.insert(qpn, Arc::clone(&peer));
        Some((peer, early))
    }

    /// A connection has ended, or is to end: frees its place and cancels its calls, whose caller
    /// is gone.
    pub(super) fn leave(&self, peer: &Peer) {
        let mut peers = lock(&self.peers);
        if peers.by_qpn.remove(&peer.link.qpn()).is_some() {
            peers.needed -= peer.limits.receives();
            peers.ending += 1;
        }
        drop(peers);
        let calls: Vec<Arc<Cancel>> = lock(&peer.calls).values().cloned().collect();
        calls.iter().for_each(|call| call.cancel());
        peer.link.end();
        // What was posted has been flushed; its buffers return to their pools.
        self.sends.reap();
    }

    /// Looks for clients that are gone without a word, because another wants a place. A host that
    /// has lost its power says nothing, so each client is asked for a sign of life; one whose
    /// queue pair has failed, or that has not answered the last question, loses its place.
    pub(super) fn look_for_the_vanished(self: &Arc<Self>) {
        self.sends.reap();
        let now = self.now();
        let peers: Vec<Arc<Peer>> = lock(&self.peers).by_qpn.values().cloned().collect();
        for peer in peers {
            let since = *lock(&peer.probed).get_or_insert(now);
            if !peer.link.is_alive() || now >= since.plus_nanos(PATIENCE_NS) {
                self.leave(&peer);
            } else if since == now {
                self.probe(peer);
            }
        }
    }

    fn probe(self: &Arc<Self>, peer: Arc<Peer>) {
        let Ok(probe) = peer.link.probe() else { return self.leave(&peer) };
        let shared = Arc::clone(self);
        self.spawner.spawn(async move {
            match probe.await.status {
                WcStatus::Success => *lock(&peer.probed) = None,
                _ => shared.leave(&peer),
            }
        });
    }
}

/// Whether a call was cancelled.
#[derive(Debug, Default)]
pub(super) struct Cancel(Mutex<(bool, Option<Waker>)>);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cancel {
    pub(super) fn cancel(&self) {
        let mut state = lock(&self.0);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The result of `work`, unless the call is cancelled before.
    pub(super) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            let mut state = lock(&self.0);
            if state.0 {
                return Poll::Ready(None);
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
