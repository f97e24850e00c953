//! How many connections a server has, and what each may do.

use tower_service::Service;

use crate::error::Status;
use crate::limits::Limits;
use crate::message::{Answer, Incoming};

/// How many connections a server has, and what each may do.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Limits of each connection.
    pub limits: Limits,
    /// Most connections at the same time; more are rejected. When all are taken, the server asks
    /// the clients for a sign of life: one whose host has vanished loses its place.
    pub connections: usize,
    /// Long requests that can be read at the same time; more wait.
    pub long_requests: usize,
    /// Handlers that run at the same time; more calls wait, those with the greatest
    /// [priority](crate::Request::priority) first.
    pub handlers: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), connections: 16, long_requests: 8, handlers: 256 }
    }
}

/// What answers calls: any [`tower_service::Service`] of these types, e.g.
/// [`Methods`](crate::Methods) or a function in `tower::service_fn`. Each call has a clone.
pub trait Handler: Clone + Send + Sync + 'static
where
    Self: Service<Incoming, Response = Answer, Error = Status, Future: Send>,
{
}

impl<S> Handler for S where
    S: Service<Incoming, Response = Answer, Error = Status, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}
