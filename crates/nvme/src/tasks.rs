//! A set of futures that run inside another one. Each has a waker of its own, so that waking one
//! costs the same however many there are.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Ready {
    /// Tasks that can go on.
    numbers: VecDeque<usize>,
    /// The task that runs all of them.
    outer: Option<Waker>,
}

struct TaskWaker {
    ready: Arc<Mutex<Ready>>,
    number: usize,
    /// Its task is among those that can go on, where it need not be twice.
    is_ready: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_ready.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.numbers.push_back(self.number);
        let outer = ready.outer.take();
        drop(ready);
        outer.into_iter().for_each(Waker::wake);
    }
}

/// A task of the set.
struct Slot {
    task: Task,
    wakes: Arc<TaskWaker>,
    /// The same, as futures take it.
    waker: Waker,
}

/// The set.
#[derive(Default)]
pub(crate) struct Tasks {
    ready: Arc<Mutex<Ready>>,
    all: Vec<Option<Slot>>,
    free: Vec<usize>,
}

impl Tasks {
    /// Adds a task, which runs from the next poll on.
    pub(crate) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let number = self.free.pop().unwrap_or(self.all.len());
        let (ready, is_ready) = (Arc::clone(&self.ready), AtomicBool::new(false));
        let wakes = Arc::new(TaskWaker { ready, number, is_ready });
        if number == self.all.len() {
            self.all.push(None);
        }
        wakes.wake_by_ref();
        let waker = Waker::from(Arc::clone(&wakes));
        self.all[number] = Some(Slot { task: Box::pin(task), wakes, waker });
    }

    /// Lets every task that can go on do so, and waits for more. Ready when there is no task.
    pub(crate) fn poll_all(&mut self, cx: &Context<'_>) -> Poll<()> {
        loop {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(number) = ready.numbers.pop_front() else {
                ready.outer = Some(cx.waker().clone());
                let is_empty = self.all.len() == self.free.len();
                return if is_empty { Poll::Ready(()) } else { Poll::Pending };
            };
            drop(ready);
            // A waker may be called after its task has ended, or another has its place.
            let slot = self.all.get_mut(number).and_then(Option::as_mut);
            let Some(Slot { task, wakes, waker }) = slot else { continue };
            // From here on a wake-up is for what this run may not see.
            wakes.is_ready.swap(false, Ordering::AcqRel);
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.all[number] = None;
                self.free.push(number);
            }
        }
    }
}
