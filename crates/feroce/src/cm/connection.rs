//! [`Connector`], [`Listener`] and [`Connection`]: connections that own their queue pair.
//!
//! They are built on [`CmId`] and its events alone, so they work with both backends.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use feroce_cm::rdma::{ConnParam, EventKind, PortSpace};
use feroce_engine::QpCap;
use feroce_wire::cm::RejReason;

use super::channel::EventChannel;
use super::error::CmError;
use super::event::Event;
use super::id::CmId;
use super::manager::Manager;
use crate::{Cq, Error, Pd, Qp};

/// Depth of the send and the receive queue, unless the caller gives a [`QpCap`].
const DEPTH: u32 = 128;

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
    /// Makes a queue pair for an id that knows its device.
    fn prepare(id: &CmId, cap: QpCap) -> Result<(Qp, Pd), Error> {
        let context = id.context().ok_or(CmError::WrongState)?;
        let pd = context.alloc_pd()?;
        let depth = cap.max_send_wr + cap.max_recv_wr;
        let (send_cq, recv_cq) = (context.create_cq(depth)?, context.create_cq(depth)?);
        let qp = pd.rc_qp(&send_cq, &recv_cq, cap).create()?;
        id.use_qp(&qp)?;
        Ok((qp, pd))
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

    /// Waits until the peer disconnects.
    pub fn wait_disconnected(&self) -> Result<(), Error> {
        wait_for(&self.id, EventKind::Disconnected).map(drop)
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

/// Connects to listeners.
#[derive(Clone, Debug)]
pub struct Connector {
    manager: Manager,
    param: ConnParam,
    cap: QpCap,
}

impl Connector {
    /// A connector that uses the devices of this manager.
    pub fn new(manager: &Manager) -> Self {
        let (param, cap) = (ConnParam::default(), QpCap::new(DEPTH, DEPTH));
        Self { manager: manager.clone(), param, cap }
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

    /// Sizes of the queue pair.
    #[must_use]
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Connects, and waits until the peer accepts or rejects.
    pub fn connect(&self, to: SocketAddr) -> Result<Connection, Error> {
        let id = self.manager.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, to, 0)?;
        wait_for(&id, EventKind::AddrResolved)?;
        id.resolve_route(0)?;
        wait_for(&id, EventKind::RouteResolved)?;
        let (qp, pd) = self.request(&id)?;
        let private_data = wait_for(&id, EventKind::Established)?.private_data;
        Ok(Connection { id, qp, pd, private_data })
    }

    /// [`Connector::connect`] for tasks.
    pub async fn connect_async(&self, to: SocketAddr) -> Result<Connection, Error> {
        let id = self.manager.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, to, 0)?;
        event_of(&id, EventKind::AddrResolved).await?;
        id.resolve_route(0)?;
        event_of(&id, EventKind::RouteResolved).await?;
        let (qp, pd) = self.request(&id)?;
        let private_data = event_of(&id, EventKind::Established).await?.private_data;
        Ok(Connection { id, qp, pd, private_data })
    }

    /// Sends the connect request on an id whose route is resolved.
    fn request(&self, id: &CmId) -> Result<(Qp, Pd), Error> {
        let made = Connection::prepare(id, self.cap)?;
        id.connect(&self.param)?;
        Ok(made)
    }
}

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

    /// Waits for the next request.
    pub fn accept(&self) -> Result<Request, Error> {
        loop {
            if let Some(event) = self.channel.wait_event(None)?
                && let Some(request) = Request::of(event)?
            {
                return Ok(request);
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
    cap: QpCap,
}

impl Request {
    /// The request in an event of a listener. Other events of the listener, e.g. of connections
    /// that were dropped, are skipped.
    fn of(event: Event) -> Result<Option<Self>, Error> {
        match event.kind {
            EventKind::ConnectRequest => {}
            EventKind::DeviceRemoval => return Err(CmError::DeviceGone.into()),
            _ => return Ok(None),
        }
        let Event { id, private_data, .. } = event;
        // Events of the connection must not appear in the channel of the listener.
        id.move_out()?;
        let cap = QpCap::new(DEPTH, DEPTH);
        Ok(Some(Self { id, private_data, param: None, cap }))
    }

    /// Private data of the request, padded with zeros to the size of the field.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Parameters of the connection. The default is what the request asks for.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = Some(param);
        self
    }

    /// Sizes of the queue pair.
    #[must_use]
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Accepts, and waits until the peer is ready.
    pub fn accept(self) -> Result<Connection, Error> {
        let connection = self.start()?;
        wait_for(&connection.id, EventKind::Established)?;
        Ok(connection)
    }

    /// [`Request::accept`] for tasks.
    pub async fn accept_async(self) -> Result<Connection, Error> {
        let connection = self.start()?;
        event_of(&connection.id, EventKind::Established).await?;
        Ok(connection)
    }

    fn start(self) -> Result<Connection, Error> {
        let (qp, pd) = Connection::prepare(&self.id, self.cap)?;
        let param = self.param.or_else(|| self.id.offered()).unwrap_or_default();
        self.id.accept(&param)?;
        Ok(Connection { id: self.id, qp, pd, private_data: self.private_data })
    }

    /// Rejects the request with private data for the peer.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}

/// Waits for one kind of event on an id with a channel of its own.
fn wait_for(id: &CmId, kind: EventKind) -> Result<Event, Error> {
    let channel = id.channel();
    loop {
        if let Some(event) = channel.wait_event(None)?
            && let Some(event) = sort(event, kind)?
        {
            return Ok(event);
        }
    }
}

/// [`wait_for`] for tasks.
async fn event_of(id: &CmId, kind: EventKind) -> Result<Event, Error> {
    let channel = id.channel();
    loop {
        if let Some(event) = sort(channel.event().await, kind)? {
            return Ok(event);
        }
    }
}

/// The event if it is of the kind; an error if the event rules out that kind.
fn sort(event: Event, kind: EventKind) -> Result<Option<Event>, Error> {
    if event.kind == kind {
        return Ok(Some(event));
    }
    Err(match event.kind {
        EventKind::Rejected => {
            let reason = RejReason(u16::try_from(event.status).unwrap_or(0));
            CmError::Rejected { reason, private_data: event.private_data }.into()
        }
        EventKind::AddrError => {
            CmError::Route(std::io::Error::from_raw_os_error(-event.status)).into()
        }
        EventKind::Unreachable | EventKind::ConnectError | EventKind::Disconnected => {
            CmError::Unreachable.into()
        }
        EventKind::DeviceRemoval => CmError::DeviceGone.into(),
        _ => return Ok(None),
    })
}
