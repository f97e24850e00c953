//! Connecting to listeners.

use std::net::SocketAddr;
use std::time::Duration;

use feroce_cm::rdma::{ConnParam, EventKind, PortSpace};
use feroce_engine::RecvWr;

use super::connection::Connection;
use super::id::CmId;
use super::manager::Manager;
use super::plan::{QpPlan, plan_methods};
use super::wait::{event_of, wait_until};
use crate::deadline::Deadline;
use crate::{Error, Pd, PostError};

/// How long the next host on the route may take to answer, in milliseconds, as in the programs of
/// librdmacm.
const RESOLVE_MS: u32 = 2000;

/// Connects to listeners.
#[derive(Clone, Debug)]
pub struct Connector {
    manager: Manager,
    param: ConnParam,
    plan: QpPlan,
}

impl Connector {
    /// A connector that uses the devices of this manager.
    pub fn new(manager: &Manager) -> Self {
        let (param, plan) = (ConnParam::default(), QpPlan::default());
        Self { manager: manager.clone(), param, plan }
    }

    /// Private data for the listener.
    #[must_use]
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.param.private_data = data.to_vec();
        self
    }

    /// Parameters of the connection.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    plan_methods!();

    /// Connects, and waits until the peer accepts or rejects.
    pub fn connect(&self, to: SocketAddr) -> Result<Connection, Error> {
        self.prepare(to)?.connect()
    }

    /// Connects as [`Connector::connect`] does, and fails with [`CmError::TimedOut`] if that takes
    /// longer than `time`. Without it, a peer that does not answer is asked for about 100 seconds.
    ///
    /// [`CmError::TimedOut`]: super::CmError::TimedOut
    pub fn connect_timeout(&self, to: SocketAddr, time: Duration) -> Result<Connection, Error> {
        let deadline = Deadline::after(time);
        self.prepare_until(to, deadline)?.connect_until(deadline)
    }

    /// [`Connector::connect`] for tasks. Dropping the future ends the attempt, so a timeout of the
    /// runtime can be around it.
    pub async fn connect_async(&self, to: SocketAddr) -> Result<Connection, Error> {
        self.prepare_async(to).await?.connect_async().await
    }

    /// Finds the way to a listener and makes the queue pair, and sends no request yet: receives can
    /// be posted first.
    pub fn prepare(&self, to: SocketAddr) -> Result<Connecting, Error> {
        self.prepare_until(to, Deadline::NONE)
    }

    fn prepare_until(&self, to: SocketAddr, deadline: Deadline) -> Result<Connecting, Error> {
        let id = self.manager.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, to, RESOLVE_MS)?;
        wait_until(&id, EventKind::AddrResolved, deadline)?;
        id.resolve_route(RESOLVE_MS)?;
        wait_until(&id, EventKind::RouteResolved, deadline)?;
        self.make(id)
    }

    /// [`Connector::prepare`] for tasks.
    pub async fn prepare_async(&self, to: SocketAddr) -> Result<Connecting, Error> {
        let id = self.manager.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, to, RESOLVE_MS)?;
        event_of(&id, EventKind::AddrResolved).await?;
        id.resolve_route(RESOLVE_MS)?;
        event_of(&id, EventKind::RouteResolved).await?;
        self.make(id)
    }

    fn make(&self, id: CmId) -> Result<Connecting, Error> {
        let (qp, pd) = self.plan.make(&id)?;
        let connection = Connection::new(id, qp, pd, Vec::new());
        Ok(Connecting { connection, param: self.param.clone() })
    }
}

/// A connection that was prepared and has not asked the peer yet. Its queue pair takes receives.
#[derive(Debug)]
pub struct Connecting {
    connection: Connection,
    param: ConnParam,
}

impl Connecting {
    /// The protection domain of its queue pair: memory for it is registered there.
    pub fn pd(&self) -> &Pd {
        self.connection.pd()
    }

    /// Posts receives, in order, until one is refused.
    pub fn post_recv(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        self.connection.post_recv(wrs)
    }

    /// Sends the request, and waits until the peer accepts or rejects.
    pub fn connect(self) -> Result<Connection, Error> {
        self.connect_until(Deadline::NONE)
    }

    /// Connects as [`Connecting::connect`] does, and fails with
    /// [`CmError::TimedOut`](super::CmError::TimedOut) if that takes longer than `time`.
    pub fn connect_timeout(self, time: Duration) -> Result<Connection, Error> {
        self.connect_until(Deadline::after(time))
    }

    fn connect_until(mut self, deadline: Deadline) -> Result<Connection, Error> {
        self.connection.id().connect(&self.param)?;
        let established = wait_until(self.connection.id(), EventKind::Established, deadline)?;
        self.connection.set_private_data(established.private_data);
        Ok(self.connection)
    }

    /// [`Connecting::connect`] for tasks.
    pub async fn connect_async(mut self) -> Result<Connection, Error> {
        self.connection.id().connect(&self.param)?;
        let established = event_of(self.connection.id(), EventKind::Established).await?;
        self.connection.set_private_data(established.private_data);
        Ok(self.connection)
    }
}
