//! tarpc: a request is a call, and its response the reply. Values are encoded by postcard.
//!
//! ```
//! # use feroce::{Device, cm::Manager};
//! # use feroce_rpc::{Client, Limits, Server, ServerOptions};
//! use feroce_transports::tarpc::{Transport, server};
//! use futures::StreamExt as _;
//! use tarpc::context::{self, Context};
//! use tarpc::server::{BaseChannel, Channel as _};
//!
//! #[tarpc::service]
//! trait Hello {
//!     async fn hello(name: String) -> String;
//! }
//!
//! #[derive(Clone)]
//! struct Polite;
//!
//! impl Hello for Polite {
//!     async fn hello(self, _: Context, name: String) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let manager = |ip: &str| Manager::with([Device::at([ip.parse().unwrap()]).open()?]);
//! # let (here, there) = (manager("127.0.0.73")?, manager("127.0.0.74")?);
//! let at = Server::bind(&there, "127.0.0.74:0".parse()?, ServerOptions::default())?;
//! # let to = at.local_addr();
//! let (handler, requests) = server();
//! tokio::spawn(at.serve(handler));
//! let channel = BaseChannel::with_defaults(requests);
//! tokio::spawn(channel.execute(Polite.serve()).for_each(|call| async {
//!     tokio::spawn(call);
//! }));
//!
//! let (client, connection) = Client::connect(&here, to, Limits::default()).await?;
//! tokio::spawn(connection);
//! let hello = HelloClient::new(tarpc::client::Config::default(), Transport::new(client)).spawn();
//! assert_eq!(hello.hello(context::current(), "feroce".into()).await?, "Hello, feroce!");
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use feroce_rpc::{Answer, Error, Incoming, Status};
use futures::channel::{mpsc, oneshot};
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;
use futures::{Sink, Stream, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tarpc::{ClientMessage, Request, Response, ServerError};
use tower_service::Service;

use crate::Caller;

type Calling<T> = Abortable<Pin<Box<dyn Future<Output = Result<Response<T>, Error>> + Send>>>;

/// The client's end: give it to the `new` of a client that `tarpc::service` has made.
pub struct Transport<Q, A> {
    caller: Caller,
    calls: FuturesUnordered<Calling<A>>,
    /// What cancels a call, by the number that tarpc has given it.
    aborts: BTreeMap<u64, AbortHandle>,
    /// The task that waits for a response.
    waiting: Option<Waker>,
    _requests: PhantomData<fn(Q)>,
}

impl<Q, A> fmt::Debug for Transport<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl<Q, A> Transport<Q, A> {
    /// Calls over the connection of a client.
    pub fn new(caller: impl Into<Caller>) -> Self {
        Self {
            caller: caller.into(),
            calls: FuturesUnordered::new(),
            aborts: BTreeMap::new(),
            waiting: None,
            _requests: PhantomData,
        }
    }
}

impl<Q: Serialize, A: DeserializeOwned + 'static> Sink<ClientMessage<Q>> for Transport<Q, A> {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A call waits for its turn itself.
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: ClientMessage<Q>) -> Result<(), Error> {
        match message {
            ClientMessage::Request(request) => {
                let id = request.id;
                let timeout = request.context.deadline.saturating_duration_since(Instant::now());
                let bytes = postcard::to_stdvec(&request).map_err(|_| Error::TooLong)?;
                let caller = self.caller.clone();
                let call = async move {
                    let reply = caller.call(&bytes, Some(timeout)).await;
                    response(id, reply.map(|reply| postcard::from_bytes(&reply)))
                };
                let (abort, registration) = AbortHandle::new_pair();
                self.aborts.insert(id, abort);
                self.calls.push(Abortable::new(Box::pin(call), registration));
            }
            // The future of the call is dropped, which cancels it.
            ClientMessage::Cancel { request_id, .. } => {
                self.aborts.remove(&request_id).iter().for_each(AbortHandle::abort);
            }
            _ => {}
        }
        self.waiting.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }
}

/// What tarpc is told of a call: the server's message, or why there is none. A connection that has
/// ended ends the transport.
fn response<A>(
    request_id: u64,
    reply: Result<postcard::Result<Result<A, ServerError>>, Error>,
) -> Result<Response<A>, Error> {
    let message = match reply {
        Ok(Ok(message)) => message,
        Ok(Err(_)) => return Err(Error::BadReply),
        Err(Error::Refused(status)) => {
            let kind = match status {
                Status::Expired => io::ErrorKind::TimedOut,
                Status::ShuttingDown => io::ErrorKind::ConnectionRefused,
                _ => io::ErrorKind::Other,
            };
            Err(ServerError::new(kind, status.to_string()))
        }
        Err(Error::TooLong) => {
            let what = "the request is longer than the connection takes";
            Err(ServerError::new(io::ErrorKind::InvalidInput, what.into()))
        }
        Err(error) => return Err(error),
    };
    Ok(Response { request_id, message })
}

impl<Q, A: DeserializeOwned> Stream for Transport<Q, A> {
    type Item = Result<Response<A>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.calls.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(response))) => {
                    if let Ok(response) = &response {
                        self.aborts.remove(&response.request_id);
                    }
                    return Poll::Ready(Some(response));
                }
                // A call that was cancelled.
                Poll::Ready(Some(Err(_))) => {}
                // None is under way, or none has a response: a call that begins wakes this task.
                Poll::Ready(None) | Poll::Pending => {
                    self.waiting = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Calls that tarpc has not answered, by the number that they have here: clients choose their
/// numbers independently.
type Waiting<A> = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Result<A, ServerError>>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's end: a handler for [`Server::serve`](feroce_rpc::Server::serve), and a channel for
/// `tarpc::server::BaseChannel`, in which the requests of all clients arrive.
pub fn server<Q, A>() -> (Handler<Q, A>, Requests<Q, A>) {
    // No more requests wait than the server has handlers.
    let (sender, receiver) = mpsc::unbounded();
    let waiting: Waiting<A> = Arc::default();
    let handler = Handler { sender, next: Arc::default(), waiting: Arc::clone(&waiting) };
    (handler, Requests { receiver, waiting })
}

/// Hands the calls of clients to tarpc. See [`server`].
pub struct Handler<Q, A> {
    sender: mpsc::UnboundedSender<ClientMessage<Q>>,
    next: Arc<Mutex<u64>>,
    waiting: Waiting<A>,
}

impl<Q, A> Clone for Handler<Q, A> {
    fn clone(&self) -> Self {
        let (sender, next) = (self.sender.clone(), Arc::clone(&self.next));
        Self { sender, next, waiting: Arc::clone(&self.waiting) }
    }
}

impl<Q, A> fmt::Debug for Handler<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

/// Tells tarpc that a call is not wanted any more, unless it is answered.
struct UnderWay<Q, A> {
    id: u64,
    handler: Handler<Q, A>,
}

impl<Q, A> Drop for UnderWay<Q, A> {
    fn drop(&mut self) {
        if lock(&self.handler.waiting).remove(&self.id).is_some() {
            let trace_context = Default::default();
            let cancel = ClientMessage::Cancel { trace_context, request_id: self.id };
            // Nothing is to cancel when the channel is gone.
            let _ = self.handler.sender.unbounded_send(cancel);
        }
    }
}

impl<Q, A> Service<Incoming> for Handler<Q, A>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    type Response = Answer;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, incoming: Incoming) -> Self::Future {
        let handler = self.clone();
        Box::pin(async move {
            let parsed: postcard::Result<Request<Q>> = postcard::from_bytes(&incoming);
            let mut request = parsed.map_err(|_| Status::BadRequest)?;
            drop(incoming);
            let (sender, answer) = oneshot::channel();
            request.id = {
                let mut next = lock(&handler.next);
                *next += 1;
                *next
            };
            lock(&handler.waiting).insert(request.id, sender);
            let under_way = UnderWay { id: request.id, handler };
            let sent = under_way.handler.sender.unbounded_send(ClientMessage::Request(request));
            sent.map_err(|_| Status::ShuttingDown)?;
            let message = answer.await.map_err(|_| Status::ShuttingDown)?;
            postcard::to_stdvec(&message).map(Answer::Copied).map_err(|_| Status::Transfer)
        })
    }
}

/// The requests of all clients. See [`server`].
pub struct Requests<Q, A> {
    receiver: mpsc::UnboundedReceiver<ClientMessage<Q>>,
    waiting: Waiting<A>,
}

impl<Q, A> fmt::Debug for Requests<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl<Q, A> Drop for Requests<Q, A> {
    /// Calls that nothing answers any more fail.
    fn drop(&mut self) {
        lock(&self.waiting).clear();
    }
}

impl<Q, A> Stream for Requests<Q, A> {
    type Item = Result<ClientMessage<Q>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_next_unpin(cx).map(|message| message.map(Ok))
    }
}

impl<Q, A> Sink<Response<A>> for Requests<Q, A> {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, response: Response<A>) -> Result<(), Error> {
        if let Some(caller) = lock(&self.waiting).remove(&response.request_id) {
            // A call that was cancelled at this moment does not want it.
            let _ = caller.send(response.message);
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }
}
