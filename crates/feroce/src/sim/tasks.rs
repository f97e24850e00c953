//! The tasks of a host: the functions that run on it, and what they spawned.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Tasks that can go on, in the order in which they were woken. Wakers are `Send`, so this is too,
/// although only the thread of the world uses it.
#[derive(Debug, Default)]
struct Ready(Mutex<VecDeque<u64>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: u64) {
        let mut ready = self.lock();
        if !ready.contains(&task) {
            ready.push_back(task);
        }
    }
}

/// Wakes one task.
struct TaskWaker {
    ready: Arc<Ready>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.task);
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of one host.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    ready: Arc<Ready>,
    all: Rc<RefCell<BTreeMap<u64, Option<Task>>>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Tasks {
    /// Adds a task, which can go on.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut all = self.all.borrow_mut();
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, Some(Box::pin(task)));
        self.ready.push(number);
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ready.lock().is_empty()
    }

    /// Lets the tasks that can go on do so.
    pub(super) fn run(&self) {
        loop {
            let Some(number) = self.ready.lock().pop_front() else { return };
            // The task is taken out while it runs, because it may spawn others.
            let taken = self.all.borrow_mut().get_mut(&number).and_then(Option::take);
            let Some(mut task) = taken else { continue };
            let waker = TaskWaker { ready: Arc::clone(&self.ready), task: number };
            let waker = Waker::from(Arc::new(waker));
            let is_over = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if is_over {
                drop(task);
                self.all.borrow_mut().remove(&number);
            } else if let Some(place) = self.all.borrow_mut().get_mut(&number) {
                *place = Some(task);
            }
        }
    }

    /// Drops all tasks.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.all.borrow_mut());
        self.ready.lock().clear();
        drop(all);
    }
}

/// What [`Host::spawn`](super::Host::spawn) returns: resolves with the result of the task.
#[derive(Debug)]
pub struct Spawned<T>(Rc<RefCell<Slot<T>>>);

#[derive(Debug)]
struct Slot<T> {
    result: Option<T>,
    waiting: Option<Waker>,
}

impl<T: 'static> Spawned<T> {
    pub(super) fn start(tasks: &Tasks, task: impl Future<Output = T> + 'static) -> Self {
        let slot = Rc::new(RefCell::new(Slot { result: None, waiting: None }));
        let there = Rc::clone(&slot);
        tasks.spawn(async move {
            let result = task.await;
            let mut slot = there.borrow_mut();
            slot.result = Some(result);
            let waiting = slot.waiting.take();
            drop(slot);
            waiting.into_iter().for_each(Waker::wake);
        });
        Self(slot)
    }
}

impl<T> Future for Spawned<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.borrow_mut();
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
