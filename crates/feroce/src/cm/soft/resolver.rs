//! The thread that waits for neighbours and for the subnet administration, so that no caller does.
//!
//! There is one in a process, while ids wait for answers; it ends with the last of them. A forked
//! child has no such thread and starts its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feroce_cm::rdma::EventKind;
use feroce_wire::mad::PathRecord;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::neighbour::{Answer, Neighbour};
use super::queued::Queued;
use super::service::tell;
use super::shared::{Owner, Shared, Stage};
use super::subnet::{self, Joining};
use crate::driver::clock::monotonic_ns;
use crate::subnet_admin::{Question, Refusal, read_member, read_path};

const NS_PER_MS: u64 = 1_000_000;

/// What an id waits for.
enum Awaited {
    /// The neighbour on the route to its peer.
    Neighbour(Neighbour),
    /// A path to its peer.
    Path(Question),
    /// Membership of its port in a multicast group; `None` once it is decided.
    Group(Question, Option<Joining>),
}

/// An id that waits.
struct Pending {
    id: Weak<Owner>,
    awaited: Awaited,
    deadline_ns: u64,
}

/// How long the fabric may take, beyond the time limit of a question, to say that it is over.
const GRACE_MS: u32 = 1000;

/// What the thread is to do, and how to tell it that there is more.
struct Work {
    process: u32,
    new: Vec<Pending>,
    wake: Arc<EventFd>,
}

/// The work of the thread, while it runs.
static WORK: Mutex<Option<Work>> = Mutex::new(None);

fn work() -> MutexGuard<'static, Option<Work>> {
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to an id whether a neighbour answers within the time limit.
pub(super) fn wait(id: &Arc<Owner>, neighbour: Neighbour, timeout_ms: u32) -> io::Result<()> {
    begin(id, Awaited::Neighbour(neighbour), timeout_ms)
}

/// Reports to an id whether there is a path to its peer, once the question is answered.
pub(super) fn wait_for_path(
    id: &Arc<Owner>,
    question: Question,
    timeout_ms: u32,
) -> io::Result<()> {
    begin(id, Awaited::Path(question), timeout_ms.saturating_add(GRACE_MS))
}

/// Reports to an id whether its port has joined a group, once the question is answered.
pub(super) fn wait_for_group(
    id: &Arc<Owner>,
    question: Question,
    joining: Joining,
    timeout_ms: u32,
) -> io::Result<()> {
    let timeout_ms = timeout_ms.saturating_add(GRACE_MS);
    begin(id, Awaited::Group(question, Some(joining)), timeout_ms)
}

fn begin(id: &Arc<Owner>, awaited: Awaited, timeout_ms: u32) -> io::Result<()> {
    let deadline_ns = monotonic_ns() + u64::from(timeout_ms) * NS_PER_MS;
    let pending = Pending { id: Arc::downgrade(id), awaited, deadline_ns };
    let mut slot = work();
    if let Some(work) = slot.as_mut()
        && work.process == process::id()
    {
        work.new.push(pending);
        work.wake.write(1)?;
        return Ok(());
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let wake = Arc::new(EventFd::from_flags(flags)?);
    start(Arc::clone(&wake))?;
    // What a parent process waited for is the parent's.
    let inherited = slot.replace(Work { process: process::id(), new: vec![pending], wake });
    std::mem::forget(inherited);
    Ok(())
}

/// Starts the thread, which waits for the lock that the caller holds.
fn start(wake: Arc<EventFd>) -> io::Result<()> {
    // Signals are for the program.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let name = "feroce-resolver".to_owned();
    let spawned = std::thread::Builder::new().name(name).spawn(move || run(&wake));
    before.thread_set_mask()?;
    spawned.map(drop)
}

fn run(wake: &EventFd) {
    let mut pending = Vec::new();
    loop {
        {
            let mut slot = work();
            if let Some(work) = slot.as_mut() {
                pending.append(&mut work.new);
            }
            if pending.is_empty() {
                *slot = None;
                return;
            }
        }
        // Without the lock: this drops ids, and locks others.
        pending.retain_mut(|pending: &mut Pending| !pending.is_over());
        if !pending.is_empty() {
            sleep(&pending, wake);
        }
    }
}

/// Sleeps until there may be something to do.
fn sleep(pending: &[Pending], wake: &EventFd) {
    let now = monotonic_ns();
    let first = pending.iter().map(|pending| pending.deadline_ns).min().unwrap_or(now);
    // Rounded up, so that the deadline has passed afterwards.
    let wait_ms = first.saturating_sub(now).div_ceil(NS_PER_MS);
    let wait = PollTimeout::try_from(wait_ms).unwrap_or(PollTimeout::MAX);
    let sockets = pending.iter().map(|pending| pending.awaited.fd());
    let mut fds: Vec<PollFd<'_>> =
        sockets.chain([wake.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // After an interruption or an error everything is looked at again.
    let _ = poll(&mut fds, wait);
    let _ = wake.read();
}

impl Pending {
    /// Whether nothing is left to wait for; the id has its event then.
    fn is_over(&mut self) -> bool {
        // Held until the event is in its queue: if it is destroyed meanwhile, this thread does that
        // when it lets go, and takes the event out again.
        let Some(owner) = self.id.upgrade() else { return true };
        let id = &owner.shared;
        let is_late = monotonic_ns() >= self.deadline_ns;
        match &mut self.awaited {
            Awaited::Neighbour(neighbour) => match neighbour.look() {
                Answer::Reachable => resolved(id),
                Answer::Open if !is_late => return false,
                Answer::Open => unresolved(id, -libc::ETIMEDOUT),
            },
            Awaited::Path(question) => match question.look() {
                Some(Ok(record)) => on_path(id, read_path(&record)),
                Some(Err(refusal)) => no_path(id, refusal.status()),
                None if !is_late => return false,
                None => no_path(id, -libc::ETIMEDOUT),
            },
            Awaited::Group(question, joining) => {
                let answer = match question.look() {
                    None if !is_late => return false,
                    answer => answer.unwrap_or(Err(Refusal::Silence)),
                };
                let member = answer.map(|record| read_member(&record));
                match (member, joining.take()) {
                    (Ok(Some(member)), Some(joining)) => subnet::joined(&owner, &member, joining),
                    (Err(refusal), _) => subnet::not_joined(id, refusal.status()),
                    (Ok(_), _) => subnet::not_joined(id, -libc::EINVAL),
                }
            }
        }
        true
    }
}

impl Awaited {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Neighbour(neighbour) => neighbour.fd(),
            Self::Path(question) | Self::Group(question, _) => question.fd(),
        }
    }
}

/// The subnet administration has told a path.
fn on_path(id: &Arc<Shared>, path: Option<PathRecord>) {
    let Some(path) = path else { return no_path(id, -libc::EINVAL) };
    id.lock().path = Some(path);
    settle(id, Stage::RouteQuery, Stage::RouteResolved, EventKind::RouteResolved, 0);
}

/// There is no path to the peer of an id, which may ask again.
fn no_path(id: &Arc<Shared>, status: i32) {
    settle(id, Stage::RouteQuery, Stage::AddrResolved, EventKind::RouteError, status);
}

/// The address of an id's peer is not resolved; the id may try again.
pub(super) fn unresolved(id: &Arc<Shared>, status: i32) {
    settle(id, Stage::AddrQuery, Stage::Bound, EventKind::AddrError, status);
}

/// The address of an id's peer is resolved.
pub(super) fn resolved(id: &Arc<Shared>) {
    settle(id, Stage::AddrQuery, Stage::AddrResolved, EventKind::AddrResolved, 0);
}

/// Ends the query of an id, unless its device has gone meanwhile.
fn settle(id: &Arc<Shared>, during: Stage, stage: Stage, event: EventKind, status: i32) {
    let mut inner = id.lock();
    if inner.stage == during {
        inner.stage = stage;
        drop(inner);
        tell(Queued::new(event, id, status));
    }
}
