//! Queue pairs: making and destroying them.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use feroce::{PostError, QpBuilder, QpCap, QpHandle, QpState, Qpn, Receiver, RequestError};
use feroce::{SendWr, Sender};
use feroce_lint::{self as lint, CqFacts, Kind, Name, Queues};

use super::ack::Acks;
use super::context::Context;
use super::cq::Cq;
use super::guarded::Guarded;
use super::object::Object;
use super::pd::Pd;
use super::registry::Listed;
use super::srq::Srq;
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;
use crate::zeroed::Zeroed;

/// A queue pair, extended or not: the one begins like the other.
#[repr(C)]
pub(crate) struct Qp {
    public: UnsafeCell<ibv_qp_ex>,
    pub(crate) handle: QpHandle,
    pub(crate) send: Guarded<SendSide>,
    pub(crate) recv: Option<Guarded<Receiver>>,
    pub(crate) qp_type: ibv_qp_type,
    /// Bytes that a send may carry itself.
    pub(crate) max_inline: usize,
    /// How it was made, with the sizes that it has.
    pub(crate) made: ibv_qp_init_attr,
    pub(crate) acks: Acks,
}

/// Where sends are posted.
pub(crate) struct SendSide {
    /// None on the receiving end of an extended reliable connection.
    pub(crate) sender: Option<Sender>,
    /// What `ibv_wr_*` have begun and not finished.
    pub(crate) open: Option<SendWr>,
    /// Why the requests since `ibv_wr_start` cannot be posted.
    pub(crate) errno: Option<Errno>,
    /// Requests since `ibv_wr_start` that are in the queue.
    pub(crate) staged: usize,
    /// What lint calls the queue pair.
    pub(crate) name: Name,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Qp {
    type C = ibv_qp_ex;

    const KIND: Option<Kind> = Some(Kind::Qp);
}

// SAFETY: the program owns the public part, the pointers in `made` are only handed back, and all
// other fields are `Sync`.
unsafe impl Sync for Qp {}

impl Qp {
    /// The queue pair behind the pointer that programs have.
    ///
    /// # Safety
    /// As for [`Object::of`].
    pub(crate) unsafe fn behind<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: this function has the contract of `Object::of`; every `ibv_qp` of ours is the
        // beginning of an `ibv_qp_ex`.
        unsafe { Self::of(qp.cast()) }
    }

    /// What programs see of it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.public().cast()
    }
}

impl SendSide {
    /// Puts a request into the queue. The adapter sees it when it is handed over with others.
    #[inline]
    pub(crate) fn stage(&mut self, wr: SendWr) -> Result<(), Errno> {
        let sender = self.sender.as_mut().ok_or(Errno::INVALID)?;
        let request = lint::is_on().then(|| {
            lint::send_wanted(self.name);
            lint::Request::send(&wr)
        });
        if let Err(e) = sender.stage(wr) {
            if request.is_some() && e != PostError::Request(RequestError::QueueFull) {
                lint::call_refused(self.name, "ibv_post_send", &e.to_string());
            }
            return Err(e.into());
        }
        if let Some(request) = request {
            lint::send_posted(self.name, request);
        }
        Ok(())
    }

    /// The same for a request that may be executed before it is handed over.
    #[inline]
    pub(crate) fn begin(&mut self, wr: SendWr) -> Result<(), Errno> {
        match &mut self.sender {
            Some(sender) if !lint::is_on() => Ok(sender.begin(wr)?),
            // The record for lint precedes the completion of the request.
            _ => self.stage(wr),
        }
    }
}

/// What a queue pair is made from, whichever call makes it.
pub(crate) struct Plan {
    pub(crate) init: ibv_qp_init_attr,
    pub(crate) pd: *mut ibv_pd,
    /// Any of `ibv_qp_create_flags` that there are.
    pub(crate) create_flags: u32,
}

/// The sizes that a queue pair gets: what was asked for, and room for one element at least. Where
/// elements can stand, bytes can: programs count on as much inline data without asking for any.
fn sizes(cap: &ibv_qp_cap, has_recv: bool) -> QpCap {
    let elements = cap.max_send_sge.max(1).saturating_mul(size_of::<ibv_sge>() as u32);
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: if has_recv { cap.max_recv_wr } else { 0 },
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: if has_recv { cap.max_recv_sge.max(1) } else { 0 },
        max_inline: cap.max_inline_data.max(elements),
    }
}

/// Describes a queue pair to the adapter.
///
/// # Safety
/// The objects that the plan names are live.
unsafe fn builder(plan: &Plan) -> Result<QpBuilder, Errno> {
    let init = &plan.init;
    if plan.pd.is_null() || init.send_cq.is_null() {
        return Err(Errno::INVALID);
    }
    let has_recv = init.srq.is_null() && init.qp_type != IBV_QPT_XRC_SEND;
    let cap = sizes(&init.cap, has_recv);
    // SAFETY: by this function's contract, the objects that the plan names are live.
    let pd = unsafe { &Pd::of(plan.pd).pd };
    // SAFETY: by this function's contract, the objects that the plan names are live.
    let send_cq = unsafe { &Cq::behind(init.send_cq).cq };
    if init.qp_type == IBV_QPT_XRC_SEND {
        return Ok(pd.xrc_qp(send_cq, cap));
    }
    if init.recv_cq.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: by this function's contract, the objects that the plan names are live.
    let recv_cq = unsafe { &Cq::behind(init.recv_cq).cq };
    let mut builder = match init.qp_type {
        IBV_QPT_RC => pd.rc_qp(send_cq, recv_cq, cap),
        IBV_QPT_UC => pd.uc_qp(send_cq, recv_cq, cap),
        IBV_QPT_UD => pd.ud_qp(send_cq, recv_cq, cap),
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => return Err(Errno::UNSUPPORTED),
        _ => return Err(Errno::INVALID),
    };
    if plan.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        builder = builder.without_own_multicasts();
    }
    if init.srq.is_null() {
        return Ok(builder);
    }
    // SAFETY: by this function's contract, the objects that the plan names are live.
    Ok(builder.srq(unsafe { &Srq::of(init.srq).srq }))
}

/// Makes a queue pair.
///
/// # Safety
/// The objects that the plan names are live.
pub(crate) unsafe fn create(context: &Context, plan: &Plan) -> Result<*mut ibv_qp_ex, Errno> {
    memory::admit()?;
    // SAFETY: by this function's contract, the objects that the plan names are live.
    let builder = unsafe { builder(plan) }?;
    let builder = if plan.init.sq_sig_all == 0 { builder } else { builder.signal_all() };
    let (handle, sender, receiver) = builder.create()?.split();
    Ok(publish(context, plan, handle, (Some(sender), receiver)))
}

/// Gives a queue pair to the program.
pub(crate) fn publish(
    context: &Context,
    plan: &Plan,
    handle: QpHandle,
    (sender, receiver): (Option<Sender>, Option<Receiver>),
) -> *mut ibv_qp_ex {
    let (mut made, qpn) = (plan.init, handle.qpn());
    let name = Name { context: context.as_ptr().addr(), qpn: qpn.get() };
    let cap = handle.query_all().map(|(_, init)| init.cap).unwrap_or_default();
    made.cap = convert::qp_cap(&cap);
    // Targets have no queues of their own.
    if lint::is_on() && made.qp_type != IBV_QPT_XRC_RECV {
        // SAFETY: as in the plan.
        lint::qp_made(name, unsafe { queues(&made) });
    }
    let mut public = ibv_qp_ex::zeroed();
    let base = &mut public.qp_base;
    base.context = context.as_ptr();
    base.qp_context = made.qp_context;
    base.pd = plan.pd;
    base.send_cq = made.send_cq;
    base.recv_cq = made.recv_cq;
    base.srq = made.srq;
    base.handle = qpn.get();
    base.qp_num = qpn.get();
    base.state = IBV_QPS_RESET;
    base.qp_type = made.qp_type;
    base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.cond = libc::PTHREAD_COND_INITIALIZER;
    let public = Qp {
        public: UnsafeCell::new(public),
        handle,
        send: Guarded::new(SendSide { sender, open: None, errno: None, staged: 0, name }),
        recv: receiver.map(Guarded::new),
        qp_type: made.qp_type,
        max_inline: made.cap.max_inline_data as usize,
        made,
        acks: Acks::default(),
    }
    .give();
    // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot destroy
    // it.
    let listed = Listed::new(unsafe { Qp::of(public) });
    context.registry.lock().qps.entry(qpn).or_insert(listed);
    public
}

/// Whether a queue pair may still use what was posted to it.
pub(super) fn is_at_work(context: &Context, qpn: Qpn) -> bool {
    let handle = context.registry.lock().qps.get(&qpn).map(|listed| {
        // SAFETY: the object is in the tables, which this thread has locked; its destructor
        // removes it from there before it frees it.
        let qp: &Qp = unsafe { listed.get() };
        qp.handle.clone()
    });
    let state = handle.and_then(|handle| handle.query_all()).map(|(attr, _)| attr.state);
    !matches!(state, None | Some(Some(QpState::Reset | QpState::Err)))
}

/// The record of a queue pair for lint.
///
/// # Safety
/// The objects that the attributes name are live, or NULL.
unsafe fn queues(made: &ibv_qp_init_attr) -> Queues {
    let facts = |cq: *mut ibv_cq| {
        // SAFETY: by this function's contract, the objects that the attributes name are live, or
        // NULL.
        let cqe = unsafe { cq.as_ref() }?.cqe;
        Some(CqFacts { addr: cq.addr(), depth: u64::try_from(cqe).unwrap_or(0) })
    };
    Queues {
        send_cq: facts(made.send_cq),
        recv_cq: if made.qp_type == IBV_QPT_XRC_SEND { None } else { facts(made.recv_cq) },
        max_send: made.cap.max_send_wr,
        max_recv: made.cap.max_recv_wr,
        srq: (!made.srq.is_null()).then(|| made.srq.addr()),
        signal_all: made.sq_sig_all != 0,
    }
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp(3): `pd` is a live protection domain, so its context is live.
    let context = unsafe { Context::of_object(pd) };
    // SAFETY: ibv_create_qp(3): `init` points to attributes.
    let plan = Plan { init: unsafe { init.read() }, pd, create_flags: 0 };
    // SAFETY: the program names objects of its own.
    let made = unsafe { create(context, &plan) };
    pointer(made.map(|public| {
        // SAFETY: this function has made the object, and neither the program nor another thread can
        // destroy it yet.
        let cap = unsafe { Qp::of(public) }.made.cap;
        // SAFETY: ibv_create_qp(3): `init` points to attributes, in which the call updates the
        // sizes.
        unsafe { (*init).cap = cap };
        public.cast()
    }))
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(public: *mut ibv_qp) -> c_int {
    // SAFETY: ibv_destroy_qp(3): `public` is a live queue pair.
    let qp = unsafe { Qp::behind(public) };
    // SAFETY: `public` is live until this call has destroyed it, and its context stays open as long
    // as it.
    let context = unsafe { Context::of_object(public) };
    let qpn = qp.handle.qpn();
    // First out of the tables: the adapter may give its number to another at once.
    let listed = context.registry.lock().qps.remove(&qpn);
    // A target may be open more than once; the last close destroys it.
    let destroyed = if qp.qp_type == IBV_QPT_XRC_RECV { Ok(()) } else { qp.handle.destroy() };
    if let Err(e) = destroyed {
        if let Some(listed) = listed {
            context.registry.lock().qps.insert(qpn, listed);
        }
        return code(Err(e.into()));
    }
    if lint::is_on() {
        lint::qp_gone(Name { context: context.as_ptr().addr(), qpn: qpn.get() });
    }
    qp.acks.settle("ibv_destroy_qp", "ibv_ack_async_event");
    // SAFETY: the call above has made sure that no other object and no event refers to it, and the
    // caller may not use it after this call.
    drop(unsafe { Qp::take(public.cast()) });
    0
}
