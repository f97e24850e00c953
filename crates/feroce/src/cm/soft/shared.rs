//! The state of an id, in two halves.
//!
//! The halves ensure that no thread destroys a device under the driver's lock: the driver holds
//! [`Shared`], which holds no device; consumers hold [`Owner`], which holds the device. The lock of
//! an id is taken last: a thread that holds it takes no other lock.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use feroce_cm::rdma::{Binding, ConnParam, PortSpace};
use feroce_cm::{ConnId, ListenId};
use feroce_engine::QpType;
use feroce_link::tcp::{ReservedPort, StreamId, TcpListenId};
use feroce_train::Framing;
use feroce_wire::mad::{McMemberRecord, PathRecord};
use feroce_wire::{Gid, Qpn};

use super::channel::{ChannelOwner, Queue};
use super::claim::Claim;
use super::iwarp::IwarpService;
use super::manager::ManagerInner;
use super::native::IbEnds;
use super::service::Service;
use crate::backend::soft::SoftAdapter;
use crate::context::Context;
use crate::watch::ConnectionSnapshot;

/// State of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Idle,
    Bound,
    /// The device is chosen, and the neighbour on the route to the peer is asked.
    AddrQuery,
    AddrResolved,
    /// The subnet administration is asked for a path to the peer.
    RouteQuery,
    RouteResolved,
    Listening,
    /// This side sent a request.
    Connecting,
    /// The peer accepted, and the id has no queue pair to bring up.
    Responded,
    /// A peer sent a request.
    Requested,
    /// This side accepted the request.
    Accepted,
    Connected,
    Over,
}

/// The queue pair of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IdQp {
    pub(super) qpn: Qpn,
    pub(super) qp_type: QpType,
    pub(super) srq: bool,
}

/// Options that can be set before connecting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse_addr: bool,
    pub(super) af_only: bool,
    pub(super) ack_timeout: Option<u8>,
}

/// A multicast group that was joined.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) group: Gid,
    /// Whether the queue pair receives the datagrams of the group.
    pub(super) receives: bool,
    /// Keeps the port of an InfiniBand subnet in the group.
    pub(super) hold: Option<feroce_umad::Claim>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) stage: Stage,
    pub(super) queue: Arc<Queue>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Both addresses, if they are those of InfiniBand.
    pub(super) ib: Option<IbEnds>,
    /// What the subnet administration has said of the broadcast group of IPoIB.
    pub(super) broadcast: Option<McMemberRecord>,
    /// The GID of the peer, on InfiniBand.
    pub(super) gid: Option<Gid>,
    /// The path to the peer, on InfiniBand.
    pub(super) path: Option<PathRecord>,
    pub(super) conn: Option<ConnId>,
    /// The connection, on a device that speaks iWARP.
    pub(super) stream: Option<StreamId>,
    pub(super) qp: Option<IdQp>,
    pub(super) options: Options,
    /// How the packets of its connection are framed.
    pub(super) framing: Framing,
    pub(super) binding: Option<Binding>,
    /// The consumer has chosen the port.
    pub(super) has_port: bool,
    /// The port, on a device that speaks iWARP, until the id listens.
    pub(super) reserved: Option<ReservedPort>,
    pub(super) listens: Vec<(Weak<SoftAdapter>, ListenId)>,
    /// The same, on devices that speak iWARP.
    pub(super) tcp_listens: Vec<(Weak<SoftAdapter>, TcpListenId)>,
    /// Held while it listens.
    pub(super) claims: Vec<Claim>,
    /// The parameters of the peer's request, from the view of this side: the default of a reply.
    pub(super) offer: Option<ConnParam>,
    /// Groups that were joined.
    pub(super) groups: Vec<Membership>,
}

/// The half that the driver holds.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) number: u64,
    pub(super) space: PortSpace,
    /// Whether it is for datagrams.
    pub(super) is_datagrams: bool,
    /// The device of a request, until it has an owner.
    pub(super) device: Weak<SoftAdapter>,
    inner: Mutex<Inner>,
    owner: Mutex<Weak<Owner>>,
}

impl Shared {
    /// What people see of it who look into the device.
    pub(super) fn snapshot(&self) -> ConnectionSnapshot {
        let inner = self.lock();
        let state = match inner.stage {
            Stage::Idle => "idle",
            Stage::Bound => "bound",
            Stage::AddrQuery => "resolving-address",
            Stage::AddrResolved => "address-resolved",
            Stage::RouteQuery => "resolving-route",
            Stage::RouteResolved => "route-resolved",
            Stage::Listening => "listening",
            Stage::Connecting => "connecting",
            Stage::Responded => "responded",
            Stage::Requested => "requested",
            Stage::Accepted => "accepted",
            Stage::Connected => "connected",
            Stage::Over => "disconnected",
        };
        let (local, peer) = (inner.local, inner.peer);
        ConnectionSnapshot { state: state.to_owned(), qpn: inner.qp.map(|qp| qp.qpn), local, peer }
    }

    pub(super) fn new(
        number: u64,
        (space, is_datagrams): (PortSpace, bool),
        queue: Arc<Queue>,
        device: Weak<SoftAdapter>,
    ) -> Arc<Self> {
        let inner = Inner {
            stage: Stage::Idle,
            queue,
            local: None,
            peer: None,
            ib: None,
            broadcast: None,
            gid: None,
            path: None,
            conn: None,
            stream: None,
            qp: None,
            options: Options::default(),
            framing: Framing::default(),
            binding: None,
            has_port: false,
            reserved: None,
            listens: Vec::new(),
            tcp_listens: Vec::new(),
            claims: Vec::new(),
            offer: None,
            groups: Vec::new(),
        };
        let (inner, owner) = (Mutex::new(inner), Mutex::new(Weak::new()));
        Arc::new(Self { number, space, is_datagrams, device, inner, owner })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The consumer's half, while there is one.
    pub(super) fn owner(&self) -> Option<Arc<Owner>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// The half that consumers hold. Dropping the last reference destroys the id.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    pub(super) manager: Arc<ManagerInner>,
    pub(super) context: OnceLock<Context>,
    /// Keeps the channel open.
    pub(super) channel: Mutex<Arc<ChannelOwner>>,
}

impl Owner {
    pub(super) fn new(
        shared: Arc<Shared>,
        manager: Arc<ManagerInner>,
        channel: Arc<ChannelOwner>,
    ) -> Arc<Self> {
        let context = OnceLock::new();
        let owner = Arc::new(Self { shared, manager, context, channel: Mutex::new(channel) });
        let weak = Arc::downgrade(&owner);
        *owner.shared.owner.lock().unwrap_or_else(PoisonError::into_inner) = weak;
        owner
    }

    /// Ends what the id has on devices that speak iWARP.
    pub(super) fn end_iwarp(&self) {
        let (stream, listens) = {
            let mut inner = self.shared.lock();
            (inner.stream.take(), std::mem::take(&mut inner.tcp_listens))
        };
        for (device, listener) in listens {
            if let Some(device) = device.upgrade() {
                device.driver.control_link(|s, link, _| {
                    link.streams().into_iter().for_each(|streams| streams.unlisten(listener));
                    if let Some((cm, _)) = IwarpService::of(s) {
                        cm.unlisten(listener);
                    }
                });
            }
        }
        if let (Some(stream), Some(Ok(driver))) = (stream, self.context.get().map(Context::driver))
        {
            driver.control(|s, now| {
                if let Some((cm, engine)) = IwarpService::of(s) {
                    cm.destroy(engine, now, stream);
                }
            });
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end_iwarp();
        let (conn, binding, listens, groups, qp) = {
            let mut inner = self.shared.lock();
            let listens = std::mem::take(&mut inner.listens);
            let groups = std::mem::take(&mut inner.groups);
            (inner.conn.take(), inner.binding.take(), listens, groups, inner.qp)
        };
        for (device, listener) in listens {
            if let Some(device) = device.upgrade() {
                device.driver.control(|s, _| {
                    if let Some(cm) = Service::of(s) {
                        cm.unlisten(listener);
                    }
                });
            }
        }
        if let Some(Ok(driver)) = self.context.get().map(Context::driver) {
            driver.control_link(|s, link, now| {
                if let (Some(cm), Some(conn)) = (Service::of(s), conn) {
                    cm.destroy(now, conn);
                }
                for Membership { group, receives, .. } in &groups {
                    if *receives {
                        super::mcast::leave(s, link, qp.map(|qp| qp.qpn), *group);
                    }
                }
                if let (Some(cm), Some(qp)) = (Service::of(s), qp) {
                    cm.forget_qp(qp.qpn, &self.shared);
                }
            });
        }
        self.shared.lock().claims.clear();
        if let Some(binding) = binding {
            self.manager.ports().release(binding);
        }
        let queue = Arc::clone(&self.shared.lock().queue);
        queue.forget(&self.manager, &self.shared);
    }
}
