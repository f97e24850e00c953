//! Shared receive queues of the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{PostError, RecvWr, SrqAttr, SrqId, SrqQueue};

use crate::Error;
use crate::driver::{Driver, Object, State};

/// A shared receive queue of the engine.
#[derive(Debug)]
pub(crate) struct SoftSrq {
    pub(super) id: SrqId,
    pub(super) queue: Mutex<SrqQueue>,
    pub(super) driver: Arc<Driver>,
}

impl SoftSrq {
    fn queue(&self) -> MutexGuard<'_, SrqQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), PostError> {
        let mut queue = self.queue();
        wrs.into_iter().try_for_each(|wr| queue.post(wr))
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.driver.control(|s, _| s.engine.set_srq_limit(self.id, limit))?)
    }

    pub(crate) fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let mut queue = self.queue();
        let resize = |s: &mut State, _| s.engine.resize_srq(self.id, &mut queue, max_wr);
        let (resized, wakes) = self.driver.control_then(resize);
        drop(queue);
        drop(wakes);
        Ok(resized?)
    }

    pub(crate) fn query(&self) -> Option<SrqAttr> {
        self.driver.read(|s| s.engine.query_srq(self.id))
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.driver.control(|s, _| {
            s.engine.destroy_srq(self.id)?;
            s.dispatch.disown(Object::Srq(self.id));
            Ok(())
        })
    }
}
