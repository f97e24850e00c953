//! The end that has the disks.
//!
//! Each queue of a host is a connection with a queue pair, receives and buffers of its own, and
//! does not wait for other queues.

mod association;
mod queue;
mod session;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use feroce::Error;
use feroce::cm::{Listener, Manager};

use crate::controller::{QUEUE, TRANSFER};
use crate::subsystem::Subsystem;
use crate::tasks::Tasks;
use crate::wire::{CmReject, CmRequest, RejectStatus};
use association::Shared;
use queue::Parts;
pub use queue::Queue;

/// Queues of all hosts together. A queue of 128 entries has 4.5 MiB of buffers, pages of which
/// exist once they are used.
const QUEUES: usize = 256;

/// Serves disks to hosts, among them Linux: `nvme connect -t rdma`.
///
/// ```
/// use feroce::{Device, cm::Manager};
/// use feroce_nvme::{Host, HostOptions, MemoryNamespace, Namespace as _, Subsystem, Target};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let manager = |ip: &str| Manager::with([Device::at([ip.parse().unwrap()]).open()?]);
/// # let (here, there) = (manager("127.0.0.71")?, manager("127.0.0.72")?);
/// let nqn: feroce_nvme::wire::Nqn = "nqn.2024-01.com.example:disks".parse()?;
/// let disks = Subsystem::new(nqn.clone()).disk(MemoryNamespace::new(2048));
/// let target = Target::bind(&there, "127.0.0.72:0".parse()?, [disks])?;
/// let at = target.local_addr();
/// tokio::spawn(target.serve());
///
/// let host = Host::connect(&here, at, &nqn, &HostOptions::default()).await?;
/// let disk = host.namespace(1).await?;
/// disk.write(8, &[7; 512]).await?;
/// let mut bytes = [0; 512];
/// disk.read(8, &mut bytes).await?;
/// assert_eq!(bytes, [7; 512]);
/// host.disconnect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Target {
    listener: Listener,
    shared: Arc<Shared>,
    queues: Arc<AtomicUsize>,
}

impl Target {
    /// Listens. Port 0 selects a free port; the port that hosts expect is 4420.
    pub fn bind(
        manager: &Manager,
        at: SocketAddr,
        subsystems: impl IntoIterator<Item = Subsystem>,
    ) -> Result<Self, Error> {
        let listener = Listener::bind(manager, at)?;
        let shared = Shared {
            subsystems: subsystems.into_iter().map(Arc::new).collect(),
            controllers: Mutex::new(BTreeMap::new()),
            next: Mutex::new(0),
        };
        let queues = Arc::new(AtomicUsize::new(0));
        Ok(Self { listener, shared: Arc::new(shared), queues })
    }

    /// Listens at another address too, with the same subsystems: another path for hosts. The result
    /// accepts and serves like this target, and is served beside it.
    pub fn bind_also(&self, manager: &Manager, at: SocketAddr) -> Result<Self, Error> {
        let listener = Listener::bind(manager, at)?;
        let (shared, queues) = (Arc::clone(&self.shared), Arc::clone(&self.queues));
        Ok(Self { listener, shared, queues })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Accepts the next queue of a host. The caller lets it [serve](Queue::serve), in a task or a
    /// thread of its own. Requests that cannot be accepted are rejected meanwhile.
    pub async fn accept(&self) -> Result<Queue, Error> {
        loop {
            let request = self.listener.accept_async().await?;
            let asked = self.check(CmRequest::parse(request.private_data()));
            let parts =
                asked.and_then(|asked| Parts::make(&request, asked).ok_or(RejectStatus::Resources));
            match parts {
                Ok(parts) => {
                    let slot = QueueSlot::take(&self.queues);
                    let made = Queue::new(Arc::clone(&self.shared), request, parts, slot);
                    if let Ok(queue) = made {
                        return Ok(queue);
                    }
                }
                // A host that is gone does not hear it.
                Err(status) => drop(request.reject(&CmReject(status).emit())),
            }
        }
    }

    fn check(&self, asked: Result<CmRequest, RejectStatus>) -> Result<CmRequest, RejectStatus> {
        let asked = asked?;
        if asked.send_size == 0 || asked.send_size >= QUEUE {
            return Err(RejectStatus::SendSize);
        }
        if self.queues.load(Ordering::Acquire) >= QUEUES {
            return Err(RejectStatus::Resources);
        }
        Ok(asked)
    }

    /// Ends the connections of hosts that were silent for longer than the keep-alive time that they
    /// have announced. A program calls this now and then, from any thread.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// Serves all hosts in this future, until the listener fails. Disks whose operations block
    /// their thread hold up all of them; a program with such disks calls [`Target::accept`] and
    /// gives each queue a thread.
    pub async fn serve(self) -> Result<(), Error> {
        let mut tasks = Tasks::default();
        loop {
            let queue = {
                let mut accept = pin!(self.accept());
                poll_fn(|cx| {
                    let accepted = accept.as_mut().poll(cx);
                    // There may be no task now and some later.
                    let _ = tasks.poll_all(cx);
                    accepted
                })
                .await?
            };
            tasks.add(async move { drop(queue.serve().await) });
        }
    }
}

/// Ends the connections of hosts that are silent.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// Ends those that have been silent for too long now.
    pub fn expire(&self) {
        self.0.expire();
    }
}

/// A place among the queues of a target; dropping it gives it back.
#[derive(Debug)]
struct QueueSlot(Arc<AtomicUsize>);

impl QueueSlot {
    fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Locks; a thread that panicked has left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls tasks until one of them ends the queue, or the connection ends.
async fn until(mut tasks: Tasks, ended: impl Future<Output = ()>) {
    let mut ended = pin!(ended);
    poll_fn(
        |cx| {
            if tasks.poll_all(cx).is_ready() { Poll::Ready(()) } else { ended.as_mut().poll(cx) }
        },
    )
    .await;
}

const _: () = assert!(TRANSFER <= 1 << 23, "a keyed descriptor has 24 bits for the length");
