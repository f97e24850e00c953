//! A call, from the request to the reply.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce::{Instant, RoutedBuf, SendOp, WcStatus};

use super::options::Handler;
use super::shared::{Cancel, Peer, Shared, lock};
use crate::error::Status;
use crate::header::{Header, Kind, Place};
use crate::message::{Answer, Body, Incoming};
use crate::sending::Ended;

/// A call that is under way.
pub(super) struct Call {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    header: Header,
    cancel: Arc<Cancel>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.shared.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Call {
    pub(super) fn new(
        shared: &Arc<Shared>,
        peer: &Arc<Peer>,
        header: Header,
        cancel: Arc<Cancel>,
    ) -> Self {
        shared.under_way.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(shared), peer: Arc::clone(peer), header, cancel }
    }

    pub(super) async fn run(self, incoming: Incoming, service: impl Handler) {
        let deadline = incoming.deadline;
        let answer = match self.fetch(incoming).await {
            ControlFlow::Continue(Ok(incoming)) => {
                let answer = self.cancel.or(self.answer(incoming, service)).await;
                answer.unwrap_or(Err(Status::Cancelled))
            }
            ControlFlow::Continue(Err(status)) => Err(status),
            ControlFlow::Break(()) => return self.shared.leave(&self.peer),
        };
        let answer = answer.and_then(|answer| self.in_time(deadline).map(|()| answer));
        self.reply(answer).await;
    }

    fn in_time(&self, deadline: Option<Instant>) -> Result<(), Status> {
        if deadline.is_some_and(|at| self.shared.now() >= at) {
            Err(Status::Expired)
        } else {
            Ok(())
        }
    }

    /// Reads the body, if it is not in the message. `Break`: the connection has ended.
    ///
    /// A cancellation does not end a reading that has begun: the client takes its buffer back when
    /// it has the reply, and a reading would then fail, and the connection with it.
    async fn fetch(&self, mut incoming: Incoming) -> ControlFlow<(), Result<Incoming, Status>> {
        let refuse = |status| ControlFlow::Continue(Err(status));
        if self.shared.is_shutting_down.load(Ordering::Acquire) {
            return refuse(Status::ShuttingDown);
        }
        let Place::Remote(remote) = self.header.place else {
            return ControlFlow::Continue(Ok(incoming));
        };
        if let Err(status) = self.in_time(incoming.deadline) {
            return refuse(status);
        }
        if self.header.len > self.peer.limits.longest {
            return refuse(Status::RequestTooLong);
        }
        let Some(buf) = self.cancel.or(self.shared.long.take()).await else {
            return refuse(Status::Cancelled);
        };
        let len = self.header.len as usize;
        let Ok(read) = self.peer.link.transfer(SendOp::Read(remote), buf, len) else {
            return ControlFlow::Break(());
        };
        let (cqe, buf) = read.await;
        match buf.filter(|_| cqe.status == WcStatus::Success) {
            Some(buf) => incoming.body = Body::Buf(buf, 0..len),
            None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(Ok(incoming))
    }

    /// Runs the handler, when it is its turn.
    async fn answer(
        &self,
        incoming: Incoming,
        mut service: impl Handler,
    ) -> Result<Answer, Status> {
        let _turn = self.shared.handlers.take(incoming.priority).await;
        self.in_time(incoming.deadline)?;
        poll_fn(|cx| service.poll_ready(cx)).await?;
        service.call(incoming).await
    }

    /// Sends the reply. Nothing is sent to a client that is gone.
    async fn reply(&self, answer: Result<Answer, Status>) {
        let mut header = Header::new(Kind::Reply, self.header.id);
        let mut body = None;
        let mut written = None;
        match answer {
            Ok(answer) => match self.place(&mut header, answer).await {
                Ok(Placed::Here(answer)) => body = Some(answer),
                Ok(Placed::Written(transfer)) => written = Some(transfer),
                Err(Ended) => return self.shared.leave(&self.peer),
            },
            Err(status) => header.status = status,
        }
        // Before the reply: after it, the client may begin another call.
        lock(&self.peer.calls).remove(&self.header.id);
        let bytes = body.as_ref().map_or(&[][..], Answer::bytes);
        self.shared.send(&self.peer, &header, bytes);
        // The buffer returns to its pool when the client has the bytes; calls may wait for it.
        if let Some(written) = written
            && written.await.0.status != WcStatus::Success
        {
            self.shared.leave(&self.peer);
        }
    }

    /// Decides where the body of a reply goes, and writes it there if that is not the reply.
    async fn place(&self, header: &mut Header, answer: Answer) -> Result<Placed, Ended> {
        let len = answer.bytes().len();
        let told = u32::try_from(len).unwrap_or(u32::MAX);
        if told <= self.peer.limits.eager {
            header.len = told;
            return Ok(Placed::Here(answer));
        }
        let offered = self.header.reply_buffer.filter(|&(_, room)| told <= room);
        let Some((remote, _)) = offered.filter(|_| told <= self.peer.limits.longest) else {
            header.status = Status::ReplyTooLong;
            return Ok(Placed::Here(Answer::Copied(Vec::new())));
        };
        let buf = match answer {
            Answer::Buf(buf, _) => buf,
            Answer::Copied(bytes) => {
                let Some(mut buf) = self.cancel.or(self.shared.long.take()).await else {
                    header.status = Status::Cancelled;
                    return Ok(Placed::Here(Answer::Copied(Vec::new())));
                };
                buf[..len].copy_from_slice(&bytes);
                buf
            }
        };
        // The reply follows on the same queue pair, so it arrives after the bytes.
        let written = self.peer.link.transfer(SendOp::Write(remote), buf, len)?;
        (header.len, header.place) = (told, Place::Written);
        Ok(Placed::Written(written))
    }
}

/// Where the body of a reply is.
enum Placed {
    Here(Answer),
    Written(RoutedBuf),
}
