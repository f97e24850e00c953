//! Ids of librdmacm.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_abi::*;
use feroce_cm::rdma::{ConnParam, EventKind, IdOption, PortSpace};
use feroce_engine::{QpAttr, QpState, QpType};
use feroce_wire::{Gid, Psn, Qpn};

use super::channel::Channel;
use super::event::{Arrived, Event, UdPath};
use super::param::{self, Address};
use crate::describe::Plain;
use crate::handle::Handle;
use crate::library::Rdmacm;
use crate::queues::Qp;
use crate::{Error, checked, work};

/// Time limit of address and route resolution, if the caller gives none.
const RESOLVE_MS: u32 = 2000;

/// Backlog of a listener, if the caller gives none.
const DEFAULT_BACKLOG: c_int = 1024;

/// An id of the library.
#[derive(Debug)]
pub struct Id {
    number: u64,
    space: PortSpace,
    handle: Handle<rdma_cm_id>,
    cm: &'static Rdmacm,
    /// Reads and atomics that a queue pair of its device may have outstanding.
    max_rd_atomic: AtomicU8,
    state: Mutex<State>,
    /// Keeps the channel open.
    channel: Mutex<Arc<Channel>>,
}

#[derive(Debug, Default)]
struct State {
    qp: Option<Used>,
    offer: Option<ConnParam>,
    groups: Vec<Group>,
}

/// The queue pair of an id.
#[derive(Clone, Debug)]
struct Used {
    qp: Arc<Qp>,
    qpn: u32,
    srq: bool,
}

/// A group that was joined.
#[derive(Debug)]
struct Group {
    ip: IpAddr,
    send_only: bool,
    /// What the queue pair is attached to.
    attached: Option<Gid>,
}

impl Drop for Id {
    fn drop(&mut self) {
        self.detach(|_| true);
        let _ = self.handle.end("rdma_destroy_id", |id| {
            // SAFETY: an id that lives, and that no thread is in a call on.
            unsafe { (self.cm.rdma_destroy_id)(id) }
        });
    }
}

/// Creation.
impl Id {
    /// Creates an id whose events come out of `channel` and name it by `number`.
    pub fn create(channel: &Arc<Channel>, space: PortSpace, number: u64) -> Result<Self, Error> {
        let mut id = ptr::null_mut();
        let (context, ps) = (context_of(number), space as rdma_port_space);
        // SAFETY: a channel that lives, and a valid place for the id.
        let code =
            unsafe { (channel.cm.rdma_create_id)(channel.as_ptr(), &raw mut id, context, ps) };
        checked("rdma_create_id", code)?;
        // SAFETY: the library has just created the id.
        unsafe { Self::new(channel, space, number, id) }
    }

    /// Takes an id that came with a connect request through `channel`.
    pub fn adopt(
        channel: &Arc<Channel>,
        space: PortSpace,
        number: u64,
        arrived: Arrived,
    ) -> Result<Self, Error> {
        let id = arrived.into_raw();
        // SAFETY: the id lives and only this function has it. Its context is still that of the
        // listener.
        unsafe { (*id).context = context_of(number) };
        // SAFETY: `arrived` owned the id and gave it up.
        unsafe { Self::new(channel, space, number, id) }
    }

    /// # Safety
    /// `id` is an id of the library on this channel, and no other object destroys it.
    unsafe fn new(
        channel: &Arc<Channel>,
        space: PortSpace,
        number: u64,
        id: *mut rdma_cm_id,
    ) -> Result<Self, Error> {
        // SAFETY: the caller passes an id that only this object destroys.
        let handle = unsafe { Handle::new("rdma_create_id", id) }?;
        Ok(Self {
            number,
            space,
            handle,
            cm: channel.cm,
            max_rd_atomic: AtomicU8::new(u8::MAX),
            state: Mutex::default(),
            channel: Mutex::new(Arc::clone(channel)),
        })
    }
}

/// Queries.
impl Id {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    /// Whether it is for datagrams.
    pub fn is_datagrams(&self) -> bool {
        self.space.is_datagrams()
    }

    /// The channel where its events come out.
    pub fn channel(&self) -> Arc<Channel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The local address, once it is bound.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let addresses = self.addresses()?;
        // SAFETY: the storage is the whole of the union, and every bit pattern is one.
        param::address(&unsafe { addresses.src.src_storage })
    }

    /// The address of the peer, once it is known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let addresses = self.addresses()?;
        // SAFETY: the storage is the whole of the union, and every bit pattern is one.
        param::address(&unsafe { addresses.dst.dst_storage })
    }

    fn addresses(&self) -> Option<rdma_addr> {
        // SAFETY: an id that lives. The library writes it when it tells that it is known.
        self.handle.with(|id| unsafe { (*id).route.addr })
    }

    /// Says how many reads and atomics a queue pair of its device may have outstanding.
    pub fn set_max_rd_atomic(&self, most: u8) {
        self.max_rd_atomic.store(most, Ordering::Relaxed);
    }

    /// The parameters with which a connect request is accepted as it asks.
    pub fn offered(&self) -> Option<ConnParam> {
        self.state().offer.clone()
    }

    /// The attributes that a queue pair of this connection needs to get into a state.
    pub fn qp_attr(&self, state: QpState) -> Result<QpAttr, Error> {
        self.attributes(state).map(|(attr, mask)| work::qp_attr_of(&attr, mask.cast_unsigned()))
    }

    fn attributes(&self, state: QpState) -> Result<(ibv_qp_attr, c_int), Error> {
        let mut attr = ibv_qp_attr { qp_state: convert::qp_state(state), ..ibv_qp_attr::zeroed() };
        let mut mask = 0;
        self.handle.call("rdma_init_qp_attr", |id| {
            // SAFETY: an id that lives, and places for the answers.
            unsafe { (self.cm.rdma_init_qp_attr)(id, &raw mut attr, &raw mut mask) }
        })?;
        Ok((attr, mask))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn max_rd_atomic(&self) -> u8 {
        self.max_rd_atomic.load(Ordering::Relaxed)
    }
}

/// Operations.
impl Id {
    /// Changes an option.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let switch = |on: bool| c_int::from(on).to_ne_bytes().to_vec();
        let (name, mut value) = match option {
            IdOption::Tos(tos) => (RDMA_OPTION_ID_TOS, vec![tos]),
            IdOption::AckTimeout(code) => (RDMA_OPTION_ID_ACK_TIMEOUT, vec![code]),
            IdOption::ReuseAddr(on) => (RDMA_OPTION_ID_REUSEADDR, switch(on)),
            IdOption::AfOnly(on) => (RDMA_OPTION_ID_AFONLY, switch(on)),
        };
        self.handle.call("rdma_set_option", |id| {
            let (level, name) = (RDMA_OPTION_ID as c_int, name as c_int);
            let (start, len) = (value.as_mut_ptr().cast(), value.len());
            // SAFETY: an id that lives, and a value of the length that the option has.
            unsafe { (self.cm.rdma_set_option)(id, level, name, start, len) }
        })
    }

    /// Binds it to an address.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        let address = Address::new(addr);
        self.handle.call("rdma_bind_addr", |id| {
            // SAFETY: an id that lives, and an address.
            unsafe { (self.cm.rdma_bind_addr)(id, address.as_ptr()) }
        })
    }

    /// Resolves an address; 0 is the default time limit.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), Error> {
        let (src, dst) = (src.map(Address::new), Address::new(dst));
        let from = src.as_ref().map_or(ptr::null_mut(), Address::as_ptr);
        self.handle.call("rdma_resolve_addr", |id| {
            let limit = limit(timeout_ms);
            // SAFETY: an id that lives, and addresses, of which the first may be missing.
            unsafe { (self.cm.rdma_resolve_addr)(id, from, dst.as_ptr(), limit) }
        })
    }

    /// Resolves the route; 0 is the default time limit.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        self.handle.call("rdma_resolve_route", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_resolve_route)(id, limit(timeout_ms)) }
        })
    }

    /// Listens at the address that it is bound to; 0 is the default backlog.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let backlog = match c_int::try_from(backlog) {
            Ok(0) | Err(_) => DEFAULT_BACKLOG,
            Ok(backlog) => backlog,
        };
        self.handle.call("rdma_listen", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_listen)(id, backlog) }
        })
    }

    /// Lets its events come out of another channel.
    pub fn migrate(&self, channel: &Arc<Channel>) -> Result<(), Error> {
        self.handle.call("rdma_migrate_id", |id| {
            // SAFETY: an id and a channel that live.
            unsafe { (self.cm.rdma_migrate_id)(id, channel.as_ptr()) }
        })?;
        let mut own = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, Arc::clone(channel));
        drop(own);
        drop(before);
        Ok(())
    }

    /// Gives the id a queue pair, which it brings up and down from now on.
    pub fn use_qp(&self, qp: &Arc<Qp>, qpn: Qpn, srq: bool) -> Result<(), Error> {
        let is_ud = qp.qp_type() == QpType::Ud;
        if is_ud != self.is_datagrams() {
            return Err(Error::WrongQp);
        }
        let used = Used { qp: Arc::clone(qp), qpn: qpn.get(), srq };
        self.advance(&used, QpState::Init, None)?;
        if is_ud {
            // A datagram queue pair has no peer that the library would have to resolve.
            qp.modify(&QpAttr::to(QpState::Rtr))?;
            qp.modify(&QpAttr::rts_unreliable(Psn::new(0)))?;
        }
        self.state().qp = Some(used);
        Ok(())
    }

    /// Forgets the queue pair.
    pub fn release_qp(&self) {
        self.detach(|_| true);
        self.state().qp = None;
    }

    /// Brings the queue pair into a state, with the attributes that the library supplies.
    fn advance(&self, used: &Used, state: QpState, param: Option<&ConnParam>) -> Result<(), Error> {
        let (mut attr, mask) = self.attributes(state)?;
        if let Some(param) = param {
            attr.max_dest_rd_atomic = param.responder_resources.min(self.max_rd_atomic());
            attr.max_rd_atomic = param.initiator_depth.min(self.max_rd_atomic());
        }
        used.qp.modify_as_told(&mut attr, mask)
    }

    /// Makes the queue pair of a connection ready. It goes through INIT once more, because the
    /// access rights of the peer are known only now.
    fn bring_up(&self, used: &Used, param: Option<&ConnParam>) -> Result<(), Error> {
        let mut states = [QpState::Init, QpState::Rtr, QpState::Rts].into_iter();
        states.try_for_each(|state| self.advance(used, state, param))
    }

    /// Converts the parameters to those of C, for the queue pair that the id has.
    fn param(&self, param: &ConnParam) -> rdma_conn_param {
        let mut out = param::conn_param(param, self.max_rd_atomic());
        if let Some(used) = &self.state().qp {
            (out.qp_num, out.srq) = (used.qpn, used.srq.into());
        }
        out
    }

    /// Asks the peer for a connection.
    pub fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        let mut out = self.param(param);
        self.handle.call("rdma_connect", |id| {
            // SAFETY: an id that lives, and parameters whose private data outlives the call.
            unsafe { (self.cm.rdma_connect)(id, &raw mut out) }
        })
    }

    /// Accepts a connect request.
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        let used = self.state().qp.clone();
        if let Some(used) = used.filter(|_| !self.is_datagrams()) {
            self.bring_up(&used, Some(param))?;
        }
        let mut out = self.param(param);
        self.handle.call("rdma_accept", |id| {
            // SAFETY: an id that lives, and parameters whose private data outlives the call.
            unsafe { (self.cm.rdma_accept)(id, &raw mut out) }
        })
    }

    /// Rejects a connect request or a reply.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        self.handle.call("rdma_reject", |id| {
            // SAFETY: an id that lives, and as many bytes as it says.
            unsafe { (self.cm.rdma_reject)(id, private_data.as_ptr().cast(), len) }
        })
    }

    /// Confirms a connection, or says that data arrived before the confirmation of the peer.
    pub fn establish(&self) -> Result<(), Error> {
        let done = self.handle.call("rdma_establish", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_establish)(id) }
        });
        done.or_else(|_| {
            self.handle.call("rdma_notify", |id| {
                // SAFETY: an id that lives.
                unsafe { (self.cm.rdma_notify)(id, IBV_EVENT_COMM_EST) }
            })
        })
    }

    /// Disconnects; the queue pair goes to the error state.
    pub fn disconnect(&self) -> Result<(), Error> {
        if let Some(used) = self.state().qp.clone() {
            // It may be in error already.
            let _ = used.qp.modify(&QpAttr::to(QpState::Err));
        }
        self.send_disconnect()
    }

    /// Sends a disconnect request to the peer, or the reply to one that the peer sent.
    fn send_disconnect(&self) -> Result<(), Error> {
        self.handle.call("rdma_disconnect", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_disconnect)(id) }
        })
    }

    /// Joins a multicast group.
    pub fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        let address = Address::new((group, 0).into());
        let number = {
            let mut state = self.state();
            state.groups.push(Group { ip: group, send_only, attached: None });
            state.groups.len()
        };
        let join_flags = if send_only {
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        } else {
            RDMA_MC_JOIN_FLAG_FULLMEMBER
        };
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
            join_flags,
            addr: address.as_ptr(),
        };
        self.handle.call("rdma_join_multicast_ex", |id| {
            let context = ptr::without_provenance_mut(number);
            // SAFETY: an id that lives, and an address.
            unsafe { (self.cm.rdma_join_multicast_ex)(id, &raw mut attr, context) }
        })
    }

    /// Leaves a multicast group.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
        self.detach(|joined| joined.ip == group);
        let address = Address::new((group, 0).into());
        self.handle.call("rdma_leave_multicast", |id| {
            // SAFETY: an id that lives, and an address.
            unsafe { (self.cm.rdma_leave_multicast)(id, address.as_ptr()) }
        })
    }

    /// Detaches the queue pair from groups.
    fn detach(&self, which: impl Fn(&Group) -> bool) {
        let mut state = self.state();
        let qp = state.qp.clone();
        for group in state.groups.iter_mut().filter(|group| which(group)) {
            if let (Some(used), Some(gid)) = (&qp, group.attached.take()) {
                // The queue pair may be gone already, and its membership with it.
                let _ = used.qp.detach_mcast(gid);
            }
        }
    }
}

/// Work that an event asks for.
impl Id {
    /// Does for the queue pair of the id what the library does for a queue pair of its own. If that
    /// fails, the event becomes the one that the library would raise.
    pub fn on_event(&self, event: &mut Event) {
        let (done, otherwise) = match event.kind {
            EventKind::ConnectRequest => {
                let offer = event.conn.clone();
                self.state().offer = offer.map(|conn| ConnParam { qpn: Qpn::default(), ..conn });
                return;
            }
            EventKind::ConnectResponse => {
                let Some(used) = self.state().qp.clone() else { return };
                event.kind = EventKind::Established;
                (self.answer(&used), EventKind::ConnectError)
            }
            EventKind::MulticastJoin => {
                (self.attach(event.group, event.ud), EventKind::MulticastError)
            }
            EventKind::Disconnected => {
                // The kernel keeps the peer waiting until the consumer disconnects, too. If this
                // side disconnected first, the call fails, and there is nothing to answer.
                let _ = self.send_disconnect();
                return;
            }
            _ => return,
        };
        if let Err(e) = done {
            tracing::warn!("{:?}: {e}", event.kind);
            event.kind = otherwise;
            event.status = -e.errno().unwrap_or(libc::EIO);
        }
    }

    /// Answers the reply of the peer: brings the queue pair up, then confirms.
    fn answer(&self, used: &Used) -> Result<(), Error> {
        let ready = self.bring_up(used, None);
        if ready.is_err() {
            // The peer gives up at once instead of after its time limit.
            let _ = self.reject(&[]);
        }
        ready?;
        self.handle.call("rdma_establish", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_establish)(id) }
        })
    }

    /// Attaches the queue pair to a group that was joined.
    fn attach(&self, group: usize, ud: Option<UdPath>) -> Result<(), Error> {
        let mut state = self.state();
        let qp = state.qp.clone();
        let joined = group.checked_sub(1).and_then(|index| state.groups.get_mut(index));
        let (Some(used), Some(joined), Some(ud)) = (qp, joined, ud) else { return Ok(()) };
        if !joined.send_only {
            used.qp.attach_mcast(ud.av.dgid)?;
            joined.attached = Some(ud.av.dgid);
        }
        Ok(())
    }
}

/// The number of an id, as the `context` pointer that the C object stores.
fn context_of(number: u64) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}

/// A time limit for C.
fn limit(timeout_ms: u32) -> c_int {
    let limit = if timeout_ms == 0 { RESOLVE_MS } else { timeout_ms };
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}
