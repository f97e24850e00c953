//! Accepting connections.

use std::net::SocketAddr;
use std::time::Duration;

use feroce_cm::rdma::{BindError, ConnParam, EventKind, PortSpace};
use feroce_engine::RecvWr;
use feroce_wire::Qpn;

use super::channel::EventChannel;
use super::connection::Connection;
use super::error::CmError;
use super::event::Event;
use super::id::CmId;
use super::manager::Manager;
use super::plan::{QpPlan, plan_methods};
use super::wait::{event_of, wait_for};
use crate::deadline::Deadline;
use crate::{Context, Error, Pd, PostError};

/// Accepts connect requests at an address.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    channel: EventChannel,
    local: SocketAddr,
}

impl Listener {
    /// Listens at an address. Port 0 selects a free port; the unspecified address selects all
    /// devices.
    pub fn bind(manager: &Manager, addr: SocketAddr) -> Result<Self, Error> {
        let channel = manager.event_channel()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.bind(addr)?;
        id.listen(0)?;
        let local = id.local_addr().unwrap_or(addr);
        Ok(Self { id, channel, local })
    }

    /// Address and port that it listens at.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Waits for the next request. Fails if the device is gone, or if another process has taken the
    /// port while `feroce portd` was started again.
    pub fn accept(&self) -> Result<Request, Error> {
        loop {
            if let Some(request) = self.accept_until(Deadline::NONE)? {
                return Ok(request);
            }
        }
    }

    /// Waits for the next request, and at most for `time`; `None` if there was none.
    pub fn accept_timeout(&self, time: Duration) -> Result<Option<Request>, Error> {
        self.accept_until(Deadline::after(time))
    }

    fn accept_until(&self, deadline: Deadline) -> Result<Option<Request>, Error> {
        loop {
            if let Some(event) = self.channel.wait_event(deadline.wait_ms())? {
                if let Some(request) = Request::of(event)? {
                    return Ok(Some(request));
                }
            } else if deadline.is_over() {
                return Ok(None);
            }
        }
    }

    /// [`Listener::accept`] for tasks.
    pub async fn accept_async(&self) -> Result<Request, Error> {
        loop {
            if let Some(request) = Request::of(self.channel.event().await)? {
                return Ok(request);
            }
        }
    }
}

/// A connect request of a peer. Dropping it rejects the request.
#[derive(Debug)]
pub struct Request {
    id: CmId,
    private_data: Vec<u8>,
    param: Option<ConnParam>,
    plan: QpPlan,
}

impl Request {
    /// The request in an event of a listener. Other events of the listener, e.g. of connections
    /// that were dropped, are skipped.
    fn of(event: Event) -> Result<Option<Self>, Error> {
        match event.kind {
            EventKind::ConnectRequest => {}
            EventKind::DeviceRemoval => return Err(CmError::DeviceGone.into()),
            // While there was no portd, another process has taken the port.
            EventKind::AddrError => return Err(CmError::Port(BindError::InUse).into()),
            _ => return Ok(None),
        }
        let Event { id, private_data, .. } = event;
        // Events of the connection must not appear in the channel of the listener.
        id.move_out()?;
        Ok(Some(Self { id, private_data, param: None, plan: QpPlan::default() }))
    }

    /// Private data of the request, padded with zeros to the size of the field.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// The parameters that accept the request exactly as the peer asks. A program that adds
    /// private data begins with these.
    pub fn offered(&self) -> Option<ConnParam> {
        self.id.offered()
    }

    /// Parameters of the connection. The default is what the request asks for.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = Some(param);
        self
    }

    /// The device that the request has reached.
    pub fn context(&self) -> Option<&Context> {
        self.id.context()
    }

    plan_methods!();

    /// Accepts, and waits until the peer is ready.
    pub fn accept(self) -> Result<Connection, Error> {
        self.prepare()?.accept()
    }

    /// [`Request::accept`] for tasks.
    pub async fn accept_async(self) -> Result<Connection, Error> {
        self.prepare()?.accept_async().await
    }

    /// Makes the queue pair, and does not answer yet: receives can be posted first.
    pub fn prepare(self) -> Result<Accepting, Error> {
        let (qp, pd) = self.plan.make(&self.id)?;
        let param = self.param.or_else(|| self.id.offered()).unwrap_or_default();
        let connection = Connection::new(self.id, qp, pd, self.private_data);
        Ok(Accepting { connection, param })
    }

    /// Rejects the request with private data for the peer.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}

/// A request whose connection was prepared and that is not answered yet. Its queue pair takes
/// receives. Dropping it rejects the request.
#[derive(Debug)]
pub struct Accepting {
    connection: Connection,
    param: ConnParam,
}

impl Accepting {
    /// The protection domain of its queue pair: memory for it is registered there.
    pub fn pd(&self) -> &Pd {
        self.connection.pd()
    }

    /// Number of its queue pair.
    pub fn qpn(&self) -> Qpn {
        self.connection.qpn()
    }

    /// Posts receives, in order, until one is refused.
    pub fn post_recv(&mut self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        self.connection.post_recv(wrs)
    }

    /// Accepts, and waits until the peer is ready.
    pub fn accept(self) -> Result<Connection, Error> {
        self.connection.id().accept(&self.param)?;
        wait_for(self.connection.id(), EventKind::Established)?;
        Ok(self.connection)
    }

    /// [`Accepting::accept`] for tasks.
    pub async fn accept_async(self) -> Result<Connection, Error> {
        self.connection.id().accept(&self.param)?;
        event_of(self.connection.id(), EventKind::Established).await?;
        Ok(self.connection)
    }
}
