//! Ids: one end of a connection, from address to disconnection.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use feroce_backend_rdma_core::Feature;
use feroce_cm::rdma::{ConnParam, EventKind, IbAddr, IdOption, PortSpace};
use feroce_engine::{QpAttr, QpState, QpType};
use feroce_train::Framing;
use feroce_wire::mad::PathRecord;
use feroce_wire::{Gid, Qpn};

use super::channel::EventChannel;
use super::kernel::KernelId;
use super::soft::SoftId;
use super::state::IdState;
use crate::backend::{Either, either};
use crate::context::Context;
use crate::{Error, Qp};

/// One end of a connection, a listener, or a client of datagram services. Cheap to clone; dropping
/// the last clone destroys the id and notifies the peer.
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

impl EventChannel {
    /// Creates an id whose events go to this channel.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId, Error> {
        either!(&self.side, channel => Ok(channel.create_id(space)?.into()))
    }

    /// Creates an id for datagrams of [`PortSpace::Ib`]. The other port spaces are for connections
    /// or for datagrams, and [`EventChannel::create_id`] is for them; this one is for both.
    #[doc(alias = "rdma_create_ep")]
    pub fn create_datagram_id(&self) -> Result<CmId, Error> {
        either!(&self.side, channel => Ok(channel.create_datagram_id()?.into()))
    }
}

/// Queries.
impl CmId {
    /// A number that no other id of the process has.
    pub fn number(&self) -> u64 {
        either!(&self.side, id => id.number())
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        either!(&self.side, id => id.port_space())
    }

    /// Whether it is for datagrams, not for connections.
    pub fn is_datagrams(&self) -> bool {
        either!(&self.side, id => id.is_datagrams())
    }

    /// The channel that its events go to.
    pub fn channel(&self) -> EventChannel {
        either!(&self.side, id => id.channel().into())
    }

    /// The local address, once it is bound.
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

    /// How far it is; none with the kernel's drivers, which do not tell.
    #[doc(alias = "rdma_cm_state")]
    pub fn state(&self) -> Option<IdState> {
        Some(self.side.soft()?.state())
    }

    /// Its queue pair, if it has one; none with the kernel's drivers.
    pub fn qpn(&self) -> Option<Qpn> {
        self.side.soft()?.qpn()
    }

    /// The parameters that accept a request exactly as the peer asks.
    pub fn offered(&self) -> Option<ConnParam> {
        either!(&self.side, id => id.offered())
    }
}

/// Operations.
impl CmId {
    /// Sets an option, before the call that uses it. Linux says when: the reuse of an address can
    /// be allowed until the id listens, and forbidden until it is bound; the restriction to one
    /// address family can be set on an id that is at most bound.
    #[doc(alias = "rdma_set_option")]
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.set_option(option)?))
    }

    /// Binds the id to an address. Port 0 selects a free port; the unspecified address selects all
    /// addresses.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        either!(&self.side, id => id.bind(addr))
    }

    /// Finds the device with a route to a peer. Event: address resolved, or address error.
    ///
    /// If the next host on the route, the peer itself or a router, does not answer within the time
    /// limit, the error is `-ETIMEDOUT`. With a time limit of zero the software adapter does not
    /// ask that host; the request that follows finds out.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.resolve_addr(src, dst, timeout_ms)?))
    }

    /// Resolves the route; on Ethernet this needs no query. Event: route resolved.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.resolve_route(timeout_ms)?))
    }

    /// Listens. At most `backlog` requests wait in the channel for the consumer; zero selects a
    /// large default. Events: connect requests.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        either!(&self.side, id => id.listen(backlog))?;
        tracing::debug!("listening at {}", shown(self.local_addr()));
        Ok(())
    }

    /// Moves the id to another channel: events that wait, and all later ones, go there.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), Error> {
        either!(self.side.zip(&channel.side)?, (id, channel) => id.migrate(channel))
    }

    /// Moves the id to an event channel of its own.
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

    /// The same for a queue pair of which the caller has only the number; only the software adapter
    /// supports that.
    pub fn use_qpn(&self, qpn: Qpn, qp_type: QpType, srq: bool) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported(Feature::QpByNumber))?;
        id.use_qpn(qpn, qp_type, srq)
    }

    /// Gives the id a queue pair whose state the caller has seen to so far. Accepting or connecting
    /// brings it up, from RESET or INIT.
    pub fn adopt_qpn(&self, qpn: Qpn, qp_type: QpType, srq: bool) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported(Feature::QpByNumber))?;
        id.adopt_qpn(qpn, qp_type, srq)
    }

    /// Detaches the queue pair from the id; from then on, its owner changes its state.
    #[doc(alias = "rdma_destroy_qp")]
    pub fn release_qp(&self) {
        either!(&self.side, id => id.release_qp());
    }

    /// Asks the peer for a connection, or for its datagram service. Events: established, or connect
    /// response if the id has no queue pair; rejected, unreachable, connect error.
    ///
    /// With the kernel's drivers, the connection exists only when the consumer takes the event:
    /// taking it brings the queue pair up.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        tracing::debug!("connecting to {}", shown(self.peer_addr()));
        either!(&self.side, id => Ok(id.connect(param)?))
    }

    /// Accepts a request. Event: established, on connections; a datagram service needs none.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.accept(param)?))
    }

    /// Rejects a connect request, or a reply.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.reject(private_data)?))
    }

    /// Completes a connection on an id without queue pair, after a connect response; or reports
    /// that data arrived before the peer's message that it is ready to use (RTU).
    #[doc(alias = "rdma_establish")]
    #[doc(alias = "rdma_notify")]
    pub fn establish(&self) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.establish()?))
    }

    /// Ends the connection; the requests posted on the queue pair are flushed. Event: disconnected.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.disconnect()?))
    }

    /// Appends an event of the caller to the channel, behind those that wait.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(&self, kind: EventKind, status: i32, data: &[u8]) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported(Feature::OwnEvents))?;
        id.write_event(kind, status, data);
        Ok(())
    }

    /// Joins a multicast group; with `send_only`, only to send to it. Event: multicast join.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        either!(&self.side, id => id.join_multicast(group, send_only))
    }

    /// Joins the multicast group with a GID; for the software adapter on InfiniBand only.
    pub fn join_group(&self, group: Gid, send_only: bool) -> Result<(), Error> {
        self.on_infiniband()?.join_group(group, send_only)
    }

    /// Leaves the multicast group with a GID.
    pub fn leave_group(&self, group: Gid) -> Result<(), Error> {
        self.on_infiniband()?.leave_group(group)
    }

    /// Binds the id to a service at a GID, as an address of the family `AF_IB`; the zero GID
    /// selects all ports. Such an id shows its GID as an IPv6 address in [`CmId::local_addr`].
    pub fn bind_ib(&self, addr: IbAddr) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported(Feature::IbAddresses))?;
        id.bind_ib(addr)
    }

    /// Finds the port from which a service at a GID is reached, as for an address of the family
    /// `AF_IB`. Event: address resolved. On Ethernet no route leads there.
    pub fn resolve_ib(&self, src: Option<IbAddr>, dst: IbAddr) -> Result<(), Error> {
        let id = self.side.soft().ok_or(Error::Unsupported(Feature::IbAddresses))?;
        id.resolve_ib(src, dst)
    }

    /// The addresses of the id and of its peer, if the id is bound to an address of InfiniBand.
    #[doc(alias = "sockaddr_ib")]
    pub fn ib_addrs(&self) -> Option<(IbAddr, Option<IbAddr>)> {
        self.side.soft()?.ib_addrs()
    }

    /// The id, if it is one of the software adapter on InfiniBand.
    fn on_infiniband(&self) -> Result<&SoftId, Error> {
        let id = self.side.soft().filter(|id| id.is_in_subnet());
        id.ok_or(Error::Unsupported(Feature::IbAddresses))
    }

    /// The path to the peer, if the port is of an InfiniBand subnet and the path is known.
    #[doc(alias = "ibv_sa_path_rec")]
    pub fn path(&self) -> Option<PathRecord> {
        match &self.side {
            Either::Soft(id) => id.path(),
            Either::Kernel(_) => None,
        }
    }

    /// The GID of a multicast group on the device of the id: the address itself on Ethernet, and on
    /// InfiniBand what Linux makes of it. `None` if the address is of no group.
    pub fn group_gid(&self, group: IpAddr) -> Option<Gid> {
        match &self.side {
            Either::Soft(id) => id.group_gid(group),
            Either::Kernel(_) => feroce_cm::rdma::mgid(group, Framing::RoceV2),
        }
    }

    /// Leaves a multicast group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
        either!(&self.side, id => Ok(id.leave_multicast(group)?))
    }
}

/// An address of an id, for people.
pub(super) fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "no address".to_owned(), |address| address.to_string())
}
