//! What both ends do with a connection: sending messages, inline or from a buffer of a pool, and
//! taking those that arrive.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::{CmId, Connection};
use feroce::{
    Buf, Data, InlineBytes, Pd, Pool, QpState, Qpn, Remote, Routed, RoutedBuf, Router, SendOp,
    SendWr, WcStatus,
};

use crate::header::{Header, LONG};
use crate::limits::INLINE;
use crate::message::Body;

/// A connection on which any task may post.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Mutex<Connection>,
    sends: Router,
    pool: Pool,
    pd: Pd,
    id: CmId,
    qpn: Qpn,
}

/// A message that was posted. Dropping it withdraws nothing.
#[derive(Debug)]
pub(crate) enum Sent {
    Inline(Routed),
    Buffer(RoutedBuf),
}

impl Sent {
    /// Waits until the peer has the message, or the connection has ended; says which.
    pub(crate) async fn done(self) -> Result<(), Ended> {
        let cqe = match self {
            Self::Inline(routed) => routed.await,
            Self::Buffer(routed) => routed.await.0,
        };
        if cqe.status == WcStatus::Success { Ok(()) } else { Err(Ended) }
    }
}

/// The connection takes no message any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

impl Link {
    pub(crate) fn new(connection: Connection, sends: Router, pool: Pool) -> Self {
        let (id, pd, qpn) = (connection.id().clone(), connection.pd().clone(), connection.qpn());
        Self { connection: Mutex::new(connection), sends, pool, pd, id, qpn }
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
    pub(crate) fn send(&self, header: &Header, body: &[u8]) -> Result<Sent, Ended> {
        let len = header.header_len() + body.len();
        if len <= INLINE {
            let mut bytes = [0; INLINE];
            let end = header.emit(&mut bytes);
            bytes[end..len].copy_from_slice(body);
            return self.post_inline(SendOp::Send, &bytes[..len]).map(Sent::Inline);
        }
        let mut buf = self.buffer(len)?;
        let end = header.emit(&mut buf[..LONG]);
        buf[end..len].copy_from_slice(body);
        self.transfer(SendOp::Send, buf, len).map(Sent::Buffer)
    }

    /// A buffer for a message. If all are in use, one is registered for it, so that sending never
    /// waits: how many there can be is bounded by the send queue.
    fn buffer(&self, len: usize) -> Result<Buf, Ended> {
        self.sends.reap();
        let spare = || Pool::new(&self.pd, 1, len).ok()?.try_take();
        self.pool.try_take().or_else(spare).ok_or(Ended)
    }

    /// Asks the peer's adapter for a sign of life: a write of no bytes, which needs no receive and
    /// no memory there, and which the peer's program does not see.
    pub(crate) fn probe(&self) -> Result<Routed, Ended> {
        self.post_inline(SendOp::Write(Remote::default()), &[])
    }

    /// Whether its queue pair can send.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection().state() == QpState::Rts
    }

    fn post_inline(&self, op: SendOp, bytes: &[u8]) -> Result<Routed, Ended> {
        let data = Data::Inline(InlineBytes::new(bytes));
        self.post(|sends, connection| {
            sends.send(connection, SendWr::new(0, op, data)).map_err(|_| Ended)
        })
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
