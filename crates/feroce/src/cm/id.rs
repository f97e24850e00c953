//! Ids: one end of a connection, from address to disconnection.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use feroce_cm::rdma::{ConnParam, EventKind, IdOption, PortSpace};
use feroce_engine::{QpAttr, QpState, QpType};
use feroce_wire::Qpn;

use super::channel::EventChannel;
use super::kernel::KernelId;
use super::soft::SoftId;
use crate::backend::{Either, either};
use crate::context::Context;
use crate::{Error, Qp};

/// One end of a connection, a listener, or a way to datagram services. Cheap to clone; when the
/// last clone is gone, the id is destroyed and the peer is told.
///
/// ```
/// use feroce::cm::{Manager, PortSpace};
///
/// let manager = Manager::with([feroce::Device::at(["127.0.0.52".parse()?]).open()?])?;
/// let id = manager.create_id(PortSpace::Tcp)?;
/// id.bind("127.0.0.52:0".parse()?)?;
/// id.listen(8)?;
/// assert_ne!(id.local_addr().expect("bound").port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_cm_id")]
#[derive(Clone, Debug)]
pub struct CmId {
    side: Either<SoftId, KernelId>,
}

impl From<SoftId> for CmId {
    fn from(id: SoftId) -> Self {
        Self { side: Either::Soft(id) }
    }
}

impl From<KernelId> for CmId {
    fn from(id: KernelId) -> Self {
        Self { side: Either::Kernel(id) }
    }
}

impl PartialEq for CmId {
    fn eq(&self, other: &Self) -> bool {
        self.number() == other.number()
    }
}

impl Eq for CmId {}

impl Hash for CmId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}

/// What is known.
impl CmId {
    /// A number that no other id of the process has.
    pub fn number(&self) -> u64 {
        either!(&self.side, id => id.number())
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        either!(&self.side, id => id.port_space())
    }

    /// Where its events come out.
    pub fn channel(&self) -> EventChannel {
        either!(&self.side, id => id.channel().into())
    }

    /// Our address, once it is bound.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        either!(&self.side, id => id.local_addr())
    }

    /// The peer's address, once it is known.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        either!(&self.side, id => id.peer_addr())
    }

    /// The device, once an address has chosen one.
    pub fn context(&self) -> Option<&Context> {
        either!(&self.side, id => id.context())
    }

    /// The attributes that a queue pair of this connection needs to get into a state.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn qp_attr(&self, state: QpState) -> Result<QpAttr, Error> {
        either!(&self.side, id => Ok(id.qp_attr(state)?))
    }

    /// The parameters with which a request is granted exactly as asked.
    pub fn offered(&self) -> Option<ConnParam> {
        either!(&self.side, id => id.offered())
    }
}

/// What is to be done.
impl CmId {
    /// Changes a setting; only before it is used.
    #[doc(alias = "rdma_set_option")]
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.set_option(option)?))
    }

    /// Takes an address; port 0 is any, and the unspecified address all.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        either!(&self.side, id => id.bind(addr))
    }

    /// Finds the device that leads to a peer. Event: address resolved, or address error. Our own
    /// adapter knows at once, so that the time limit is never reached.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.resolve_addr(src, dst, timeout_ms)?))
    }

    /// Finds the route; on Ethernet there is nothing to find. Event: route resolved.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.resolve_route(timeout_ms)?))
    }

    /// Listens; at most `backlog` requests wait to be taken from the channel, or very many if it is
    /// zero. Events: connect requests.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        either!(&self.side, id => id.listen(backlog))
    }

    /// Lets events come out of another channel from now on, those that wait included.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), Error> {
        either!(self.side.zip(&channel.side)?, (id, channel) => id.migrate(channel))
    }

    /// Gives it an event channel of its own.
    pub(super) fn move_out(&self) -> Result<(), Error> {
        either!(&self.side, id => id.migrate(&id.another_channel()?))
    }

    /// Gives the id a queue pair, which it brings up and down from now on: a connected one gets to
    /// INIT now, a datagram one to RTS. A caller that drops the queue pair before the id calls
    /// [`CmId::release_qp`] first.
    #[doc(alias = "rdma_create_qp")]
    pub fn use_qp(&self, qp: &Qp) -> Result<(), Error> {
        either!(&self.side, id => id.use_qp(qp))
    }

    /// The same for a queue pair of which only the number is at hand; our own adapter knows it.
    pub fn use_qpn(&self, qpn: Qpn, qp_type: QpType, srq: bool) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported("queue pairs known by number"))?;
        id.use_qpn(qpn, qp_type, srq)
    }

    /// The id has no queue pair any more; it goes where its owner takes it.
    #[doc(alias = "rdma_destroy_qp")]
    pub fn release_qp(&self) {
        either!(&self.side, id => id.release_qp());
    }

    /// Asks the peer for a connection, or for its datagram service. Events: established, or connect
    /// response if the id has no queue pair; rejected, unreachable, connect error.
    ///
    /// With the kernel's drivers, the connection is there when the event is taken and not before:
    /// the queue pair is brought up then.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.connect(param)?))
    }

    /// Accepts a request. Event: established, on connections; a datagram service needs none.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.accept(param)?))
    }

    /// Refuses a request, or an answer.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.reject(private_data)?))
    }

    /// Completes a connection on an id without queue pair, after a connect response; or says that
    /// data came before the peer's word that it is ready.
    #[doc(alias = "rdma_establish")]
    #[doc(alias = "rdma_notify")]
    pub fn establish(&self) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.establish()?))
    }

    /// Ends the connection; what is posted on the queue pair comes back. Event: disconnected.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.disconnect()?))
    }

    /// Puts an event of one's own into the channel, behind those that wait.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(&self, kind: EventKind, status: i32, data: &[u8]) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported("events of one's own"))?;
        id.write_event(kind, status, data);
        Ok(())
    }

    /// Joins a multicast group; with `send_only`, only to send to it. Event: multicast join.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        either!(&self.side, id => id.join_multicast(group, send_only))
    }

    /// Leaves a multicast group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.leave_multicast(group)?))
    }
}
