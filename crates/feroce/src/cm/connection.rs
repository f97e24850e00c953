//! Connections that own their queue pair.
//!
//! They are built on [`CmId`] and its events alone, so they work with both backends.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use feroce_cm::rdma::EventKind;
use feroce_engine::Cqe;

use super::error::CmError;
use super::id::CmId;
use super::wait::{event_of, wait_for, wait_until};
use crate::deadline::Deadline;
use crate::{Cq, Error, Pd, Qp};

/// What happens on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// A request has completed.
    Completion(Cqe),
    /// The connection has ended. Requests that were posted complete with an error.
    Disconnected,
}

/// A connection with its queue pair; it can be used as a [`Qp`]. Dropping it disconnects.
///
/// See the [module](crate::cm) for how one comes about.
#[derive(Debug)]
pub struct Connection {
    // Declared first, so that the id disconnects before the queue pair is destroyed.
    id: CmId,
    qp: Qp,
    pd: Pd,
    private_data: Vec<u8>,
}

impl Connection {
    pub(super) fn new(id: CmId, qp: Qp, pd: Pd, private_data: Vec<u8>) -> Self {
        Self { id, qp, pd, private_data }
    }

    pub(super) fn set_private_data(&mut self, private_data: Vec<u8>) {
        self.private_data = private_data;
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The protection domain of its queue pair: memory for it is registered there.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Where sends complete.
    pub fn send_cq(&self) -> &Cq {
        self.qp.send_cq()
    }

    /// Where receives complete.
    pub fn recv_cq(&self) -> &Cq {
        self.qp.recv_cq()
    }

    /// Private data of the peer's request or reply, padded with zeros to the size of the field.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Disconnects and waits until the peer has confirmed.
    pub fn disconnect(self) -> Result<(), Error> {
        self.id.disconnect()?;
        wait_for(&self.id, EventKind::Disconnected).map(drop)
    }

    /// [`Connection::disconnect`] for tasks.
    pub async fn disconnect_async(self) -> Result<(), Error> {
        self.id.disconnect()?;
        event_of(&self.id, EventKind::Disconnected).await.map(drop)
    }

    /// Resolves with the next completion of either queue, or with the end of the connection,
    /// whichever is first. Nothing is lost if the future is dropped. If other connections share the
    /// queues, their completions come here, too, and a program should rather wait for the queue.
    ///
    /// ```
    /// # use feroce::cm::{Activity, Connection};
    /// # async fn serve(mut peer: Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// loop {
    ///     match peer.next().await? {
    ///         Activity::Completion(cqe) => println!("request {} ended", cqe.wr_id),
    ///         Activity::Disconnected => return Ok(()),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn next(&self) -> Result<Activity, Error> {
        let mut sent = pin!(self.send_cq().next());
        let mut received = pin!(self.recv_cq().next());
        let mut ended = pin!(event_of(&self.id, EventKind::Disconnected));
        std::future::poll_fn(|cx| {
            let completion = sent.as_mut().poll(cx);
            // What has arrived is delivered before the end of the connection is.
            let completion =
                if completion.is_ready() { completion } else { received.as_mut().poll(cx) };
            match completion {
                Poll::Ready(cqe) => Poll::Ready(Ok(Activity::Completion(cqe))),
                Poll::Pending => ended.as_mut().poll(cx).map_ok(|_| Activity::Disconnected),
            }
        })
        .await
    }

    /// Waits until the peer disconnects.
    pub fn wait_disconnected(&self) -> Result<(), Error> {
        wait_for(&self.id, EventKind::Disconnected).map(drop)
    }

    /// Waits until the peer disconnects, and at most for `time`; whether it has.
    pub fn wait_disconnected_timeout(&self, time: Duration) -> Result<bool, Error> {
        match wait_until(&self.id, EventKind::Disconnected, Deadline::after(time)) {
            Ok(_) => Ok(true),
            Err(Error::Cm(CmError::TimedOut)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// [`Connection::wait_disconnected`] for tasks.
    pub async fn wait_disconnected_async(&self) -> Result<(), Error> {
        event_of(&self.id, EventKind::Disconnected).await.map(drop)
    }
}

impl Deref for Connection {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Qp {
        &mut self.qp
    }
}
