//! Connections to one subsystem that come and go.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::Host;
use super::queue::Payload;
use crate::error::HostError;
use crate::wire::{Command, IdentifyNamespace};

/// All paths.
#[derive(Debug)]
pub(super) struct Paths {
    state: Mutex<State>,
    /// Commands so far: each takes the next path.
    turn: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) paths: Vec<Path>,
    /// Disks that were asked for.
    pub(super) disks: BTreeMap<u32, IdentifyNamespace>,
    waiting: Vec<Waker>,
    /// The program wants no connections any more.
    is_closed: bool,
}

impl State {
    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) to: SocketAddr,
    /// The connection, while there is one.
    pub(super) host: Option<Arc<Host>>,
    /// Nothing connects any more.
    pub(super) is_over: bool,
    /// Connections that there have been.
    pub(super) connections: u64,
    /// Why the last attempt failed.
    pub(super) failure: Option<String>,
}

impl Paths {
    /// None is connected.
    pub(super) fn new(to: &[SocketAddr]) -> Self {
        let path = |&to| Path { to, host: None, is_over: false, connections: 0, failure: None };
        let paths = to.iter().map(path).collect();
        let (disks, waiting) = (BTreeMap::new(), Vec::new());
        let state = State { paths, disks, waiting, is_closed: false };
        Self { state: Mutex::new(state), turn: AtomicUsize::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, number: usize, change: impl FnOnce(&mut Path)) {
        let mut state = self.lock();
        change(&mut state.paths[number]);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let hosts: Vec<Arc<Host>> = state.paths.iter_mut().filter_map(|p| p.host.take()).collect();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        hosts.iter().for_each(|host| host.abandon());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Resolves when the program wants no connections any more.
    pub(super) async fn closed(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.is_closed {
                return Poll::Ready(());
            }
            state.wait(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// A connection, as soon as there is one; not by a path that was tried, unless all were.
    pub(super) async fn host(&self, tried: &[usize]) -> Result<(usize, Arc<Host>), HostError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        poll_fn(|cx| {
            let mut state = self.lock();
            let count = state.paths.len();
            let order = (0..count).map(|i| (turn.wrapping_add(i)) % count);
            let connected = |&i: &usize| state.paths[i].host.is_some();
            let fresh = order.clone().find(|i| connected(i) && !tried.contains(i));
            let number = fresh.or_else(|| order.clone().find(connected));
            if let Some((number, host)) = number
                .and_then(|number| Some((number, Arc::clone(state.paths[number].host.as_ref()?))))
            {
                return Poll::Ready(Ok((number, host)));
            }
            if state.paths.iter().all(|path| path.is_over) {
                return Poll::Ready(Err(HostError::Lost));
            }
            state.wait(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Stops using a connection; its runner makes another.
    pub(super) fn give_up(&self, number: usize, lost: &Arc<Host>) {
        lost.abandon();
        self.change(number, |path| path.host = path.host.take().filter(|h| !Arc::ptr_eq(h, lost)));
    }

    /// Executes a command for a disk, on as many paths as it takes.
    pub(super) async fn call(
        &self,
        command: Command,
        mut payload: Payload<'_>,
    ) -> Result<(), HostError> {
        let mut tried = Vec::new();
        loop {
            let (number, host) = self.host(&tried).await?;
            let result = match self.check(&host, command.nsid).await {
                Ok(()) => host.io(command, payload.again()).await,
                Err(e) => Err(e),
            };
            match result {
                Err(e) if e.is_of_the_path() => self.give_up(number, &host),
                // The target is there and has lost its own connection to the disk.
                Err(HostError::Command(status)) if status.is_of_the_path() => {
                    let all = self.lock().paths.len();
                    if tried.len() + 1 >= all {
                        return Err(HostError::Command(status));
                    }
                    tried.push(number);
                }
                result => return result,
            }
        }
    }

    /// Whether a connection leads to the disk that it must lead to.
    pub(super) async fn check(&self, host: &Host, nsid: u32) -> Result<(), HostError> {
        if host.has_checked(nsid) {
            return Ok(());
        }
        let known = self.lock().disks.get(&nsid).copied();
        let found = host.identify_namespace(nsid).await?;
        if known.is_some_and(|known| !is_same(&known, &found)) {
            return Err(HostError::Changed);
        }
        host.note_checked(nsid);
        Ok(())
    }

    /// The same for all disks that are in use.
    pub(super) async fn check_all(&self, host: &Host) -> Result<(), HostError> {
        let numbers: Vec<u32> = self.lock().disks.keys().copied().collect();
        for nsid in numbers {
            self.check(host, nsid).await?;
        }
        Ok(())
    }
}

fn is_same(known: &IdentifyNamespace, found: &IdentifyNamespace) -> bool {
    (known.guid, known.block_bits) == (found.guid, found.block_bits) && found.blocks >= known.blocks
}
