//! Receives as C takes them: lists that are linked by pointers, as in [`chain`](crate::chain).

use std::fmt;
use std::ptr;

use feroce_abi::*;
use feroce_engine::{self as engine, RecvWr};

use crate::PostError;
use crate::describe::Plain;

/// Receive requests that are about to be posted to a queue.
pub(crate) struct RecvChain {
    max_sge: u32,
    requests: Vec<RecvWr>,
    sges: Vec<ibv_sge>,
    wrs: Vec<ibv_recv_wr>,
}

// SAFETY: only the call that the list is built for dereferences the pointers in it.
unsafe impl Send for RecvChain {}

// SAFETY: as above.
unsafe impl Sync for RecvChain {}

impl fmt::Debug for RecvChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvChain").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl RecvChain {
    pub(crate) fn new(max_sge: u32) -> Self {
        Self { max_sge, requests: Vec::new(), sges: Vec::new(), wrs: Vec::new() }
    }

    /// Passes requests to `post`, in order, up to the first that has too many scatter elements.
    /// The driver in turn stops at the first request that it refuses.
    #[inline]
    pub(crate) fn post(
        &mut self,
        wrs: impl IntoIterator<Item = RecvWr>,
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut fits = Ok(());
        self.requests.clear();
        for wr in wrs {
            if wr.sges.as_slice().len() > self.max_sge as usize {
                fits = Err(engine::PostError::TooManySges.into());
                break;
            }
            self.requests.push(wr);
        }
        self.sges.clear();
        self.wrs.clear();
        // The capacity is reserved in full, so the elements do not move from here on.
        self.sges.reserve(self.requests.iter().map(|wr| wr.sges.as_slice().len()).sum());
        for wr in &self.requests {
            let mut out = ibv_recv_wr::zeroed();
            out.wr_id = wr.wr_id;
            out.num_sge = wr.sges.as_slice().len() as i32;
            out.sg_list = self.sges.as_mut_ptr().wrapping_add(self.sges.len());
            self.sges.extend(wr.sges.as_slice().iter().map(convert::sge));
            self.wrs.push(out);
        }
        let first: *mut ibv_recv_wr = self.wrs.as_mut_ptr();
        for i in 1..self.wrs.len() {
            let (one, next) = (first.wrapping_add(i - 1), first.wrapping_add(i));
            // SAFETY: both are requests of the list.
            unsafe { (*one).next = next };
        }
        if !self.wrs.is_empty() {
            let mut bad = ptr::null_mut();
            post(first, &raw mut bad)?;
        }
        fits
    }
}
