//! A queue to a target: commands go out, completions come back in any order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use feroce::cm::{CmId, ConnParam, Connection, Connector, EventKind, Manager};
use feroce::{Access, Buf, Mr, Pool, QpCap, RoutedBuf, Router, SendOp, WcStatus};

use super::give_way::GiveWay;
use crate::controller::{IN_CAPSULE, TRANSFER};
use crate::error::HostError;
use crate::wire::{CAPSULE, COMPLETION, CmRequest, Command, Completion, Sgl};

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
    receives: Router,
    capsules: Pool,
    /// A place for the data of each command, by its number. The target may use it as long as the
    /// connection lasts: to register it anew for each command would take longer than to move the
    /// data. A target that touches it at another time than that of a command spoils data of its
    /// own disks.
    data: Mr,
    /// The last command with each number, until it is known to be acknowledged.
    sent: Mutex<Vec<Option<RoutedBuf>>>,
    give_way: GiveWay,
    inbox: Mutex<Inbox>,
    waiting: Arc<Waiting>,
    /// Bytes of data that a capsule may hold.
    in_capsule: usize,
}

#[derive(Debug)]
struct Inbox {
    /// Receives in the order in which they complete.
    posted: VecDeque<RoutedBuf>,
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
        let cap = QpCap::new(depth, depth);
        let connection = Connector::new(manager).cap(cap).param(param).connect_async(to).await?;
        let sends = Router::new(connection.send_cq());
        let receives = Router::new(connection.recv_cq());
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
            data,
            sent: Mutex::new((1..count).map(|_| None).collect()),
            give_way: GiveWay::default(),
            inbox: Mutex::new(Inbox {
                posted: VecDeque::new(),
                calls: vec![Call::Free; count - 1],
                ended,
                is_lost: false,
            }),
            waiting: Arc::default(),
            in_capsule: in_capsule.min(IN_CAPSULE),
        };
        while let Some(buf) = replies.try_take() {
            this.post_receive(&mut this.inbox(), buf);
        }
        Ok(this)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post_receive(&self, inbox: &mut Inbox, buf: Buf) {
        match self.receives.recv_buf(&mut self.connection(), buf) {
            Ok(posted) => inbox.posted.push_back(posted),
            Err(_) => inbox.is_lost = true,
        }
    }

    /// Executes a command and waits for its completion, whose status is success.
    pub(super) async fn call(
        &self,
        mut command: Command,
        payload: Payload<'_>,
    ) -> Result<Completion, HostError> {
        let mut place = Place::take(self).await?;
        command.cid = place.cid;
        self.last_is_sent(place.cid).await;
        let mut capsule = self.capsules.take().await;
        let mut len = CAPSULE;
        let at = usize::from(place.cid) * TRANSFER;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match &payload {
            Payload::None => {}
            Payload::Out(bytes) if bytes.len() <= self.in_capsule => {
                len += bytes.len();
                capsule[CAPSULE..len].copy_from_slice(bytes);
                command.sgl = Sgl::in_capsule(length(bytes));
            }
            Payload::Out(bytes) => {
                self.data.write_at(at, bytes)?;
                command.sgl = self.keyed(at, length(bytes));
            }
            Payload::In(bytes) => command.sgl = self.keyed(at, length(bytes)),
        }
        capsule[..CAPSULE].copy_from_slice(&command.emit());
        let sent = {
            let mut connection = self.connection();
            let sent = self.sends.send_buf(&mut connection, SendOp::Send, capsule, 0..len);
            sent.map_err(|_| HostError::Lost)?
        };
        place.is_sent = true;
        // If it fails, the connection is lost, and so are the completions of commands.
        self.sent()[usize::from(place.cid)] = Some(sent);
        self.give_way.after_send().await;
        let completion = place.completion().await?;
        completion.status.ok().map_err(HostError::Command)?;
        if let Payload::In(bytes) = payload {
            self.data.read_at(at, bytes)?;
        }
        Ok(completion)
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
        let mut inbox = self.inbox();
        if inbox.is_lost {
            return;
        }
        while let Some(head) = inbox.posted.front_mut() {
            let Poll::Ready((cqe, buf)) = Pin::new(head).poll(&mut cx) else { break };
            inbox.posted.pop_front();
            let buf = buf.filter(|_| cqe.status == WcStatus::Success);
            let bytes = buf.as_deref().map(|buf| &buf[..buf.len().min(cqe.byte_len as usize)]);
            let completion = bytes.and_then(Completion::parse);
            let (Some(buf), Some(completion)) = (buf, completion) else {
                inbox.is_lost = true;
                break;
            };
            match inbox.calls.get_mut(usize::from(completion.cid)) {
                Some(call @ &mut Call::Waiting(ticket)) => {
                    *call = Call::Done(completion);
                    self.waiting.wake_ticket(ticket);
                }
                Some(call @ Call::Abandoned) => {
                    *call = Call::Free;
                    self.waiting.wake_place();
                }
                // No command has that number.
                _ => inbox.is_lost = true,
            }
            self.post_receive(&mut inbox, buf);
        }
        if inbox.ended.0.as_mut().poll(&mut cx).is_ready() {
            inbox.is_lost = true;
        }
        let is_lost = inbox.is_lost;
        drop(inbox);
        if is_lost {
            self.waiting.wake_all();
        }
    }

    /// Waits until `look`, which has the number of the ticket, finds something.
    async fn wait<T>(
        &self,
        what: For,
        mut look: impl FnMut(&mut Inbox, u64) -> Option<T>,
    ) -> Result<T, HostError> {
        let ticket = Ticket { waiting: &self.waiting, what, number: self.waiting.ticket() };
        poll_fn(|cx| {
            // A place for a command is often free at once, and looking for completions may take as
            // long as one takes to come.
            if let Some(found) = look(&mut self.inbox(), ticket.number) {
                return Poll::Ready(Ok(found));
            }
            self.waiting.lock().of(what).insert(ticket.number, cx.waker().clone());
            self.collect();
            let mut inbox = self.inbox();
            match look(&mut inbox, ticket.number) {
                Some(found) => Poll::Ready(Ok(found)),
                None if inbox.is_lost => Poll::Ready(Err(HostError::Lost)),
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
        self.inbox().is_lost = true;
        // An error means that it has ended already.
        let _ = self.connection().id().disconnect();
        self.waiting.wake_all();
    }

    /// Disconnects and waits until the target has confirmed.
    pub(super) async fn disconnect(self) -> Result<(), HostError> {
        if self.inbox().is_lost {
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
        let index = queue.wait(For::Place, |inbox, _| {
            if inbox.is_lost {
                return None;
            }
            let index = inbox.calls.iter().position(|call| *call == Call::Free)?;
            inbox.calls[index] = Call::Waiting(0);
            Some(index)
        });
        let cid = u16::try_from(index.await?).unwrap_or(u16::MAX);
        Ok(Self { queue, cid, is_sent: false })
    }

    async fn completion(&self) -> Result<Completion, HostError> {
        let index = usize::from(self.cid);
        let found =
            self.queue.wait(For::Completion, |inbox, ticket| match &mut inbox.calls[index] {
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
        let mut inbox = self.queue.inbox();
        let call = &mut inbox.calls[usize::from(self.cid)];
        let is_open = matches!(call, Call::Waiting(_)) && self.is_sent;
        *call = if is_open { Call::Abandoned } else { Call::Free };
        drop(inbox);
        self.queue.waiting.wake_place();
    }
}
