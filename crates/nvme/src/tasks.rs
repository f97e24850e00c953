//! A set of futures that run inside another one. Each has a waker of its own, so that waking one
//! costs the same however many there are.

use std::collections::VecDeque;
use std::pin::Pin;
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
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.numbers.push_back(self.number);
        let outer = ready.outer.take();
        drop(ready);
        outer.into_iter().for_each(Waker::wake);
    }
}

/// The set.
#[derive(Default)]
pub(crate) struct Tasks {
    ready: Arc<Mutex<Ready>>,
    all: Vec<Option<(Task, Waker)>>,
    free: Vec<usize>,
}

impl Tasks {
    /// Adds a task, which runs from the next poll on.
    pub(crate) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let number = self.free.pop().unwrap_or(self.all.len());
        let waker = Waker::from(Arc::new(TaskWaker { ready: Arc::clone(&self.ready), number }));
        if number == self.all.len() {
            self.all.push(None);
        }
        waker.wake_by_ref();
        self.all[number] = Some((Box::pin(task), waker));
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
            let Some(Some((task, waker))) = self.all.get_mut(number) else { continue };
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.all[number] = None;
                self.free.push(number);
            }
        }
    }
}
