//! Ids: making and destroying them, and what programs see of them.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce::Gid;
use feroce::cm::{CmId, PortSpace};

use super::addrinfo::Resolved;
use super::channel::Channel;
use super::group::Group;
use super::table::Ids;
use super::{address, devices, table, taken};
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::memory;
use crate::verbs::ack::Acks;
use crate::verbs::object::Object;
use crate::verbs::registry::Listed;
use crate::zeroed::Zeroed;

/// The default partition, in which every port is.
const PKEY: u16 = 0xffff;

/// "Exactly", in the records of a subnet manager.
const EXACTLY: u8 = 2;

/// The lifetime of packets that Linux assumes on Ethernet, as a code.
const PACKET_LIFETIME: u8 = 16;

/// The addresses of `localhost`.
const LOCALHOST: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// An id.
#[repr(C)]
pub(crate) struct Id {
    public: UnsafeCell<rdma_cm_id>,
    /// The record that `route.path_rec` leads to.
    path: UnsafeCell<ibv_sa_path_rec>,
    pub(crate) id: CmId,
    /// Events that the program has and has not acknowledged.
    pub(crate) acks: Arc<Acks>,
    private: Mutex<Private>,
}

/// State of an id that C does not see.
#[derive(Default)]
pub(crate) struct Private {
    /// Calls wait for their event; the id has a channel of its own.
    pub(crate) is_sync: bool,
    /// How the queue pairs of requests are made that come to this endpoint.
    pub(crate) endpoint: Option<ibv_qp_init_attr>,
    /// Private data that precedes the private data of the program.
    pub(crate) prefix: Vec<u8>,
    /// Groups that were joined.
    pub(crate) groups: Vec<Group>,
    /// The result of `rdma_resolve_addrinfo`, until the program takes it.
    pub(crate) resolved: Option<Resolved>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Id {
    type C = rdma_cm_id;
}

// SAFETY: the program owns the public part. The path record is written by calls on the id and by
// the thread that takes an event of it, which the manual pages do not allow at the same time. The
// other pointers are only handed back.
unsafe impl Sync for Id {}

/// How an id is made.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// NULL for an id whose calls wait.
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) ps: rdma_port_space,
    pub(crate) qp_type: ibv_qp_type,
}

impl Id {
    /// Makes an id.
    ///
    /// # Safety
    /// The channel of the plan is NULL or live.
    pub(crate) unsafe fn create(plan: Plan) -> Result<*mut rdma_cm_id, Errno> {
        let space = match plan.ps {
            RDMA_PS_TCP => PortSpace::Tcp,
            RDMA_PS_UDP => PortSpace::Udp,
            RDMA_PS_IPOIB => PortSpace::Ipoib,
            RDMA_PS_IB => PortSpace::Ib,
            _ => return Err(Errno::INVALID),
        };
        memory::admit()?;
        let is_sync = plan.channel.is_null();
        let channel = if is_sync { Channel::create()? } else { plan.channel };
        // SAFETY: by this function's contract the channel of the plan is live, or this function has
        // made it.
        let behind = unsafe { Channel::of(channel) };
        let made = match space {
            PortSpace::Ib if plan.qp_type == IBV_QPT_UD => behind.channel.create_datagram_id(),
            _ => behind.channel.create_id(space),
        };
        match made {
            Ok(id) => Ok(Self::publish(&mut table::lock(), id, Plan { channel, ..plan }, is_sync)),
            Err(e) => {
                if is_sync {
                    // SAFETY: this function has made the object, and neither the program nor
                    // another thread has it.
                    unsafe { Channel::destroy(channel) };
                }
                Err(e.into())
            }
        }
    }

    /// Gives an id to the program.
    pub(crate) fn publish(table: &mut Ids, id: CmId, plan: Plan, is_sync: bool) -> *mut rdma_cm_id {
        let number = id.number();
        let mut public = rdma_cm_id::zeroed();
        public.channel = plan.channel;
        public.context = plan.context;
        public.ps = plan.ps;
        public.qp_type = plan.qp_type;
        let made = Self {
            public: UnsafeCell::new(public),
            path: UnsafeCell::new(ibv_sa_path_rec::zeroed()),
            id,
            acks: Arc::default(),
            private: Mutex::new(Private { is_sync, ..Private::default() }),
        }
        .give();
        // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot
        // destroy it.
        table.insert(number, Listed::new(unsafe { Self::of(made) }));
        made
    }

    pub(crate) fn private(&self) -> MutexGuard<'_, Private> {
        self.private.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What programs see of it now.
    pub(crate) fn seen(&self) -> rdma_cm_id {
        // SAFETY: the id is live, and every bit pattern that the program may write there is a
        // number or a pointer.
        unsafe { self.public().read() }
    }

    /// Shows addresses and device, as far as they are known.
    pub(crate) fn show(&self) -> Result<(), Errno> {
        let public = self.public();
        let (local, peer) = (self.id.local_addr(), self.id.peer_addr());
        let native = self.id.ib_addrs();
        let src = native.map(|(local, _)| address::storage_ib(local));
        if let Some(src_storage) = src.or_else(|| local.map(address::storage)) {
            let src = rdma_addr__anon_src { src_storage };
            // SAFETY: `public` points to a live object. This library sets `src` through the raw
            // pointer, without a reference to the public part.
            unsafe { (*public).route.addr.src = src };
        }
        let dst = native.and_then(|(_, peer)| peer).map(address::storage_ib);
        if let Some(dst_storage) = dst.or_else(|| peer.map(address::storage)) {
            let dst = rdma_addr__anon_dst { dst_storage };
            // SAFETY: `public` points to a live object. This library sets `dst` through the raw
            // pointer, without a reference to the public part.
            unsafe { (*public).route.addr.dst = dst };
        }
        // Linux takes this address for any address, so that programs expect no device with it.
        let is_localhost = |addr: SocketAddr| LOCALHOST.contains(&addr.ip());
        if peer.is_none() && local.is_some_and(is_localhost) {
            return Ok(());
        }
        let Some(adapter) = self.id.context() else { return Ok(()) };
        let ibaddr = rdma_ib_addr { sgid: gid_of(local), dgid: gid_of(peer), pkey: PKEY.to_be() };
        // SAFETY: `public` points to a live object. This library sets `addr` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).route.addr.addr = rdma_addr__addr { ibaddr } };
        if !self.seen().verbs.is_null() {
            return Ok(());
        }
        let device = devices::of(adapter)?;
        // SAFETY: `public` points to a live object. This library sets `verbs` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).verbs = device.verbs };
        // SAFETY: `public` points to a live object. This library sets `pd` through the raw pointer,
        // without a reference to the public part.
        unsafe { (*public).pd = device.pd };
        // SAFETY: `public` points to a live object. This library sets `port_num` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).port_num = 1 };
        Ok(())
    }

    /// Shows the route.
    pub(crate) fn show_path(&self) {
        let Some(adapter) = self.id.context() else { return };
        let zeroed = ibv_sa_path_rec::zeroed();
        let on_ethernet = ibv_sa_path_rec {
            dgid: gid_of(self.id.peer_addr()),
            sgid: gid_of(self.id.local_addr()),
            hop_limit: u8::MAX,
            reversible: 1,
            numb_path: 1,
            pkey: PKEY.to_be(),
            mtu_selector: EXACTLY,
            mtu: convert::mtu(adapter.port().active_mtu) as u8,
            rate_selector: EXACTLY,
            packet_life_time_selector: EXACTLY,
            packet_life_time: PACKET_LIFETIME,
            ..zeroed
        };
        let record = self.id.path().map_or(on_ethernet, |path| ibv_sa_path_rec {
            dgid: devices::gid(path.dgid),
            sgid: devices::gid(path.sgid),
            dlid: path.dlid.0.to_be(),
            slid: path.slid.0.to_be(),
            flow_label: path.flow_label.to_be(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: c_int::from(path.reversible),
            numb_path: path.number_of_paths,
            pkey: path.pkey.0.to_be(),
            sl: path.sl,
            mtu_selector: path.mtu_selector,
            mtu: path.mtu,
            rate_selector: path.rate_selector,
            rate: path.rate,
            packet_life_time_selector: path.life_time_selector,
            packet_life_time: path.life_time,
            preference: path.preference,
            ..zeroed
        });
        if let Some(path) = self.id.path() {
            let (sgid, dgid) = (devices::gid(path.sgid), devices::gid(path.dgid));
            let ibaddr = rdma_ib_addr { sgid, dgid, pkey: path.pkey.0.to_be() };
            // SAFETY: the public part belongs to a live object. This library sets `addr` through
            // the raw pointer, without a reference to the public part.
            unsafe { (*self.public()).route.addr.addr = rdma_addr__addr { ibaddr } };
        }
        let place = self.path.get();
        // SAFETY: the record is a field of this live id, and no reference to it is ever made.
        unsafe { place.write(record) };
        let public = self.public();
        // SAFETY: `public` points to a live object. This library sets `path_rec` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).route.path_rec = place };
        // SAFETY: `public` points to a live object. This library sets `num_paths` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).route.num_paths = 1 };
    }

    /// Lets events come out of another channel; a channel of its own, if it is NULL.
    ///
    /// # Safety
    /// `channel` is NULL or a live channel.
    pub(crate) unsafe fn migrate(&self, channel: *mut rdma_event_channel) -> Result<(), Errno> {
        let was_sync = self.private().is_sync;
        let is_sync = channel.is_null();
        if was_sync && is_sync {
            return Err(Errno::INVALID);
        }
        let channel = if is_sync { Channel::create()? } else { channel };
        // SAFETY: by this function's contract `channel` is live, or this function has made it.
        let moved = self.id.migrate(unsafe { &Channel::of(channel).channel });
        if let Err(e) = moved {
            if is_sync {
                // SAFETY: this function has made the object, and neither the program nor another
                // thread has it.
                unsafe { Channel::destroy(channel) };
            }
            return Err(e.into());
        }
        let public = self.public();
        let old = self.seen();
        // SAFETY: `public` points to a live object. This library sets `channel` through the raw
        // pointer, without a reference to the public part.
        unsafe { (*public).channel = channel };
        self.private().is_sync = is_sync;
        if was_sync {
            // SAFETY: `public` is a live id.
            unsafe { taken::forget(public) };
        }
        self.acks.settle("rdma_migrate_id", "rdma_ack_cm_event");
        if was_sync {
            // SAFETY: the id made the channel for itself, and has just been moved to another one.
            unsafe { Channel::destroy(old.channel) };
        }
        Ok(())
    }
}

/// The GID of an address; zero if there is none.
fn gid_of(addr: Option<SocketAddr>) -> ibv_gid {
    let gid = match addr.map(|addr| addr.ip()) {
        Some(IpAddr::V4(ip)) => Gid::from_ipv4(ip.octets()),
        Some(IpAddr::V6(ip)) => Gid(ip.octets()),
        None => Gid::default(),
    };
    devices::gid(gid)
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let datagrams = matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB);
    let qp_type = if datagrams { IBV_QPT_UD } else { IBV_QPT_RC };
    // SAFETY: rdma_create_id(3): `channel` is NULL or a live channel.
    let made = unsafe { Id::create(Plan { channel, context, ps, qp_type }) };
    status(made.map(|made| {
        // SAFETY: rdma_create_id(3): `id` points to room for a pointer to the id.
        unsafe { *id = made };
    }))
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(public: *mut rdma_cm_id) -> c_int {
    // SAFETY: rdma_destroy_id(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // From now on no event finds it.
    table::lock().remove(&id.id.number());
    // SAFETY: `public` is still live: this call has not destroyed it.
    unsafe { taken::forget(public) };
    id.acks.settle("rdma_destroy_id", "rdma_ack_cm_event");
    let channel = if id.private().is_sync { id.seen().channel } else { ptr::null_mut() };
    // SAFETY: all events of the id are acknowledged, it is not in the table any more, and the
    // program does not use it after this call.
    drop(unsafe { Id::take(public) });
    if !channel.is_null() {
        // SAFETY: the id made it for itself.
        unsafe { Channel::destroy(channel) };
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    public: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: rdma_migrate_id(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_migrate_id(3): `channel` is NULL or a live channel.
    status(unsafe { id.migrate(channel) })
}
