//! The shards of a device: drivers with an engine and a link each, and what concerns them all.
//!
//! A queue pair lives in one shard, which its number names. Protection domains, memory regions and
//! completion queues are in every shard under the same name: each shard has tables of its own, and
//! an operation that changes them has the locks of all shards, so that no shard sees half of it.
//! Shared receive queues, datagrams, extended reliable connections and connection management are in
//! the first shard.
//!
//! Locks of several shards are taken in the order of the shards: the link of the first, its engine,
//! the link of the second, and so on. A process that forks takes them in this order as well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use feroce_engine::{Engine, ModifyQpError, QpAttr, QpInitAttr, QpType};
use feroce_mem::Revocation;
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::link_side::OwnedLink;
use super::locks::StateGuard;
use super::wakes::Signal;
use super::{Driver, State, Turn, WakeOnDrop, Wakes};

/// The shards of a device: at least one.
#[derive(Debug)]
pub(crate) struct Shards {
    first: Arc<Driver>,
    more: Box<[Arc<Driver>]>,
    /// How many queue pairs were given a shard so far.
    placed: AtomicUsize,
}

/// The locked engines of the shards but the first.
pub(crate) type Others<'a> = [StateGuard<'a>];

impl Shards {
    /// The shards of a device that has `more` than the first.
    pub(crate) fn new(first: Arc<Driver>, more: Vec<Arc<Driver>>) -> Self {
        for driver in &more {
            driver.state().first = Some(Arc::downgrade(&first));
            driver.has_siblings.store(true, Ordering::Relaxed);
        }
        first.has_siblings.store(!more.is_empty(), Ordering::Relaxed);
        let shards = Self { first, more: more.into(), placed: AtomicUsize::new(0) };
        let _ = shards.first.siblings.set(shards.siblings());
        shards
    }

    /// The shard that has what only one has.
    pub(crate) fn first(&self) -> &Arc<Driver> {
        &self.first
    }

    /// All shards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Driver>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// The shard for a new queue pair, and its number: each gets one in turn, of those that may be
    /// in any.
    pub(crate) fn place(&self, init: &QpInitAttr) -> (usize, &Arc<Driver>) {
        let may_be_anywhere = matches!(init.qp_type, QpType::Rc | QpType::Uc) && init.srq.is_none();
        if self.more.is_empty() || !may_be_anywhere {
            return (0, &self.first);
        }
        let turn = self.placed.fetch_add(1, Ordering::Relaxed) % self.len();
        (turn, turn.checked_sub(1).and_then(|at| self.more.get(at)).unwrap_or(&self.first))
    }

    /// For connection management, which is in the first shard.
    pub(crate) fn siblings(&self) -> Siblings {
        Siblings(self.more.iter().map(Arc::downgrade).collect())
    }

    /// Adds to the tables of all shards; see [`Driver::create`].
    pub(crate) fn create<R>(&self, f: impl FnOnce(&mut State, &mut Others<'_>) -> R) -> R {
        let _wakes: Vec<_> = self.more.iter().map(|d| WakeOnDrop::new(&d.wakes)).collect();
        self.first.create(|state| {
            let mut others: Vec<_> = self.more.iter().map(|driver| driver.state()).collect();
            f(state, &mut others)
        })
    }

    /// Changes the tables of all shards; see [`Driver::control`].
    pub(crate) fn control<R>(&self, f: impl FnOnce(&mut State, &mut Others<'_>) -> R) -> R {
        if self.more.is_empty() {
            return self.first.control(|state, _| f(state, &mut []));
        }
        let mut links = vec![self.first.link()];
        let mut first = self.first.state();
        let mut others = Vec::new();
        for driver in &self.more {
            links.push(driver.link());
            others.push(driver.state());
        }
        let result = f(&mut first, &mut others);
        drop((first, others));
        let now = self.first.now();
        let driven =
            self.iter().zip(links).map(|(driver, link)| driver.drive(link, now, Turn::Send));
        // Consumers are woken when every lock is released.
        let wakes: Vec<WakeOnDrop<'_>> = driven.map(|(_, wakes)| wakes).collect();
        drop(wakes);
        result
    }

    /// Changes the tables of all shards, and waits until no process of the host copies any more
    /// under the rights that have ended; see [`Driver::control_until_quiet`].
    pub(crate) fn control_until_quiet<R>(
        &self,
        f: impl FnOnce(&mut State, &mut Others<'_>) -> R,
    ) -> R {
        let (result, revocations) = self.control(|state, others| {
            let result = f(state, others);
            let first = state.engine.last_revocation(None);
            let others = others.iter().map(|state| state.engine.last_revocation(None));
            (result, std::iter::once(first).chain(others).collect::<Vec<Option<Revocation>>>())
        });
        for (driver, revocation) in self.iter().zip(revocations) {
            driver.end_rights(revocation);
        }
        result
    }
}

/// The claim of a driver thread to the link of its shard; see [`Driver::claim_link`].
pub(super) struct Claim<'a>(&'a Driver);

impl Driver {
    /// The other shards, if this is the first.
    pub(super) fn siblings(&self) -> impl Iterator<Item = Arc<Self>> {
        self.siblings.get().into_iter().flat_map(Siblings::iter)
    }

    /// The driver thread of one of several shards claims the link while it is awake: threads that
    /// post then leave their work to it, and threads that poll leave it what arrives, so that one
    /// consumer can keep several shards busy. `None`: there is one shard, and the thread
    /// that needs progress drives it.
    pub(super) fn claim_link(&self) -> Option<Claim<'_>> {
        let has_siblings = self.has_siblings.load(Ordering::Relaxed);
        has_siblings.then(|| {
            self.locks.claim_outer();
            Claim(self)
        })
    }
}

impl<'a> Claim<'a> {
    /// Whether the thread should give it up, because the process is about to exit.
    pub(super) fn is_over(&self) -> bool {
        !self.0.has_siblings.load(Ordering::Relaxed)
    }

    /// Takes the link, unless a thread has it or waits for it.
    pub(super) fn try_link(&self) -> Option<OwnedLink<'a>> {
        let link = self.0.locks.try_claimed_outer()?;
        Some(OwnedLink::new(link, &self.0.wakes))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // The thread looks at the doorbells afterwards, as every thread does that had the link.
        self.0.locks.end_claim();
    }
}

/// The shards but the first, for connection management.
#[derive(Clone, Debug)]
pub(crate) struct Siblings(Arc<[Weak<Driver>]>);

impl Siblings {
    fn iter(&self) -> impl Iterator<Item = Arc<Driver>> {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// The shard of a queue pair that is not in the first.
    fn find(&self, qpn: Qpn) -> Option<Arc<Driver>> {
        self.iter().find(|driver| driver.is_home_of(qpn))
    }

    /// Changes a queue pair of any shard. The caller has the lock of `engine`, the first one, and
    /// releases it before it runs `wakes`.
    pub(crate) fn modify_qp(
        &self,
        engine: &mut Engine,
        wakes: &Wakes,
        now: Instant,
        (qpn, attr): (Qpn, &QpAttr),
    ) -> Result<(), ModifyQpError> {
        let Some(driver) = self.find(qpn) else { return engine.modify_qp(now, qpn, attr) };
        let result = driver.state().engine.modify_qp(now, qpn, attr);
        wakes.add(Arc::new(Drive(driver)));
        result
    }

    /// The attributes of a queue pair of any shard. The caller has the lock of `engine`.
    pub(crate) fn query_qp(&self, engine: &Engine, qpn: Qpn) -> Option<(QpAttr, QpInitAttr)> {
        match self.find(qpn) {
            Some(driver) => driver.state().engine.query_qp(qpn),
            None => engine.query_qp(qpn),
        }
    }
}

/// Drives a shard in which another one has changed a queue pair, when that has released its locks.
#[derive(Debug)]
struct Drive(Arc<Driver>);

impl Signal for Drive {
    fn signal(&self) {
        self.0.control(|_, _| ());
    }
}

/// Tells the connection management of the first shard that a queue pair of another one has received
/// data before its connection was established.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) first: Weak<Driver>,
    pub(super) qpn: Qpn,
}

impl Signal for Established {
    fn signal(&self) {
        let Some(first) = self.first.upgrade() else { return };
        first.control(|state, _| {
            if let Some(agent) = &mut state.agent {
                agent.on_established(self.qpn);
            }
        });
    }
}
