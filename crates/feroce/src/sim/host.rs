//! A host, as the programs on it see it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use super::tasks::{Spawned, Tasks};
use crate::cm::Manager;
use crate::virtual_time::VirtualTime;
use crate::{Context, Error};

/// Wakers by the time at which they are due. The second number keeps the order of equal times.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

impl Timers {
    fn add(&mut self, at_ns: u64, waker: Waker) -> (u64, u64) {
        self.next += 1;
        self.due.insert((at_ns, self.next), waker);
        (at_ns, self.next)
    }

    /// When the next one is due.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.first_key_value().map(|(&(at_ns, _), _)| at_ns)
    }

    /// Takes one that is due.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Waker> {
        let first = self.due.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }
}

/// What all hosts of a world share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) time: VirtualTime,
    pub(super) timers: RefCell<Timers>,
    pub(super) addresses: RefCell<BTreeMap<String, IpAddr>>,
}

/// A host of a world, for the program that runs on it. Cheap to clone.
///
/// Everything that a program waits for has to come from here or from `feroce`: a runtime, a thread
/// or a sleep of the operating system knows nothing of the time in a world.
#[derive(Clone)]
pub struct Host {
    pub(super) name: Rc<str>,
    pub(super) context: Context,
    pub(super) tasks: Tasks,
    pub(super) shared: Rc<Shared>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device, open.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// A connection manager with its device.
    pub fn manager(&self) -> Result<Manager, Error> {
        Manager::with([self.context.clone()])
    }

    /// The address of a host, itself or another.
    ///
    /// # Panics
    /// If no host has this name.
    pub fn addr_of(&self, name: &str) -> IpAddr {
        let addresses = self.shared.addresses.borrow();
        *addresses.get(name).unwrap_or_else(|| panic!("no host is called {name:?}"))
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.time.ns() - VirtualTime::START_NS)
    }

    /// Runs another task on the host, beside the one that calls this.
    pub fn spawn<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Spawned<T> {
        Spawned::start(&self.tasks, task)
    }

    /// Resolves when the time has passed.
    pub fn sleep(&self, time: Duration) -> Sleep {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at_ns = self.shared.time.ns().saturating_add(ns);
        Sleep { shared: Rc::clone(&self.shared), at_ns, key: None }
    }

    /// Resolves with the result of `task`, or with `None` when the time has passed; then `task` is
    /// dropped.
    pub async fn timeout<T>(&self, time: Duration, task: impl Future<Output = T>) -> Option<T> {
        let mut task = pin!(task);
        let mut sleep = self.sleep(time);
        std::future::poll_fn(|cx| match task.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| None),
        })
        .await
    }
}

/// What [`Host::sleep`] returns.
#[derive(Debug)]
pub struct Sleep {
    shared: Rc<Shared>,
    at_ns: u64,
    key: Option<(u64, u64)>,
}

impl Sleep {
    fn forget(&mut self) {
        if let Some(key) = self.key.take() {
            self.shared.timers.borrow_mut().due.remove(&key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.forget();
        if self.shared.time.ns() >= self.at_ns {
            return Poll::Ready(());
        }
        let key = self.shared.timers.borrow_mut().add(self.at_ns, cx.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}
