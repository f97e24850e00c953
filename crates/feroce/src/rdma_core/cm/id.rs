//! Ids of librdmacm.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use feroce_abi::*;
use feroce_cm::rdma::{BindError, ConnParam, EventKind, PortSpace};
use feroce_engine::{QpAttr, QpState, QpType};
use feroce_wire::{Gid, Psn};

use super::super::describe::Plain;
use super::super::handle::Handle;
use super::super::library::Rdmacm;
use super::super::{checked, queues, work};
use super::channel::{Channel, ids};
use super::param::{self, Address};
use crate::cm::{CmError, IdOption, UdParam, next_number};
use crate::context::Context;
use crate::{Error, Qp};

/// How long an address is looked for if nobody says.
const RESOLVE_MS: u32 = 2000;

/// Requests that wait for a listener that does not say how many may.
const DEFAULT_BACKLOG: c_int = 1024;

/// An id of the library.
#[derive(Debug)]
pub(crate) struct Id {
    number: u64,
    space: PortSpace,
    handle: Handle<rdma_cm_id>,
    cm: &'static Rdmacm,
    context: OnceLock<Context>,
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
    qp: Arc<queues::Qp>,
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
        ids().remove(&self.number);
        self.detach(|_| true);
        let _ = self.handle.end("rdma_destroy_id", |id| {
            // SAFETY: an id that lives, and that nobody is in a call on.
            unsafe { (self.cm.rdma_destroy_id)(id) }
        });
    }
}

/// How ids come about.
impl Id {
    pub(super) fn create(channel: &Arc<Channel>, space: PortSpace) -> Result<Arc<Self>, Error> {
        let number = next_number();
        let mut id = ptr::null_mut();
        let (context, ps) = (context_of(number), space as rdma_port_space);
        // SAFETY: a channel that lives, and a place for the id.
        let code =
            unsafe { (channel.cm.rdma_create_id)(channel.as_ptr(), &raw mut id, context, ps) };
        checked("rdma_create_id", code)?;
        Self::register(channel, space, number, id)
    }

    /// Takes an id that came with a request.
    pub(super) fn adopt(
        channel: &Arc<Channel>,
        space: PortSpace,
        id: *mut rdma_cm_id,
    ) -> Result<Arc<Self>, Error> {
        let number = next_number();
        // SAFETY: nobody else has it yet. What it says of itself now is the listener's.
        unsafe { (*id).context = context_of(number) };
        Self::register(channel, space, number, id)
    }

    fn register(
        channel: &Arc<Channel>,
        space: PortSpace,
        number: u64,
        id: *mut rdma_cm_id,
    ) -> Result<Arc<Self>, Error> {
        // SAFETY: just made, and nobody else's.
        let handle = unsafe { Handle::new("rdma_create_id", id) }?;
        let id = Arc::new(Self {
            number,
            space,
            handle,
            cm: channel.cm,
            context: OnceLock::new(),
            state: Mutex::default(),
            channel: Mutex::new(Arc::clone(channel)),
        });
        ids().insert(number, Arc::downgrade(&id));
        Ok(id)
    }
}

/// What is known.
impl Id {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn port_space(&self) -> PortSpace {
        self.space
    }

    pub(crate) fn channel(&self) -> Arc<Channel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn another_channel(&self) -> Result<Arc<Channel>, Error> {
        self.channel().manager.event_channel()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let addresses = self.addresses()?;
        // SAFETY: the storage is the whole of the union, and every bit pattern is one.
        param::address(&unsafe { addresses.src.src_storage })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let addresses = self.addresses()?;
        // SAFETY: the storage is the whole of the union, and every bit pattern is one.
        param::address(&unsafe { addresses.dst.dst_storage })
    }

    fn addresses(&self) -> Option<rdma_addr> {
        // SAFETY: an id that lives. The library writes it when it tells that it is known.
        self.handle.with(|id| unsafe { (*id).route.addr })
    }

    pub(crate) fn context(&self) -> Option<&Context> {
        self.context.get()
    }

    pub(crate) fn offered(&self) -> Option<ConnParam> {
        self.state().offer.clone()
    }

    pub(crate) fn qp_attr(&self, state: QpState) -> Result<QpAttr, Error> {
        self.attributes(state).map(|(attr, mask)| work::masked(&attr, mask))
    }

    fn attributes(&self, state: QpState) -> Result<(ibv_qp_attr, c_int), Error> {
        let mut attr = ibv_qp_attr { qp_state: state as u32, ..ibv_qp_attr::zeroed() };
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

    /// Reads and atomics that a queue pair of the device may have outstanding.
    fn most(&self) -> u8 {
        self.context().map_or(u8::MAX, |context| context.attr().limits.max_rd_atomic)
    }
}

/// What is to be done.
impl Id {
    pub(crate) fn set_option(&self, option: IdOption) -> Result<(), Error> {
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

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        let address = Address::new(addr);
        let bound = self.handle.call("rdma_bind_addr", |id| {
            // SAFETY: an id that lives, and an address.
            unsafe { (self.cm.rdma_bind_addr)(id, address.as_ptr()) }
        });
        bound.map_err(|e| self.refused(e, addr.ip()))?;
        if !addr.ip().is_unspecified() {
            let context = self.channel().manager.context_for(addr.ip())?;
            // Unless it was before.
            let _ = self.context.set(context);
        }
        Ok(())
    }

    pub(crate) fn resolve_addr(
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

    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        self.handle.call("rdma_resolve_route", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_resolve_route)(id, limit(timeout_ms)) }
        })
    }

    pub(crate) fn listen(&self, backlog: u32) -> Result<(), Error> {
        if self.local_addr().is_none() {
            self.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let backlog = match c_int::try_from(backlog) {
            Ok(0) | Err(_) => DEFAULT_BACKLOG,
            Ok(backlog) => backlog,
        };
        let listening = self.handle.call("rdma_listen", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_listen)(id, backlog) }
        });
        listening.map_err(|e| match self.local_addr() {
            Some(addr) => self.refused(e, addr.ip()),
            None => e,
        })
    }

    /// Why an address or its port cannot be had, in the words of our own adapter.
    fn refused(&self, e: Error, ip: IpAddr) -> Error {
        let Error::Verbs { error, .. } = &e else { return e };
        // One number says that the address is nobody's, and that somebody has the port at all.
        let is_ours = || ip.is_unspecified() || self.channel().manager.context_for(ip).is_ok();
        match error.raw_os_error() {
            Some(libc::EADDRINUSE) => CmError::Port(BindError::InUse).into(),
            Some(libc::EADDRNOTAVAIL) if is_ours() => CmError::Port(BindError::Overlaps).into(),
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => {
                CmError::Address("no device has the address").into()
            }
            Some(libc::EINVAL) => CmError::WrongState.into(),
            _ => e,
        }
    }

    pub(crate) fn migrate(&self, channel: &Arc<Channel>) -> Result<(), Error> {
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

    pub(crate) fn use_qp(&self, qp: &Qp) -> Result<(), Error> {
        let hard = qp.handle().hard().ok_or(CmError::NoQp)?;
        if (qp.qp_type() == QpType::Ud) != (self.space == PortSpace::Udp) {
            return Err(CmError::NoQp.into());
        }
        let srq = qp.handle().srq().is_some();
        let used = Used { qp: Arc::clone(hard), qpn: qp.qpn().get(), srq };
        self.advance(&used, QpState::Init, None)?;
        if qp.qp_type() == QpType::Ud {
            // There is no peer that the library would have to know for this.
            hard.modify(&QpAttr::to(QpState::Rtr))?;
            hard.modify(&QpAttr::rts_unreliable(Psn::new(0)))?;
        }
        self.state().qp = Some(used);
        Ok(())
    }

    pub(crate) fn release_qp(&self) {
        self.detach(|_| true);
        self.state().qp = None;
    }

    /// Brings the queue pair into a state, as the library says how.
    fn advance(&self, used: &Used, state: QpState, param: Option<&ConnParam>) -> Result<(), Error> {
        let (mut attr, mask) = self.attributes(state)?;
        if let Some(param) = param {
            attr.max_dest_rd_atomic = param.responder_resources.min(self.most());
            attr.max_rd_atomic = param.initiator_depth.min(self.most());
        }
        used.qp.modify_as_told(&mut attr, mask)
    }

    /// Makes the queue pair of a connection ready. It goes through INIT once more: what the peer
    /// may do is known only now.
    fn bring_up(&self, used: &Used, param: Option<&ConnParam>) -> Result<(), Error> {
        let mut states = [QpState::Init, QpState::Rtr, QpState::Rts].into_iter();
        states.try_for_each(|state| self.advance(used, state, param))
    }

    /// The parameters in the words of C, for the queue pair that the id has.
    fn param(&self, param: &ConnParam) -> rdma_conn_param {
        let mut out = param::conn_param(param, self.most());
        if let Some(used) = &self.state().qp {
            (out.qp_num, out.srq) = (used.qpn, used.srq.into());
        }
        out
    }

    pub(crate) fn connect(&self, param: &ConnParam) -> Result<(), Error> {
        let mut out = self.param(param);
        self.handle.call("rdma_connect", |id| {
            // SAFETY: an id that lives, and parameters whose private data outlives the call.
            unsafe { (self.cm.rdma_connect)(id, &raw mut out) }
        })
    }

    pub(crate) fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        let used = self.state().qp.clone();
        if let Some(used) = used.filter(|_| self.space == PortSpace::Tcp) {
            self.bring_up(&used, Some(param))?;
        }
        let mut out = self.param(param);
        self.handle.call("rdma_accept", |id| {
            // SAFETY: an id that lives, and parameters whose private data outlives the call.
            unsafe { (self.cm.rdma_accept)(id, &raw mut out) }
        })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        self.handle.call("rdma_reject", |id| {
            // SAFETY: an id that lives, and as many bytes as it says.
            unsafe { (self.cm.rdma_reject)(id, private_data.as_ptr().cast(), len) }
        })
    }

    pub(crate) fn establish(&self) -> Result<(), Error> {
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

    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        if let Some(used) = self.state().qp.clone() {
            // It may be in error already.
            let _ = used.qp.modify(&QpAttr::to(QpState::Err));
        }
        self.take_leave()
    }

    /// Tells the peer that the connection is over, or that we have heard so.
    fn take_leave(&self) -> Result<(), Error> {
        self.handle.call("rdma_disconnect", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_disconnect)(id) }
        })
    }

    pub(crate) fn join_multicast(&self, group: IpAddr, send_only: bool) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(CmError::Address("not a multicast address").into());
        }
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

    pub(crate) fn leave_multicast(&self, group: IpAddr) -> Result<(), Error> {
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

/// What is to be done when something happened.
impl Id {
    /// Does what the library would for a queue pair of its own. If that fails, `kind` becomes what
    /// the library would make of it, and the number of the error is returned.
    pub(super) fn on_event(
        &self,
        kind: &mut EventKind,
        device: &Option<String>,
        conn: Option<&ConnParam>,
        group: usize,
        ud: Option<UdParam>,
    ) -> Result<(), i32> {
        let (done, otherwise) = match *kind {
            EventKind::ConnectRequest => {
                let offer = conn.map(|conn| ConnParam { qpn: Default::default(), ..conn.clone() });
                self.state().offer = offer;
                (self.choose(device.as_deref()), EventKind::ConnectRequest)
            }
            EventKind::AddrResolved => (self.choose(device.as_deref()), EventKind::AddrError),
            EventKind::ConnectResponse => {
                let used = self.state().qp.clone();
                let Some(used) = used else { return Ok(()) };
                *kind = EventKind::Established;
                (self.answer(&used), EventKind::ConnectError)
            }
            EventKind::MulticastJoin => (self.attach(group, ud), EventKind::MulticastError),
            EventKind::Disconnected => {
                // The kernel lets the peer wait until somebody reacts; our own adapter does not.
                // If it was us who ended it, there is nothing to answer.
                let _ = self.take_leave();
                return Ok(());
            }
            _ => return Ok(()),
        };
        done.map_err(|e| {
            tracing::warn!("{kind:?}: {e}");
            *kind = otherwise;
            match e {
                Error::Verbs { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::ENODEV,
            }
        })
    }

    /// The address has chosen a device.
    fn choose(&self, device: Option<&str>) -> Result<(), Error> {
        if let (Some(name), None) = (device, self.context.get()) {
            let context = self.channel().manager.named(name)?;
            // Nobody else does so at the same time but with the same.
            let _ = self.context.set(context);
        }
        Ok(())
    }

    /// The peer has accepted: we are ready as soon as the queue pair is.
    fn answer(&self, used: &Used) -> Result<(), Error> {
        let ready = self.bring_up(used, None);
        if ready.is_err() {
            // The peer should not wait.
            let _ = self.reject(&[]);
        }
        ready?;
        self.handle.call("rdma_establish", |id| {
            // SAFETY: an id that lives.
            unsafe { (self.cm.rdma_establish)(id) }
        })
    }

    /// A group is joined: the queue pair takes its datagrams.
    fn attach(&self, group: usize, ud: Option<UdParam>) -> Result<(), Error> {
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

/// The number of an id, as it stands in the `context` that C keeps for it.
fn context_of(number: u64) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}

/// A time limit for C.
fn limit(timeout_ms: u32) -> c_int {
    let limit = if timeout_ms == 0 { RESOLVE_MS } else { timeout_ms };
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}
