//! Protection domains.

use std::sync::Arc;

use crate::Error;
use crate::backend::{PdSide, either, map_either};
use crate::context::Context;
use crate::life::Life;

/// A protection domain: its objects work with each other and with no object of another domain.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.26".parse()?]).open()?;
/// let pd = context.alloc_pd()?;
/// let mr = pd.alloc_mr(64, feroce::Access::LOCAL_WRITE)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    side: PdSide,
    context: Context,
    life: Life,
}

impl PdInner {
    fn dealloc(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, pd => pd.dealloc()))
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Every object in the domain holds a reference to it, so none uses it any more.
        let _ = self.dealloc();
    }
}

impl Context {
    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::alloc(self)
    }
}

impl Pd {
    pub(crate) fn alloc(context: &Context) -> Result<Self, Error> {
        let side = map_either!(context.adapter(), adapter => adapter.alloc_pd()?);
        Ok(Self { inner: Arc::new(PdInner { side, context: context.clone(), life: Life::new() }) })
    }

    /// Deallocates it now, or fails if an object is still in it. Dropping the last handle
    /// deallocates it as well.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(&self) -> Result<(), Error> {
        self.inner.dealloc()
    }

    pub(crate) fn side(&self) -> &PdSide {
        &self.inner.side
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
}
