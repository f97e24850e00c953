//! What both ends do with a connection: sending messages, inline or from a buffer of a pool,
//! several together if they are short, and taking those that arrive.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::{CmId, Connection};
use feroce::{
    Buf, Data, InlineBytes, Instant, Pd, Pool, QpState, Qpn, Remote, Routed, RoutedBuf, Router,
    SendOp, SendWr,
};

use crate::error::Malformed;
use crate::header::Header;
use crate::limits::{INLINE, Limits};
use crate::message::Body;

/// One in so many short SENDs has a completion, with which those before it leave the send queue,
/// too.
const SIGNALED: u32 = 16;

/// The longest message that waits for others, and the longest SEND that they make.
const SHORT: usize = 512;
const TOGETHER: usize = 1024;

/// How long the first message waits for others at most, if a handler computes meanwhile.
const LONGEST_WAIT_NS: u64 = 20_000;

/// A connection on which any task may post.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Mutex<Connection>,
    sends: Router,
    pool: Pool,
    pd: Pd,
    id: CmId,
    qpn: Qpn,
    /// Short SENDs that were posted.
    short: AtomicU32,
    waiting: Mutex<Waiting>,
    /// The longest SEND of several messages.
    together: usize,
}

/// Messages that wait to leave in one SEND.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    /// When the first of them came.
    since: Instant,
    /// Short messages wait: what runs the connection flushes them soon.
    is_corked: bool,
}

/// The connection takes no message any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

impl Link {
    pub(crate) fn new(connection: Connection, sends: Router, pool: Pool, limits: Limits) -> Self {
        let (id, pd, qpn) = (connection.id().clone(), connection.pd().clone(), connection.qpn());
        let (connection, short) = (Mutex::new(connection), AtomicU32::new(0));
        let waiting = Waiting { bytes: Vec::new(), since: Instant::ZERO, is_corked: false };
        let (waiting, together) = (Mutex::new(waiting), limits.message_len().min(TOGETHER));
        Self { connection, sends, pool, pd, id, qpn, short, waiting, together }
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Ends the connection; its tasks hear of that.
    pub(crate) fn end(&self) {
        // An error means that it has ended already.
        let _ = self.id.disconnect();
    }

    /// Resolves when the connection has ended.
    pub(crate) async fn ended(&self) {
        use feroce::cm::EventKind::{ConnectError, DeviceRemoval, Disconnected, Unreachable};
        let channel = self.id.channel();
        loop {
            let kind = channel.event().await.kind;
            if matches!(kind, Disconnected | Unreachable | ConnectError | DeviceRemoval) {
                return;
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on short messages wait for [`flush`](Self::flush), because more are about to come.
    pub(crate) fn cork(&self) {
        self.waiting().is_corked = true;
    }

    /// Short messages do not wait any more, nor do those that have.
    pub(crate) fn uncork(&self) -> Result<(), Ended> {
        self.waiting().is_corked = false;
        self.flush()
    }

    /// Sends what waits.
    pub(crate) fn flush(&self) -> Result<(), Ended> {
        if self.waiting().bytes.is_empty() {
            return Ok(());
        }
        self.sends.reap();
        self.leave(&mut self.waiting())
    }

    /// Sends a message, or has it wait for others if it is short. Its body, if that is behind the
    /// header, is copied. True: it waits, the first since the last [`flush`](Self::flush).
    /// This tells nothing of its arrival; [`probe`](Self::probe) does, of all messages before.
    pub(crate) fn send(&self, header: &Header, body: &[u8]) -> Result<bool, Ended> {
        let len = header.header_len() + body.len();
        // Before the lock: buffers of SENDs that the peer has return to the pool, and tasks that
        // wait for one are woken.
        self.sends.reap();
        let mut waiting = self.waiting();
        if len > SHORT.min(self.together) {
            self.leave(&mut waiting)?;
            let mut buf = self.buffer(len)?;
            let end = header.emit(&mut buf);
            buf[end..len].copy_from_slice(body);
            return self.post_buf(SendOp::Send, buf, len).map(|_| false);
        }
        if waiting.bytes.len() + len > self.together {
            self.leave(&mut waiting)?;
        }
        let Waiting { bytes, since, is_corked } = &mut *waiting;
        let (is_first, start) = (bytes.is_empty(), bytes.len());
        bytes.resize(start + header.header_len(), 0);
        header.emit(&mut bytes[start..]);
        bytes.extend_from_slice(body);
        if *is_corked {
            let now = self.pd.context().now();
            if is_first {
                *since = now;
            }
            if now <= since.plus_nanos(LONGEST_WAIT_NS) {
                return Ok(is_first);
            }
        }
        self.leave(&mut waiting).map(|()| false)
    }

    /// Posts a SEND of what waits.
    fn leave(&self, waiting: &mut Waiting) -> Result<(), Ended> {
        let sent = match &*waiting.bytes {
            [] => return Ok(()),
            bytes if bytes.len() <= INLINE => self.send_inline(bytes),
            bytes => self.send_copied(bytes),
        };
        waiting.bytes.clear();
        sent
    }

    fn send_inline(&self, bytes: &[u8]) -> Result<(), Ended> {
        let wr = SendWr::new(0, SendOp::Send, Data::Inline(InlineBytes::new(bytes)));
        let has_completion = self.short.fetch_add(1, Ordering::Relaxed) % SIGNALED == SIGNALED - 1;
        let sent = match has_completion {
            true => self.sends.send(&mut self.connection(), wr).map(drop),
            false => self.sends.send_unsignaled(&mut self.connection(), wr),
        };
        sent.map_err(|_| Ended)
    }

    fn send_copied(&self, bytes: &[u8]) -> Result<(), Ended> {
        let mut buf = self.buffer(bytes.len())?;
        buf[..bytes.len()].copy_from_slice(bytes);
        self.post_buf(SendOp::Send, buf, bytes.len()).map(drop)
    }

    /// A buffer for a SEND. If all are in use, one is registered for it, so that sending never
    /// waits: how many there can be is bounded by the send queue.
    fn buffer(&self, len: usize) -> Result<Buf, Ended> {
        let spare = || Pool::new(&self.pd, 1, len).ok()?.try_take();
        self.pool.try_take().or_else(spare).ok_or(Ended)
    }

    /// Asks the peer's adapter for a sign of life: a write of no bytes, which needs no receive and
    /// no memory there, and which the peer's program does not see. It comes after all messages that
    /// were sent before.
    pub(crate) fn probe(&self) -> Result<Routed, Ended> {
        self.flush()?;
        self.sends.reap();
        let data = Data::Inline(InlineBytes::new(&[]));
        let wr = SendWr::new(0, SendOp::Write(Remote::default()), data);
        self.sends.send(&mut self.connection(), wr).map_err(|_| Ended)
    }

    /// Whether its queue pair can send.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection().state() == QpState::Rts
    }

    /// Reads or writes the first bytes of a buffer.
    pub(crate) fn transfer(&self, op: SendOp, buf: Buf, len: usize) -> Result<RoutedBuf, Ended> {
        self.sends.reap();
        self.post_buf(op, buf, len)
    }

    fn post_buf(&self, op: SendOp, buf: Buf, len: usize) -> Result<RoutedBuf, Ended> {
        self.sends.send_buf(&mut self.connection(), op, buf, 0..len).map_err(|_| Ended)
    }
}

/// Takes messages out of the receive that they have arrived in: the second result is the buffer to
/// post next. A fresh buffer takes the place of this one, unless all are in use; then the messages
/// are copied, so that the number of receives never falls.
pub(crate) fn take_message(pool: &Pool, arrived: Buf, len: usize) -> (Body, Buf) {
    let all = 0..len.min(arrived.len());
    match pool.try_take() {
        Some(fresh) => (Body::Buf(arrived, all), fresh),
        None => (Body::Copied(arrived[all].to_vec()), arrived),
    }
}

/// Hands over each of the messages that have arrived together. The body of one that is alone stays
/// where it is.
pub(crate) fn each_message(
    arrived: Body,
    mut handle: impl FnMut(Header, Body) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let (header, body, rest) = Header::parse(&arrived)?;
    if rest.is_empty() {
        let range = arrived.len() - body.len()..arrived.len();
        return handle(header, narrow(arrived, range));
    }
    let mut left = &*arrived;
    while !left.is_empty() {
        let (header, body, rest) = Header::parse(left)?;
        handle(header, Body::Copied(body.to_vec()))?;
        left = rest;
    }
    Ok(())
}

/// Leaves the part of a message that is its body.
fn narrow(message: Body, range: Range<usize>) -> Body {
    match message {
        Body::Buf(buf, _) => Body::Buf(buf, range),
        Body::Copied(mut bytes) => {
            bytes.truncate(range.end);
            bytes.drain(..range.start.min(bytes.len()));
            Body::Copied(bytes)
        }
    }
}
