//! What both ends do with a connection: sending messages, inline or from a buffer of a pool, and
//! taking those that arrive.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::{CmId, Connection};
use feroce::{
    Buf, Data, InlineBytes, Pd, Pool, QpState, Qpn, Remote, Routed, RoutedBuf, Router, SendOp,
    SendWr,
};

use crate::header::{Header, LONG};
use crate::limits::INLINE;
use crate::message::Body;

/// One in so many short messages has a completion, with which those before it leave the send queue,
/// too.
const SIGNALED: u32 = 16;

/// A connection on which any task may post.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Mutex<Connection>,
    sends: Router,
    pool: Pool,
    pd: Pd,
    id: CmId,
    qpn: Qpn,
    /// Short messages that were sent.
    short: AtomicU32,
}

/// The connection takes no message any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

impl Link {
    pub(crate) fn new(connection: Connection, sends: Router, pool: Pool) -> Self {
        let (id, pd, qpn) = (connection.id().clone(), connection.pd().clone(), connection.qpn());
        let (connection, short) = (Mutex::new(connection), AtomicU32::new(0));
        Self { connection, sends, pool, pd, id, qpn, short }
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

    /// Sends a message. Its body, if that is behind the header, is copied.
    /// This tells nothing of its arrival; [`probe`](Self::probe) does, of all messages before.
    pub(crate) fn send(&self, header: &Header, body: &[u8]) -> Result<(), Ended> {
        let len = header.header_len() + body.len();
        if len <= INLINE {
            let mut bytes = [0; INLINE];
            let end = header.emit(&mut bytes);
            bytes[end..len].copy_from_slice(body);
            return self.send_short(&bytes[..len]);
        }
        let mut buf = self.buffer(len)?;
        let end = header.emit(&mut buf[..LONG]);
        buf[end..len].copy_from_slice(body);
        self.transfer(SendOp::Send, buf, len).map(drop)
    }

    fn send_short(&self, bytes: &[u8]) -> Result<(), Ended> {
        let wr = SendWr::new(0, SendOp::Send, Data::Inline(InlineBytes::new(bytes)));
        let has_completion = self.short.fetch_add(1, Ordering::Relaxed) % SIGNALED == SIGNALED - 1;
        let sent = match has_completion {
            true => self.post(|sends, connection| sends.send(connection, wr).map(drop)),
            false => self.sends.send_unsignaled(&mut self.connection(), wr),
        };
        sent.map_err(|_| Ended)
    }

    /// A buffer for a message. If all are in use, one is registered for it, so that sending never
    /// waits: how many there can be is bounded by the send queue.
    fn buffer(&self, len: usize) -> Result<Buf, Ended> {
        self.sends.reap();
        let spare = || Pool::new(&self.pd, 1, len).ok()?.try_take();
        self.pool.try_take().or_else(spare).ok_or(Ended)
    }

    /// Asks the peer's adapter for a sign of life: a write of no bytes, which needs no receive and
    /// no memory there, and which the peer's program does not see. It comes after all messages that
    /// were sent before.
    pub(crate) fn probe(&self) -> Result<Routed, Ended> {
        let data = Data::Inline(InlineBytes::new(&[]));
        let wr = SendWr::new(0, SendOp::Write(Remote::default()), data);
        self.post(|sends, connection| sends.send(connection, wr).map_err(|_| Ended))
    }

    /// Whether its queue pair can send.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection().state() == QpState::Rts
    }

    /// Sends, reads or writes the first bytes of a buffer.
    pub(crate) fn transfer(&self, op: SendOp, buf: Buf, len: usize) -> Result<RoutedBuf, Ended> {
        self.post(|sends, connection| {
            sends.send_buf(connection, op, buf, 0..len).map_err(|_| Ended)
        })
    }

    fn post<T>(&self, post: impl FnOnce(&Router, &mut Connection) -> T) -> T {
        // Buffers of messages that the peer has return to the pool.
        self.sends.reap();
        post(&self.sends, &mut self.connection())
    }
}

/// Takes a message out of the receive that it has arrived in: the second result is the buffer to
/// post next. A fresh buffer takes the place of this one, unless all are in use; then the message
/// is copied, so that the number of receives never falls.
pub(crate) fn take_message(pool: &Pool, arrived: Buf, len: usize) -> (Body, Buf) {
    let all = 0..len.min(arrived.len());
    match pool.try_take() {
        Some(fresh) => (Body::Buf(arrived, all), fresh),
        None => (Body::Copied(arrived[all].to_vec()), arrived),
    }
}

/// Leaves the part of a message that is its body.
pub(crate) fn narrow(message: Body, range: Range<usize>) -> Body {
    match message {
        Body::Buf(buf, _) => Body::Buf(buf, range),
        Body::Copied(mut bytes) => {
            bytes.truncate(range.end);
            bytes.drain(..range.start.min(bytes.len()));
            Body::Copied(bytes)
        }
    }
}
