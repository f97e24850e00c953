//! What the contexts of a device share: objects that one context has and another can import.
//!
//! A context is found by a duplicate of its command descriptor, objects in it by their handles.
//! Other processes have adapters of their own, so they cannot import anything.
//!
//! A command descriptor has to be a character device, as programs check, and there are no character
//! devices of ours. So it is the null device, opened once per context and marked: with the process
//! that owns it, and with the number of a signal that the kernel would send to that process about
//! it, and never does, because no file asks for signals by itself. Duplicates have the same marks.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feroce::Region;

use crate::errno::Errno;

/// What a context has that can be imported, by handle.
#[derive(Default)]
pub(crate) struct Exports {
    tables: Mutex<Tables>,
}

/// A memory region that can be imported. Both its keys are the same number, and its handle.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) length: usize,
    /// The handle of its protection domain.
    pub(crate) pd: u32,
}

/// The handle that was given last.
static LAST: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) pds: BTreeMap<u32, SharedPd>,
    pub(crate) mrs: BTreeMap<u32, Registered>,
    pub(crate) dms: BTreeMap<u32, Arc<Reserved>>,
}

impl Tables {
    /// Whether there is nothing in them.
    pub(crate) fn is_empty(&self) -> bool {
        self.pds.is_empty() && self.mrs.is_empty() && self.dms.is_empty()
    }
}

impl Exports {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that nothing in the process has had: `rdma resource` shows objects of all contexts
    /// together.
    pub(crate) fn handle(&self) -> u32 {
        LAST.fetch_add(1, Ordering::Relaxed)
    }
}

/// The marks that contexts can have: the numbers of signals.
const MARKS: core::ops::RangeInclusive<c_int> = 1..=64;

/// A context that can be imported.
struct Offer {
    mark: c_int,
    device: String,
    exports: Weak<Exports>,
}

/// Contexts that are open. Those that are closed are swept out when another is opened.
static OFFERS: Mutex<Vec<Offer>> = Mutex::new(Vec::new());

/// Opens the command descriptor of a context, with which it can be imported. When there are as many
/// contexts as marks, the next one cannot be imported.
pub(super) fn offer(device: &str, exports: &Arc<Exports>) -> Result<OwnedFd, Errno> {
    let null = File::options().read(true).write(true).open("/dev/null");
    let fd = OwnedFd::from(null.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOENT)))?);
    let mut offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    offers.retain(|offer| offer.exports.strong_count() > 0);
    let is_free = |mark: &c_int| offers.iter().all(|offer| offer.mark != *mark);
    let Some(mark) = MARKS.into_iter().find(is_free) else { return Ok(fd) };
    let owner = c_int::try_from(process::id()).map_err(|_| Errno::INVALID)?;
    let set = |command, value: c_int| {
        // SAFETY: fcntl(2) with a command that takes a number and touches no memory.
        let status = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
        status == 0
    };
    if set(libc::F_SETOWN, owner) && set(F_SETSIG, mark) {
        offers.push(Offer { mark, device: device.to_owned(), exports: Arc::downgrade(exports) });
    }
    drop(offers);
    Ok(fd)
}

/// Commands of fcntl(2) that the C library declares for programs, in `bits/fcntl-linux.h`.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// The context that a descriptor names: its device and what it has.
pub(super) fn find(fd: c_int) -> Result<(String, Arc<Exports>), Errno> {
    // SAFETY: fcntl(2) with a command that takes no argument and touches no memory.
    let ask = |command| match unsafe { libc::fcntl(fd, command) } {
        -1 => Err(Errno::last()),
        answer => Ok(answer),
    };
    let (owner, mark) = (ask(libc::F_GETOWN)?, ask(F_GETSIG)?);
    // A descriptor that is not from here may be from another process.
    if u32::try_from(owner) != Ok(process::id()) {
        return Err(Errno::UNSUPPORTED);
    }
    let offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = offers.iter().find(|offer| offer.mark == mark);
    let found = found.and_then(|offer| Some((offer.device.clone(), offer.exports.upgrade()?)));
    drop(offers);
    found.ok_or(Errno::UNSUPPORTED)
}

/// Counts the objects that refer to another one, apart from those that the adapter counts.
#[derive(Clone, Default)]
pub(super) struct Users(Arc<AtomicUsize>);

impl Users {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn enter(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(self.clone())
    }
}

/// One reference.
pub(super) struct Use(Users);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a protection domain and all that import it have in common.
#[derive(Clone)]
pub(crate) struct SharedPd {
    pub(super) pd: feroce::Pd,
    pub(super) users: Users,
}

/// Memory that `ibv_alloc_dm` gives out, at most.
pub(crate) const MAX_DM_SIZE: u64 = 256 << 10;

/// Bytes given out, in the whole process.
static USED: AtomicU64 = AtomicU64::new(0);

/// Memory taken out of what there is, until it is dropped.
pub(crate) struct Reserved {
    pub(super) region: Arc<Region>,
}

impl Reserved {
    pub(super) fn new(len: usize) -> Result<Arc<Self>, Errno> {
        let len64 = len as u64;
        let fits = |used: u64| used.checked_add(len64).filter(|used| *used <= MAX_DM_SIZE);
        let reserved = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map_err(|_| Errno::NO_MEMORY)?;
        match Region::alloc(len) {
            Ok(region) => Ok(Arc::new(Self { region })),
            Err(_) => {
                USED.fetch_sub(len64, Ordering::Relaxed);
                Err(Errno::NO_MEMORY)
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        USED.fetch_sub(self.region.len() as u64, Ordering::Relaxed);
    }
}
