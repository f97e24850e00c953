//! Sending messages: inline, or from a buffer of a pool.

use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::cm::{CmId, Connection};
use feroce::{Buf, Data, InlineBytes, Pool, Qpn, Routed, RoutedBuf, Router, SendOp, SendWr};

use crate::header::{Header, LONG};
use crate::limits::INLINE;

/// A connection on which any task may post.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Mutex<Connection>,
    sends: Router,
    pool: Pool,
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
    /// Waits until the peer has the message, or the connection has ended.
    pub(crate) async fn done(self) {
        match self {
            Self::Inline(routed) => drop(routed.await),
            Self::Buffer(routed) => drop(routed.await),
        }
    }
}

/// The connection takes no message any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

impl Link {
    pub(crate) fn new(connection: Connection, sends: Router, pool: Pool) -> Self {
        let (id, qpn) = (connection.id().clone(), connection.qpn());
        Self { connection: Mutex::new(connection), sends, pool, id, qpn }
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
    pub(crate) async fn send(&self, header: &Header, body: &[u8]) -> Result<Sent, Ended> {
        let len = header.header_len() + body.len();
        if len <= INLINE {
            let mut bytes = [0; INLINE];
            let end = header.emit(&mut bytes);
            bytes[end..len].copy_from_slice(body);
            let data = Data::Inline(InlineBytes::new(&bytes[..len]));
            return self.post(|sends, connection| {
                let sent = sends.send(connection, SendWr::new(0, SendOp::Send, data));
                sent.map(Sent::Inline).map_err(|_| Ended)
            });
        }
        let mut buf = self.pool.take().await;
        let end = header.emit(&mut buf[..LONG]);
        buf[end..len].copy_from_slice(body);
        self.transfer(SendOp::Send, buf, len).map(Sent::Buffer)
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
