//! A set of futures that run inside another one, so that an end of a connection is one future for
//! any runtime. Each has a waker of its own, so that waking one costs the same however many there
//! are.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// How often [`Tasks::poll_ready`] lets tasks go on: one waits for a message, which wakes another.
const ROUNDS: usize = 2;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Inner {
    /// Tasks that can go on.
    ready: VecDeque<usize>,
    /// Tasks that were added meanwhile.
    added: VecDeque<Task>,
    /// The task that runs all of them.
    outer: Option<Waker>,
    /// Another task runs them at present, and will see which can go on.
    is_driven: bool,
}

/// What the set and its wakers share.
#[derive(Default)]
struct Shared(Mutex<Inner>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        change(&mut inner);
        let outer = if inner.is_driven { None } else { inner.outer.take() };
        drop(inner);
        outer.into_iter().for_each(Waker::wake);
    }
}

struct TaskWaker {
    shared: Arc<Shared>,
    number: usize,
    /// Its task is among those that can go on. If it were there twice, it would run again before
    /// the tasks that its first run has woken, and a task that looks for completions would keep the
    /// thread from them.
    is_ready: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.shared.change(|inner| inner.ready.push_back(self.number));
        }
    }
}

/// Adds tasks to a set.
#[derive(Clone)]
pub(crate) struct Spawner(Arc<Shared>);

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}

impl Spawner {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.change(|inner| inner.added.push_back(Box::pin(task)));
    }

    /// The task of `cx` runs the set, and cannot do so now because another one does.
    pub(crate) fn wait(&self, cx: &Context<'_>) {
        self.0.lock().outer = Some(cx.waker().clone());
    }

    /// Wakes the task that runs the set, if there is anything to run.
    pub(crate) fn go_on(&self) {
        let mut inner = self.0.lock();
        let has_work = !inner.ready.is_empty() || !inner.added.is_empty();
        let outer = inner.outer.take_if(|_| has_work);
        drop(inner);
        outer.into_iter().for_each(Waker::wake);
    }
}

/// A place for a task of the set, which is used again when that has ended.
struct Slot {
    task: Option<Task>,
    wakes: Arc<TaskWaker>,
    /// The same, as futures take it.
    waker: Waker,
}

/// Runs its tasks for ever.
#[derive(Default)]
pub(crate) struct Tasks {
    shared: Arc<Shared>,
    all: Vec<Slot>,
    free: Vec<usize>,
    /// Whether [`poll_all`](Self::poll_all) has woken its own task.
    goes_on: bool,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("count", &(self.all.len() - self.free.len())).finish()
    }
}

impl Tasks {
    pub(crate) fn spawner(&self) -> Spawner {
        Spawner(Arc::clone(&self.shared))
    }

    /// Lets every task that can go on now do so, and waits for more. Tasks that those wake run
    /// after other tasks of the runtime, or, if `is_left` says so, when [`Spawner::go_on`] is
    /// called. Ready when there is no task.
    pub(crate) fn poll_all(
        &mut self,
        cx: &Context<'_>,
        is_left: impl FnOnce() -> bool,
    ) -> Poll<()> {
        self.goes_on = false;
        let mut left = self.shared.lock().ready.len();
        loop {
            let mut inner = self.shared.lock();
            let added = inner.added.pop_front();
            let ready = if added.is_none() && left > 0 { inner.ready.pop_front() } else { None };
            if added.is_none() && ready.is_none() {
                inner.outer = Some(cx.waker().clone());
                if !inner.ready.is_empty() {
                    drop(inner);
                    self.goes_on = !is_left();
                    if self.goes_on {
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
                let is_empty = self.all.len() == self.free.len();
                return if is_empty { Poll::Ready(()) } else { Poll::Pending };
            }
            drop(inner);
            if let Some(task) = added {
                self.add(task);
            }
            if let Some(number) = ready {
                left -= 1;
                self.run(number);
            }
        }
    }

    /// Whether [`poll_all`](Self::poll_all) runs again after the tasks of the runtime that can run.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Lets every task that can go on now do so, and those that they wake, unless it `is_enough`
    /// before: for a task other than the one that calls [`poll_all`](Self::poll_all). That one is
    /// woken by [`Spawner::go_on`].
    pub(crate) fn poll_ready(&mut self, is_enough: impl Fn() -> bool) {
        let mut inner = self.shared.lock();
        inner.is_driven = true;
        for _ in 0..ROUNDS {
            for _ in 0..inner.ready.len() {
                let Some(number) = inner.ready.pop_front() else { break };
                drop(inner);
                self.run(number);
                inner = self.shared.lock();
            }
            drop(inner);
            let ends = is_enough();
            inner = self.shared.lock();
            if ends {
                break;
            }
        }
        inner.is_driven = false;
    }

    fn add(&mut self, task: Task) {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.all.len();
            let (shared, is_ready) = (Arc::clone(&self.shared), AtomicBool::new(false));
            let wakes = Arc::new(TaskWaker { shared, number, is_ready });
            let waker = Waker::from(Arc::clone(&wakes));
            self.all.push(Slot { task: None, wakes, waker });
            number
        });
        self.all[number].task = Some(task);
        self.run(number);
    }

    fn run(&mut self, number: usize) {
        let Some(Slot { task, wakes, waker }) = self.all.get_mut(number) else { return };
        // From here on a wake-up is for what this run may not see.
        wakes.is_ready.swap(false, Ordering::AcqRel);
        // A waker may be called after its task has ended, or when another has its place.
        let Some(running) = task else { return };
        if running.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            *task = None;
            self.free.push(number);
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Tasks may hold spawners of this set.
        let added = std::mem::take(&mut self.shared.lock().added);
        drop(added);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A task that counts its runs, and its waker.
    fn counting(tasks: &Tasks) -> (Arc<AtomicUsize>, Arc<Mutex<Option<Waker>>>) {
        let (runs, waker) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Option<Waker>>>::default());
        let (counted, kept) = (Arc::clone(&runs), Arc::clone(&waker));
        tasks.spawner().spawn(poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            *kept.lock().unwrap() = Some(cx.waker().clone());
            Poll::Pending
        }));
        (runs, waker)
    }

    #[test]
    fn a_task_that_is_woken_twice_runs_once() {
        let mut tasks = Tasks::default();
        let (runs, waker) = counting(&tasks);
        let cx = Context::from_waker(Waker::noop());
        assert!(tasks.poll_all(&cx, || false).is_pending());
        let waker = waker.lock().unwrap().clone().expect("it has run");
        for _ in 0..2 {
            let before = runs.load(Ordering::Relaxed);
            waker.wake_by_ref();
            waker.wake_by_ref();
            assert!(tasks.poll_all(&cx, || false).is_pending());
            assert!(tasks.poll_all(&cx, || false).is_pending());
            assert_eq!(runs.load(Ordering::Relaxed), before + 1);
        }
    }

    #[test]
    fn tasks_that_were_woken_run_with_those_that_they_wake() {
        let mut tasks = Tasks::default();
        let (runs, woken) = counting(&tasks);
        let (first, kept) = (Arc::<Mutex<Option<Waker>>>::default(), Arc::clone(&woken));
        let waker = Arc::clone(&first);
        tasks.spawner().spawn(poll_fn(move |cx| {
            *waker.lock().unwrap() = Some(cx.waker().clone());
            kept.lock().unwrap().iter().for_each(Waker::wake_by_ref);
            Poll::Pending
        }));
        let cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            assert!(tasks.poll_all(&cx, || false).is_pending());
        }
        let first = first.lock().unwrap().clone().expect("it has run");
        let before = runs.load(Ordering::Relaxed);
        first.wake_by_ref();
        tasks.poll_ready(|| true);
        assert_eq!(runs.load(Ordering::Relaxed), before);
        tasks.poll_ready(|| false);
        assert_eq!(runs.load(Ordering::Relaxed), before + 1);
    }
}
