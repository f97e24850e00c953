//! A queue to a target: commands go out, completions come back in any order.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use feroce::cm::{CmId, ConnParam, Connection, Connector, EventKind, Manager};
use feroce::{
    Access, Buf, Data, Inbox, InlineBytes, Mr, Pool, QpCap, RoutedBuf, Router, SendOp, SendWr,
    WcStatus,
};

use super::give_way::GiveWay;
use crate::controller::{IN_CAPSULE, TRANSFER};
use crate::error::HostError;
use crate::wire::{CAPSULE, COMPLETION, CmRequest, Command, Completion, Sgl};

/// One in so many commands without data in their capsules has a completion in the send queue, with
/// which those before it leave that, too.
const SIGNALED: u32 = 16;

/// Data of a command.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    None,
    /// Goes to the target; in the capsule, if it fits.
    Out(&'a [u8]),
    /// Comes from the target.
    In(&'a mut [u8]),
}

impl Payload<'_> {
    /// The same data, for a command that is executed once more.
    pub(super) fn again(&mut self) -> Payload<'_> {
        match self {
            Self::None => Payload::None,
            Self::Out(bytes) => Payload::Out(bytes),
            Self::In(bytes) => Payload::In(bytes),
        }
    }
}

/// A queue.
#[derive(Debug)]
pub(super) struct HostQueue {
    connection: Mutex<Connection>,
    sends: Router,
    receives: Inbox,
    capsules: Pool,
    /// Commands that were sent without data in their capsules.
    sent_inline: AtomicU32,
    /// A place for the data of each command, by its number. The target may use it as long as the
    /// connection lasts: to register it anew for each command would take longer than to move the
    /// data. A target that touches it at another time than that of a command spoils data of its
    /// own disks.
    data: Mr,
    /// The last command with each number that had data in its capsule, until it is known to be
    /// acknowledged.
    sent: Mutex<Vec<Option<RoutedBuf>>>,
    give_way: GiveWay,
    state: Mutex<State>,
    waiting: Arc<Waiting>,
    /// Bytes of data that a capsule may hold.
    in_capsule: usize,
}

#[derive(Debug)]
struct State {
    /// Commands by their number.
    calls: Vec<Call>,
    /// Resolves when the target has ended the connection. What is posted is not flushed by that.
    ended: Ended,
    is_lost: bool,
}

/// A future without a name.
struct Ended(Pin<Box<dyn Future<Output = ()> + Send>>);

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ended")
    }
}

impl Ended {
    fn of(id: CmId) -> Self {
        use EventKind::{ConnectError, DeviceRemoval, Disconnected, Unreachable};
        Self(Box::pin(async move {
            let channel = id.channel();
            loop {
                let kind = channel.event().await.kind;
                if matches!(kind, Disconnected | Unreachable | ConnectError | DeviceRemoval) {
                    return;
                }
            }
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Call {
    Free,
    /// The task with this ticket waits, as soon as there is one.
    Waiting(u64),
    Done(Completion),
    /// The caller has gone; the number is free when the completion has come.
    Abandoned,
}

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum For {
    /// The completion of its command.
    Completion,
    /// A number for its command.
    Place,
    /// The loss of the connection.
    Loss,
}

/// Tasks that wait. A completion wakes one of them, which takes all completions that have come and
/// wakes the tasks they are for.
#[derive(Debug, Default)]
struct Waiting(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// Number of the ticket that was given out last.
    last: u64,
    completions: BTreeMap<u64, Waker>,
    places: BTreeMap<u64, Waker>,
    losses: BTreeMap<u64, Waker>,
}

impl Waits {
    fn of(&mut self, what: For) -> &mut BTreeMap<u64, Waker> {
        match what {
            For::Completion => &mut self.completions,
            For::Place => &mut self.places,
            For::Loss => &mut self.losses,
        }
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self) -> u64 {
        let mut waits = self.lock();
        waits.last += 1;
        waits.last
    }

    /// Wakes a task that looks after the queue. One that waits for the loss of the connection is
    /// woken if there is no other, so that it costs busy queues nothing.
    fn wake_one(&self) {
        let waits = self.lock();
        let mut all = waits.completions.values().chain(waits.places.values());
        let waker = all.next().or_else(|| waits.losses.values().next()).cloned();
        drop(waits);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task with this ticket, which waits for its completion.
    fn wake_ticket(&self, ticket: u64) {
        let waker = self.lock().completions.get(&ticket).cloned();
        waker.into_iter().for_each(Waker::wake);
    }

    /// A number has become free.
    fn wake_place(&self) {
        let waker = self.lock().places.values().next().cloned();
        waker.into_iter().for_each(Waker::wake);
    }

    fn wake_all(&self) {
        let waits = self.lock();
        let all = waits.completions.values().chain(waits.places.values());
        let all: Vec<Waker> = all.chain(waits.losses.values()).cloned().collect();
        drop(waits);
        all.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_one();
    }
}

impl HostQueue {
    /// Connects a queue of `size` entries.
    pub(super) async fn connect(
        manager: &Manager,
        to: SocketAddr,
        queue: u16,
        size: u16,
        in_capsule: usize,
    ) -> Result<Self, HostError> {
        let count = usize::from(size);
        let asked = CmRequest { queue, recv_size: size, send_size: size - 1 };
        let param = ConnParam { private_data: asked.emit().to_vec(), ..ConnParam::default() };
        let depth = u32::from(size);
        // The target's adapter acknowledges a command before the target answers it. Many
        // acknowledgements in a row may be lost, and their commands stay in the queue.
        let sends = 4 * depth + SIGNALED;
        let cap = QpCap { max_inline: CAPSULE as u32, ..QpCap::new(sends, depth) };
        let connection = Connector::new(manager).cap(cap).param(param).connect_async(to).await?;
        let sends = Router::new(connection.send_cq());
        let receives = Inbox::new(connection.recv_cq());
        let pd = connection.pd().clone();
        let capsules = Pool::new(&pd, count, CAPSULE + IN_CAPSULE)?;
        let replies = Pool::new(&pd, count, COMPLETION)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data = pd.alloc_mr((count - 1) * TRANSFER, access)?;
        let ended = Ended::of(connection.id().clone());
        let this = Self {
            connection: Mutex::new(connection),
            sends,
            receives,
            capsules,
            sent_inline: AtomicU32::new(0),
            data,
            sent: Mutex::new((1..count).map(|_| None).collect()),
            give_way: GiveWay::default(),
            state: Mutex::new(State { calls: vec![Call::Free; count - 1], ended, is_lost: false }),
            waiting: Arc::default(),
            in_capsule: in_capsule.min(IN_CAPSULE),
        };
        while let Some(buf) = replies.try_take() {
            this.post_receive(&mut this.state(), buf);
        }
        Ok(this)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post_receive(&self, state: &mut State, buf: Buf) {
        state.is_lost |= self.receives.recv_buf(&mut self.connection(), buf).is_err();
    }

    /// Executes a command and waits for its completion, whose status is success.
    pub(super) async fn call(
        &self,
        mut command: Command,
        payload: Payload<'_>,
    ) -> Result<Completion, HostError> {
        let mut place = Place::take(self).await?;
        command.cid = place.cid;
        let at = usize::from(place.cid) * TRANSFER;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match &payload {
            Payload::None => self.send(&command)?,
            Payload::Out(bytes) if bytes.len() <= self.in_capsule => {
                command.sgl = Sgl::in_capsule(length(bytes));
                self.send_with(&command, bytes).await?;
            }
            Payload::Out(bytes) => {
                self.data.write_at(at, bytes)?;
                command.sgl = self.keyed(at, length(bytes));
                self.send(&command)?;
            }
            Payload::In(bytes) => {
                command.sgl = self.keyed(at, length(bytes));
                self.send(&command)?;
            }
        }
        place.is_sent = true;
        self.give_way.after_send().await;
        let completion = place.completion().await?;
        completion.status.ok().map_err(HostError::Command)?;
        if let Payload::In(bytes) = payload {
            self.data.read_at(at, bytes)?;
        }
        Ok(completion)
    }

    /// Sends a command without data in its capsule.
    fn send(&self, command: &Command) -> Result<(), HostError> {
        let data = Data::Inline(InlineBytes::new(&command.emit()));
        let wr = SendWr::new(0, SendOp::Send, data);
        let count = self.sent_inline.fetch_add(1, Ordering::Relaxed);
        let sent = if count % SIGNALED == SIGNALED - 1 {
            self.sends.reap();
            self.sends.send(&mut self.connection(), wr).map(drop)
        } else {
            self.sends.send_unsignaled(&mut self.connection(), wr)
        };
        sent.map_err(|_| HostError::Lost)
    }

    /// Sends a command with data in its capsule.
    async fn send_with(&self, command: &Command, data: &[u8]) -> Result<(), HostError> {
        self.last_is_sent(command.cid).await;
        let mut capsule = self.capsules.take().await;
        let len = CAPSULE + data.len();
        capsule[..CAPSULE].copy_from_slice(&command.emit());
        capsule[CAPSULE..len].copy_from_slice(data);
        let sent = self.sends.send_buf(&mut self.connection(), SendOp::Send, capsule, 0..len);
        // If it fails, the connection is lost, and so are the completions of commands.
        self.sent()[usize::from(command.cid)] = Some(sent.map_err(|_| HostError::Lost)?);
        Ok(())
    }

    fn sent(&self) -> MutexGuard<'_, Vec<Option<RoutedBuf>>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the target's adapter has acknowledged the last command with this number, whose
    /// place in the send queue is free then. It almost always has: the answer comes later.
    async fn last_is_sent(&self, cid: u16) {
        let cid = usize::from(cid);
        poll_fn(|cx| {
            let Some(mut last) = self.sent()[cid].take() else { return Poll::Ready(()) };
            if Pin::new(&mut last).poll(cx).is_pending() {
                self.sent()[cid] = Some(last);
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Data of a command, at its place.
    fn keyed(&self, at: usize, len: u32) -> Sgl {
        debug_assert!(len as usize <= TRANSFER, "beyond that is the place of another command");
        let remote = self.data.remote(at);
        Sgl::keyed(remote.addr, len, remote.rkey.0, false)
    }

    /// Takes the completions that have come.
    fn collect(&self) {
        let waker = Waker::from(Arc::clone(&self.waiting));
        let mut cx = Context::from_waker(&waker);
        let mut state = self.state();
        if state.is_lost {
            return;
        }
        while let Poll::Ready((cqe, buf)) = self.receives.poll_next(&mut cx) {
            let buf = buf.filter(|_| cqe.status == WcStatus::Success);
            let bytes = buf.as_deref().map(|buf| &buf[..buf.len().min(cqe.byte_len as usize)]);
            let completion = bytes.and_then(Completion::parse);
            let (Some(buf), Some(completion)) = (buf, completion) else {
                state.is_lost = true;
                break;
            };
            match state.calls.get_mut(usize::from(completion.cid)) {
                Some(call @ &mut Call::Waiting(ticket)) => {
                    *call = Call::Done(completion);
                    self.waiting.wake_ticket(ticket);
                }
                Some(call @ Call::Abandoned) => {
                    *call = Call::Free;
                    self.waiting.wake_place();
                }
                // No command has that number.
                _ => state.is_lost = true,
            }
            self.post_receive(&mut state, buf);
        }
        if state.ended.0.as_mut().poll(&mut cx).is_ready() {
            state.is_lost = true;
        }
        let is_lost = state.is_lost;
        drop(state);
        if is_lost {
            self.waiting.wake_all();
        }
    }

    /// Waits until `look`, which has the number of the ticket, finds something.
    async fn wait<T>(
        &self,
        what: For,
        mut look: impl FnMut(&mut State, u64) -> Option<T>,
    ) -> Result<T, HostError> {
        let ticket = Ticket { waiting: &self.waiting, what, number: self.waiting.ticket() };
        poll_fn(|cx| {
            // A place for a command is often free at once, and looking for completions may take as
            // long as one takes to come.
            if let Some(found) = look(&mut self.state(), ticket.number) {
                return Poll::Ready(Ok(found));
            }
            self.waiting.lock().of(what).insert(ticket.number, cx.waker().clone());
            self.collect();
            let mut state = self.state();
            match look(&mut state, ticket.number) {
                Some(found) => Poll::Ready(Ok(found)),
                None if state.is_lost => Poll::Ready(Err(HostError::Lost)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Resolves when the connection is lost.
    pub(super) async fn lost(&self) {
        let never: Result<(), HostError> = self.wait(For::Loss, |_, _| None).await;
        drop(never);
    }

    /// Ends the connection at once: commands under way fail, and the target can neither read nor
    /// write their data any more.
    pub(super) fn abandon(&self) {
        self.state().is_lost = true;
        // An error means that it has ended already.
        let _ = self.connection().id().disconnect();
        self.waiting.wake_all();
    }

    /// Disconnects and waits until the target has confirmed.
    pub(super) async fn disconnect(self) -> Result<(), HostError> {
        if self.state().is_lost {
            return Err(HostError::Lost);
        }
        let connection = self.connection.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(connection.disconnect_async().await?)
    }
}

/// A task that waits. When it stops to, another looks after the queue.
struct Ticket<'a> {
    waiting: &'a Waiting,
    what: For,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.waiting.lock().of(self.what).remove(&self.number);
        self.waiting.wake_one();
    }
}

/// A number for a command.
struct Place<'a> {
    queue: &'a HostQueue,
    cid: u16,
    is_sent: bool,
}

impl<'a> Place<'a> {
    async fn take(queue: &'a HostQueue) -> Result<Self, HostError> {
        let index = queue.wait(For::Place, |state, _| {
            if state.is_lost {
                return None;
            }
            let index = state.calls.iter().position(|call| *call == Call::Free)?;
            state.calls[index] = Call::Waiting(0);
            Some(index)
        });
        let cid = u16::try_from(index.await?).unwrap_or(u16::MAX);
        Ok(Self { queue, cid, is_sent: false })
    }

    async fn completion(&self) -> Result<Completion, HostError> {
        let index = usize::from(self.cid);
        let found =
            self.queue.wait(For::Completion, |state, ticket| match &mut state.calls[index] {
                Call::Done(completion) => Some(*completion),
                call => {
                    *call = Call::Waiting(ticket);
                    None
                }
            });
        found.await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let call = &mut state.calls[usize::from(self.cid)];
        let is_open = matches!(call, Call::Waiting(_)) && self.is_sent;
        *call = if is_open { Call::Abandoned } else { Call::Free };
        drop(state);
        self.queue.waiting.wake_place();
    }
}
