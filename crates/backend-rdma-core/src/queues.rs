//! Completion queues, queue pairs and shared receive queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use feroce_abi::*;
use feroce_engine::{
    self as engine, CqId, Cqe, Notify, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SrqAttr, SrqId,
};
use feroce_train::Instant;
use feroce_wire::{Gid, Qpn};

use crate::adapter::Adapter;
use crate::channel::Channel;
use crate::describe::Plain;
use crate::events::context_of;
use crate::handle::Handle;
use crate::memory::Pd;
use crate::recv_chain::RecvChain;
use crate::{Error, Feature, ModifyQpError, PostError, errno, work};

/// Most completions that one call of `ibv_poll_cq` takes.
const BATCH: usize = 16;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    handle: Handle<ibv_cq>,
    adapter: Arc<Adapter>,
    /// Held so that it outlives the queue.
    _channel: Arc<Channel>,
}

impl Cq {
    /// Creates a queue of `depth` entries whose events go to `channel`.
    pub fn create(
        adapter: &Arc<Adapter>,
        depth: u32,
        channel: &Arc<Channel>,
    ) -> Result<(Self, CqId), Error> {
        if !channel.is_of(adapter) {
            return Err(Error::OtherDevice);
        }
        let id = CqId(adapter.number());
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        let (verbs, open) = (adapter.open.verbs, adapter.open.as_ptr());
        let cq = channel.with(|channel| {
            // SAFETY: an open context and a channel of it.
            unsafe { (verbs.ibv_create_cq)(open, depth, context_of(id.0), channel, 0) }
        });
        // SAFETY: the library just created it, and only this handle destroys it.
        let handle = unsafe { Handle::new("ibv_create_cq", cq.unwrap_or(ptr::null_mut())) }?;
        let cq = Self { handle, adapter: Arc::clone(adapter), _channel: Arc::clone(channel) };
        Ok((cq, id))
    }

    /// Takes one completion, stamped with the time that `now` returns.
    #[inline]
    pub fn poll_one(&self, now: impl Fn() -> Instant) -> Option<Cqe> {
        let mut taken = None;
        self.poll_each(1, now, |cqe| taken = Some(cqe));
        taken
    }

    /// Passes at most `most` completions to `take`, stamped with the time that `now` returns;
    /// returns how many there were.
    #[inline]
    pub fn poll_each(
        &self,
        most: usize,
        now: impl Fn() -> Instant,
        mut take: impl FnMut(Cqe),
    ) -> usize {
        let Some(poll) = self.adapter.open.ops().poll_cq else { return 0 };
        let mut taken = 0;
        while taken < most {
            let wanted = (most - taken).min(BATCH);
            let mut wcs = [ibv_wc::zeroed(); BATCH];
            let found = self.handle.with(|cq| {
                // SAFETY: a queue that lives, and room for as many as it says.
                unsafe { poll(cq, wanted as c_int, wcs.as_mut_ptr()) }
            });
            let found = usize::try_from(found.unwrap_or(0)).unwrap_or(0);
            if found > 0 {
                let now = now();
                wcs[..found].iter().for_each(|wc| take(work::cqe(wc, now)));
            }
            taken += found;
            if found < wanted {
                break;
            }
        }
        taken
    }

    /// Asks for an event at the next completion.
    pub fn notify(&self, notify: Notify) {
        let Some(request) = self.adapter.open.ops().req_notify_cq else { return };
        let solicited_only = c_int::from(notify == Notify::Solicited);
        let asked = self.handle.with(|cq| {
            // SAFETY: a queue that lives.
            unsafe { request(cq, solicited_only) }
        });
        if asked != Some(0) {
            tracing::warn!("ibv_req_notify_cq: {asked:?}");
        }
    }

    /// Changes its depth.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.call("ibv_resize_cq", |cq| {
            // SAFETY: a queue that lives.
            unsafe { (verbs.ibv_resize_cq)(cq, c_int::try_from(depth).unwrap_or(c_int::MAX)) }
        })
    }

    /// Most completions that can wait.
    pub fn depth(&self) -> usize {
        // SAFETY: a queue that lives.
        let depth = self.handle.with(|cq| unsafe { (*cq).cqe });
        depth.and_then(|depth| usize::try_from(depth).ok()).unwrap_or(0)
    }

    /// Destroys it.
    pub fn destroy(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.end("ibv_destroy_cq", |cq| {
            // SAFETY: a queue that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_destroy_cq)(cq) }
        })
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    handle: Handle<ibv_srq>,
    chain: Mutex<RecvChain>,
    adapter: Arc<Adapter>,
}

impl Srq {
    /// Creates a queue.
    pub fn create(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<(Self, SrqId), Error> {
        let id = SrqId(pd.adapter.number());
        let mut init = ibv_srq_init_attr {
            srq_context: context_of(id.0),
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        let verbs = pd.adapter.open.verbs;
        let handle = pd.make("ibv_create_srq", |pd| {
            // SAFETY: a domain that lives, and attributes of ours.
            unsafe { (verbs.ibv_create_srq)(pd, &raw mut init) }
        })?;
        let chain = Mutex::new(RecvChain::new(init.attr.max_sge.max(max_sge)));
        Ok((Self { handle, chain, adapter: Arc::clone(&pd.adapter) }, id))
    }

    /// Posts receives, in order, until one is refused.
    pub fn post(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let post =
            self.adapter.open.ops().post_srq_recv.ok_or(engine::PostError::OpNotSupported)?;
        let mut chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        chain.post(wrs, |first, bad| {
            let posted = self.handle.with(|srq| {
                // SAFETY: a queue that lives, and a chain of requests.
                unsafe { post(srq, first, bad) }
            });
            refusal(posted, None)
        })
    }

    /// Arms the limit event.
    pub fn set_limit(&self, srq_limit: u32) -> Result<(), Error> {
        self.modify(ibv_srq_attr { srq_limit, ..ibv_srq_attr::zeroed() }, IBV_SRQ_LIMIT)
    }

    /// Changes how many receives it holds.
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        self.modify(ibv_srq_attr { max_wr, ..ibv_srq_attr::zeroed() }, IBV_SRQ_MAX_WR)
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: u32) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.call("ibv_modify_srq", |srq| {
            // SAFETY: a queue that lives, and attributes of ours.
            unsafe { (verbs.ibv_modify_srq)(srq, &raw mut attr, mask.cast_signed()) }
        })
    }

    /// Its attributes.
    pub fn query(&self) -> Option<SrqAttr> {
        let mut attr = ibv_srq_attr::zeroed();
        let verbs = self.adapter.open.verbs;
        let asked = self.handle.call("ibv_query_srq", |srq| {
            // SAFETY: a queue that lives, and a place for the answer.
            unsafe { (verbs.ibv_query_srq)(srq, &raw mut attr) }
        });
        let ibv_srq_attr { max_wr, max_sge, srq_limit: limit } = attr;
        asked.ok().map(|()| SrqAttr { max_wr, max_sge, limit })
    }

    /// Destroys it.
    pub fn destroy(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.end("ibv_destroy_srq", |srq| {
            // SAFETY: a queue that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_destroy_srq)(srq) }
        })
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    handle: Handle<ibv_qp>,
    /// How it was made, with the sizes that the driver gave it.
    pub(crate) made: QpInitAttr,
    pub(crate) adapter: Arc<Adapter>,
}

impl Qp {
    /// Creates a queue pair.
    pub fn create(
        pd: &Pd,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<&Srq>,
        mut made: QpInitAttr,
    ) -> Result<(Self, Qpn), Error> {
        if matches!(made.qp_type, QpType::XrcIni | QpType::XrcTgt) {
            return Err(Error::Unsupported(Feature::Xrc));
        }
        let mut init = ibv_qp_init_attr {
            cap: convert::qp_cap(&made.cap),
            qp_type: convert::qp_type(made.qp_type),
            sq_sig_all: made.sq_sig_all.into(),
            ..ibv_qp_init_attr::zeroed()
        };
        if !made.hears_itself {
            return Err(Error::Unsupported(Feature::OwnMulticasts));
        }
        let verbs = pd.adapter.open.verbs;
        let mut qpn = 0;
        let mut create = |pd, send, recv, srq| {
            (init.send_cq, init.recv_cq, init.srq) = (send, recv, srq);
            // SAFETY: a domain and queues that live, and attributes of ours.
            let qp = unsafe { (verbs.ibv_create_qp)(pd, &raw mut init) };
            if !qp.is_null() {
                // SAFETY: just made.
                qpn = unsafe { (*qp).qp_num };
            }
            qp
        };
        let handle = pd.make("ibv_create_qp", |pd| {
            let mut with_srq = |send, recv| match srq {
                None => Some(create(pd, send, recv, ptr::null_mut())),
                Some(srq) => srq.handle.with(|srq| create(pd, send, recv, srq)),
            };
            let made = send_cq.handle.with(|send| {
                // If both are the same queue, this thread takes its read lock only once: a second
                // read lock could deadlock with a thread that waits to destroy the queue.
                if ptr::eq(send_cq, recv_cq) {
                    return with_srq(send, send);
                }
                recv_cq.handle.with(|recv| with_srq(send, recv)).flatten()
            });
            made.flatten().unwrap_or(ptr::null_mut())
        })?;
        made.cap = convert::qp_cap_of(&init.cap);
        Ok((Self { handle, made, adapter: Arc::clone(&pd.adapter) }, Qpn::new(qpn)))
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.made.qp_type
    }

    /// Changes attributes and state.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let (mut attr, mask) = work::qp_attr(attr);
        let verbs = self.adapter.open.verbs;
        let done = self.handle.with(|qp| {
            // SAFETY: a queue pair that lives, and attributes of ours.
            unsafe { (verbs.ibv_modify_qp)(qp, &raw mut attr, mask.cast_signed()) }
        });
        match done {
            Some(0) => Ok(()),
            Some(code) => Err(ModifyQpError::Refused { errno: errno(code) }),
            None => Err(ModifyQpError::Destroyed),
        }
    }

    /// Sets attributes that librdmacm supplied.
    pub(crate) fn modify_as_told(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.call("ibv_modify_qp", |qp| {
            // SAFETY: a queue pair that lives, and attributes of ours.
            unsafe { (verbs.ibv_modify_qp)(qp, attr, mask) }
        })
    }

    /// Its attributes and how it was made.
    pub fn query(&self) -> Option<(QpAttr, QpInitAttr)> {
        // The attributes that every driver returns.
        const MASK: u32 = IBV_QP_STATE
            | IBV_QP_CUR_STATE
            | IBV_QP_ACCESS_FLAGS
            | IBV_QP_PKEY_INDEX
            | IBV_QP_PORT
            | IBV_QP_QKEY
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_CAP
            | IBV_QP_DEST_QPN;
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let verbs = self.adapter.open.verbs;
        let asked = self.handle.with(|qp| {
            let mask = MASK.cast_signed();
            // SAFETY: a queue pair that lives, and places for the answers.
            unsafe { (verbs.ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init) }
        });
        (asked == Some(0)).then(|| (work::queried(&attr), self.made))
    }

    /// Queries its state from the driver; a failed query reads as the error state.
    pub fn state(&self) -> QpState {
        self.query().and_then(|(attr, _)| attr.state).unwrap_or(QpState::Err)
    }

    /// Attaches it to a multicast group.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        let (group, verbs) = (ibv_gid { raw: group.0 }, self.adapter.open.verbs);
        self.handle.call("ibv_attach_mcast", |qp| {
            // SAFETY: a queue pair that lives, and an address of ours.
            unsafe { (verbs.ibv_attach_mcast)(qp, &raw const group, 0) }
        })
    }

    /// Detaches it from a multicast group.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        let (group, verbs) = (ibv_gid { raw: group.0 }, self.adapter.open.verbs);
        self.handle.call("ibv_detach_mcast", |qp| {
            // SAFETY: a queue pair that lives, and an address of ours.
            unsafe { (verbs.ibv_detach_mcast)(qp, &raw const group, 0) }
        })
    }

    /// Destroys it.
    pub fn destroy(&self) -> Result<(), Error> {
        let verbs = self.adapter.open.verbs;
        self.handle.end("ibv_destroy_qp", |qp| {
            // SAFETY: a queue pair that lives, and that no thread is in a call on.
            unsafe { (verbs.ibv_destroy_qp)(qp) }
        })
    }

    /// Runs a call that posts, and converts its error number to a [`PostError`].
    pub(crate) fn post(&self, f: impl FnOnce(*mut ibv_qp) -> c_int) -> Result<(), PostError> {
        let mut state = None;
        let posted = self.handle.with(|qp| {
            // SAFETY: a queue pair that lives. The library keeps its state up to date.
            state = Some(unsafe { (*qp).state });
            f(qp)
        });
        let state = state.map(|code| convert::qp_state_of(code).unwrap_or(QpState::Err));
        refusal(posted, state)
    }
}

/// Why a queue in this state refused a request, if it did.
fn refusal(posted: Option<c_int>, state: Option<QpState>) -> Result<(), PostError> {
    match (posted, state) {
        (Some(0), _) => Ok(()),
        (None, _) => Err(engine::PostError::BadState(QpState::Reset).into()),
        (Some(code), state) => match (errno(code), state) {
            (libc::ENOMEM, _) => Err(engine::PostError::QueueFull.into()),
            (_, Some(state @ (QpState::Reset | QpState::Init | QpState::Rtr))) => {
                Err(engine::PostError::BadState(state).into())
            }
            (errno, _) => Err(PostError::Refused { errno }),
        },
    }
}
