//! Request and response over RDMA.
//!
//! A [`Server`] answers the calls of [`Client`]s with a [`tower_service::Service`]:
//!
//! ```
//! # use feroce::{Device, cm::Manager};
//! use feroce_rpc::{Answer, Client, Incoming, Limits, Request, Server, ServerOptions, Status};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let manager = |ip: &str| Manager::with([Device::at([ip.parse().unwrap()]).open()?]);
//! # let (here, there) = (manager("127.0.0.61")?, manager("127.0.0.62")?);
//! let server = Server::bind(&there, "127.0.0.62:0".parse()?, ServerOptions::default())?;
//! let (at, shutdown) = (server.local_addr(), server.shutdown());
//! let serving = tokio::spawn(server.serve(tower::service_fn(async |call: Incoming| {
//!     match call.method {
//!         1 => Ok::<_, Status>(Answer::Copied(call.to_ascii_uppercase())),
//!         _ => Err(Status::Handler(1)),
//!     }
//! })));
//!
//! let (client, connection) = Client::connect(&here, at, Limits::default()).await?;
//! tokio::spawn(connection);
//! assert_eq!(&*client.call(Request::new(1, b"hello")).await?, b"HELLO");
//! assert!(client.call(Request::new(2, b"")).await.is_err());
//! shutdown.begin();
//! serving.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # Three ways for a body
//!
//! The cheapest way to move bytes depends on how many there are, so a call has three:
//!
//! * **Inline.** Up to 256 bytes, the header included, are copied into the work request. The
//!   adapter need not read memory.
//! * **Eager.** Up to [`Limits::eager`] bytes are copied into a registered buffer of a pool and
//!   sent as one message. Copying a few kilobytes costs less than another message would.
//! * **Rendezvous.** A longer body stays where it is. The request tells the server where, and the
//!   server READs it into a buffer of its own; a long reply is WRITTEN into the buffer that the
//!   caller offered ([`Request::reply_into`]), and the reply follows on the same queue pair, so it
//!   arrives after the bytes. Nothing is copied. Buffers move into the call and come back with the
//!   reply, because meanwhile a peer may access them; a key of its own for each call lets it, and
//!   ends with the call.
//!
//! No message carries immediate data, so that the protocol fits transports which have none.
//!
//! # Many calls at a time
//!
//! A SEND costs as much as several calls, so short messages share one where that delays none of
//! them by more than the tasks that run anyway. A message that wakes several callers is followed by
//! their next calls: what they send leaves when the task of the connection runs again, behind them.
//! A server sends its replies when every handler has run that can, and those that have waited for
//! 20 us before the next one. A SEND has up to a kilobyte of messages, so that the peer begins with
//! the first while the next are being written. A call that is alone leaves at once.
//!
//! # Credits
//!
//! A SEND needs a receive at the other end. One that finds none makes the sender wait and try
//! again, which costs a timer, or breaks the connection. Here that does not happen: a connection
//! has [`Limits::window`] calls under way at most, and both ends have two receives posted for each.
//! One is for the request, or the reply; the other for a cancellation, or the answer to it. An end
//! posts the next receive before it handles a message, so a call that is over has given back what
//! it used, and no message is needed that only says so.
//!
//! # Time
//!
//! The deadline of a call travels with it, as the time that is left ([`Request::timeout`]): the
//! clocks of the two hosts need not agree. Dropping the future of a call cancels it. The server
//! then drops the handler; buffers that the server may still access return to their pools when it
//! has answered the cancellation, or when the connection has ended.
//!
//! # Why this way
//!
//! [`patterns`] has the seven ways to build a call from verbs, each by itself, with its price.
//!
//! # What goes wrong
//!
//! A message that breaks the protocol ends its connection, and no other. When the connection of a
//! client ends, its calls fail with [`Error::Disconnected`], and buffers that the server could
//! access come back: their keys have ended. A host that loses its power says nothing: a client
//! finds out by [`Client::probe`], a server when it needs the place of a connection for another
//! ([`ServerOptions::connections`]). [`Reconnecting`] connects again.
//!
//! # Runtimes
//!
//! Nothing here needs a particular runtime. The future that [`Client::connect`] returns beside the
//! client, and [`Server::serve`], do the work; any runtime can run them, also the virtual time of
//! `feroce::sim::World`.

#![forbid(unsafe_code)]

mod calls;
mod client;
mod error;
pub mod header;
mod limits;
mod message;
pub mod patterns;
mod reconnect;
mod sending;
mod server;
mod tasks;
mod tower;
mod turns;
mod typed;

pub use client::{Client, Connection};
pub use error::{Error, Malformed, Rejection, Status};
pub use limits::Limits;
pub use message::{Answer, Body, Incoming, Reply, Request};
pub use reconnect::Reconnecting;
pub use server::{Handler, Server, ServerOptions, Shutdown};
pub use typed::{Method, Methods, Wire};
