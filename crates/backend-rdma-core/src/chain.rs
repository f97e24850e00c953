//! Sends as C takes them: lists that are linked by pointers.
//!
//! The memory of a list is used again for the next one. Its pointers lead only into the list
//! itself, and only until the call that takes it returns.

use std::fmt;
use std::ptr;
use std::sync::PoisonError;

use feroce_abi::*;
use feroce_engine::{self as engine, Data, Dest, QpCap, QpType, SendOp, SendWr};
use feroce_mem::MwType;

use crate::PostError;
use crate::describe::Plain;
use crate::memory::window_index;
use crate::queues::Qp;

/// Send requests that are about to be posted to a queue pair.
pub(crate) struct SendChain {
    qp_type: QpType,
    cap: QpCap,
    requests: Vec<SendWr>,
    sges: Vec<ibv_sge>,
    wrs: Vec<ibv_send_wr>,
}

// SAFETY: only the call that the list is built for dereferences the pointers in it.
unsafe impl Send for SendChain {}

// SAFETY: as above.
unsafe impl Sync for SendChain {}

impl fmt::Debug for SendChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendChain").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl SendChain {
    pub(crate) fn new(qp_type: QpType, cap: QpCap) -> Self {
        Self { qp_type, cap, requests: Vec::new(), sges: Vec::new(), wrs: Vec::new() }
    }

    /// Appends a request, if it is one that the queue pair can take.
    #[inline]
    pub(crate) fn push(&mut self, wr: SendWr) -> Result<(), engine::PostError> {
        match &wr.data {
            Data::Sges(sges) if sges.as_slice().len() > self.cap.max_send_sge as usize => {
                return Err(engine::PostError::TooManySges);
            }
            Data::Inline(_) if wr.op.is_fetch() || wr.op.is_local() => {
                return Err(engine::PostError::InlineNotAllowed);
            }
            Data::Inline(bytes) if bytes.len() > self.cap.max_inline as usize => {
                return Err(engine::PostError::InlineTooLong);
            }
            _ => {}
        }
        match (self.qp_type, wr.dest) {
            (QpType::Ud, Dest::Ud { .. }) | (QpType::Rc | QpType::Uc, Dest::Connected) => {}
            _ => return Err(engine::PostError::BadDestination),
        }
        if matches!(wr.op, SendOp::Flush { .. } | SendOp::Reg { .. }) {
            return Err(engine::PostError::OpNotSupported);
        }
        self.requests.push(wr);
        Ok(())
    }

    /// Discards the requests that were appended.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
    }

    /// Posts the requests that were appended, in order, until the driver refuses one; then discards
    /// all of them.
    #[inline]
    pub(crate) fn post(&mut self, qp: &Qp) -> Result<(), PostError> {
        let mut requests = std::mem::take(&mut self.requests);
        let is_bind = |wr: &SendWr| matches!(wr.op, SendOp::BindMw { .. });
        // Windows are bound one at a time, because binding needs the C objects of the window and of
        // its region, and not only the request.
        let mut groups = requests.chunk_by(|a, b| !is_bind(a) && !is_bind(b));
        let done = groups.try_for_each(|group| match group {
            [wr] if is_bind(wr) => bind(wr, qp),
            group => self.post_group(group, qp),
        });
        requests.clear();
        self.requests = requests;
        done
    }

    fn post_group(&mut self, group: &[SendWr], qp: &Qp) -> Result<(), PostError> {
        let post = qp.adapter.open.ops().post_send.ok_or(engine::PostError::OpNotSupported)?;
        // This thread holds the lock of the table until the call returns, so that no other thread
        // destroys an address handle meanwhile.
        let ahs = (self.qp_type == QpType::Ud)
            .then(|| qp.adapter.ahs.read().unwrap_or_else(PoisonError::into_inner));
        self.sges.clear();
        self.wrs.clear();
        // The capacity is reserved in full, so the elements do not move from here on.
        let pieces = |wr: &SendWr| match &wr.data {
            Data::Sges(sges) => sges.as_slice().len(),
            Data::Inline(bytes) => usize::from(!bytes.as_slice().is_empty()),
        };
        self.sges.reserve(group.iter().map(pieces).sum());
        for wr in group {
            let mut out = convert::send_wr(wr).ok_or(engine::PostError::OpNotSupported)?;
            if let (Dest::Ud { ah, .. }, Some(ahs)) = (wr.dest, &ahs) {
                let known = ahs.get(&ah).ok_or(engine::PostError::BadDestination)?;
                out.wr.ud.ah = known.0.as_ptr();
            }
            out.num_sge = pieces(wr) as i32;
            out.sg_list = self.sges.as_mut_ptr().wrapping_add(self.sges.len());
            match &wr.data {
                Data::Sges(sges) => self.sges.extend(sges.as_slice().iter().map(convert::sge)),
                Data::Inline(bytes) => {
                    let bytes = Some(bytes.as_slice()).filter(|bytes| !bytes.is_empty());
                    self.sges.extend(bytes.map(|bytes| ibv_sge {
                        addr: bytes.as_ptr().expose_provenance() as u64,
                        length: bytes.len() as u32,
                        lkey: 0,
                    }));
                }
            }
            self.wrs.push(out);
        }
        let first: *mut ibv_send_wr = self.wrs.as_mut_ptr();
        for i in 1..self.wrs.len() {
            let (one, next) = (first.wrapping_add(i - 1), first.wrapping_add(i));
            // SAFETY: both are requests of the list.
            unsafe { (*one).next = next };
        }
        if self.wrs.is_empty() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair that lives, and a chain whose elements, inline bytes and address
        // handles are there until the call returns.
        qp.post(|qp| unsafe { post(qp, first, &raw mut bad) })
    }
}

/// Binds a window, or unbinds it.
fn bind(wr: &SendWr, qp: &Qp) -> Result<(), PostError> {
    let SendOp::BindMw { mw, new_rkey, binding } = wr.op else {
        return Err(engine::PostError::OpNotSupported.into());
    };
    let adapter = &qp.adapter;
    let window = adapter.windows().get(&window_index(mw)).cloned();
    let Some((window, kind)) = window.and_then(|w| Some((w.handle.upgrade()?, w.kind))) else {
        return Err(PostError::Refused { errno: libc::EINVAL });
    };
    let region = adapter.regions().get(&binding.mr.0).and_then(std::sync::Weak::upgrade);
    let post = |mw: *mut ibv_mw, mr: *mut ibv_mr| {
        let info = convert::bind_info(&binding, mr);
        if kind == MwType::One {
            let Some(bind) = adapter.open.ops().bind_mw else {
                return Err(engine::PostError::OpNotSupported.into());
            };
            let send_flags = convert::send_flags(wr);
            let mut request = ibv_mw_bind { wr_id: wr.wr_id, send_flags, bind_info: info };
            // SAFETY: a queue pair, a window and a region that live, and a request of ours.
            return qp.post(|qp| unsafe { bind(qp, mw, &raw mut request) });
        }
        let Some(post) = adapter.open.ops().post_send else {
            return Err(engine::PostError::OpNotSupported.into());
        };
        let mut request = ibv_send_wr {
            wr_id: wr.wr_id,
            opcode: IBV_WR_BIND_MW,
            send_flags: convert::send_flags(wr),
            ..ibv_send_wr::zeroed()
        };
        let rkey = new_rkey.0;
        request.op = ibv_send_wr__anon_op {
            bind_mw: ibv_send_wr__anon_op__bind_mw { mw, rkey, bind_info: info },
        };
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        qp.post(|qp| unsafe { post(qp, &raw mut request, &raw mut bad) })
    };
    let bound = window.with(|mw| match region {
        Some(region) => region.with(|mr| post(mw, mr)),
        // There is no region to bind to. A bind with a length of zero unbinds the window.
        None => Some(post(mw, ptr::null_mut())),
    });
    bound.flatten().unwrap_or(Err(PostError::Refused { errno: libc::EINVAL }))
}
