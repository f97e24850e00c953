//! Contexts: devices that programs have opened.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_lint::{self as lint, Kind};

use super::adapter;
use super::device::Device;
use super::object::Object;
use super::registry::{Listed, Registry};
use super::shared::{self, Exports};
use crate::abi::*;
use crate::errno::Errno;
use crate::{caller, leave, memory};

/// An open device: `verbs_context` with `ibv_context` at its end, and ours behind that.
#[repr(C)]
pub(crate) struct Context {
    public: UnsafeCell<verbs_context>,
    /// The adapter, which all contexts of a device share.
    adapter: Mutex<feroce::Context>,
    /// Where events find their objects.
    pub(crate) registry: Registry,
    /// What can be imported from it.
    pub(crate) exports: Arc<Exports>,
    /// What `rdma resource` calls it.
    pub(crate) number: u32,
    /// A program that duplicates this descriptor can import the context with it.
    _cmd_fd: OwnedFd,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Context {
    type C = verbs_context;

    const KIND: Option<Kind> = Some(Kind::Device);
}

// SAFETY: this library writes the public part before it gives the context to the program, and then
// leaves it to the program. All other fields are `Sync`.
unsafe impl Sync for Context {}

impl Context {
    /// The context behind the pointer that programs have.
    ///
    /// # Safety
    /// `context` is live, and stays so for `'a`.
    pub(crate) unsafe fn behind<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: every `ibv_context` of this library is the last field of a `verbs_context`.
        let verbs = unsafe { context.byte_sub(offset_of!(verbs_context, context)) };
        // SAFETY: by this function's contract, `context` is live, and stays so for `'a`.
        unsafe { Self::of(verbs.cast()) }
    }

    /// The context of an object.
    ///
    /// # Safety
    /// `object` is live. All objects begin with a pointer to their context, which is live as long
    /// as they are.
    pub(crate) unsafe fn of_object<'a, T>(object: *mut T) -> &'a Self {
        // SAFETY: by this function's contract `object` is live, and the first field of all objects
        // is the pointer to their context.
        let context = unsafe { object.cast::<*mut ibv_context>().read() };
        // SAFETY: the context of a live object is live.
        unsafe { Self::behind(context) }
    }

    /// The adapter. In a child of the process that opened it, it is opened again now; if that is
    /// not possible, what there is leads nowhere.
    pub(crate) fn adapter(&self) -> feroce::Context {
        let mut adapter = self.adapter.lock().unwrap_or_else(PoisonError::into_inner);
        if adapter.is_cut_off()
            && let Ok(new) = adapter::open(adapter.device())
            && let Ok(async_fd) = new.async_fd().map(|fd| fd.as_raw_fd())
        {
            // SAFETY: the context is live. A forked child has one thread until it makes others, so
            // no other thread reads the field.
            unsafe { (*self.as_ptr()).async_fd = async_fd };
            *adapter = new;
        }
        adapter.clone()
    }

    /// The name of its device.
    pub(crate) fn device_name(&self) -> String {
        let adapter = self.adapter.lock().unwrap_or_else(PoisonError::into_inner);
        adapter.device().name().to_owned()
    }

    /// What programs see of it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the public part of a live object; the address of a field is taken without a
        // reference.
        unsafe { &raw mut (*self.public()).context }
    }

    /// Opens a device. The new context has these calls.
    pub(super) fn open(device: &Device, calls: verbs_context) -> Result<*mut ibv_context, Errno> {
        memory::admit()?;
        let adapter = adapter::open(&device.facts())?;
        let exports = Arc::new(Exports::default());
        let cmd_fd = shared::offer(device.facts().name(), &exports)?;
        Self::publish(device, adapter, (cmd_fd, exports), calls)
    }

    /// Opens a device once more, with what a context of it has.
    pub(super) fn import(
        device: &str,
        cmd_fd: OwnedFd,
        exports: Arc<Exports>,
        calls: verbs_context,
    ) -> Result<*mut ibv_context, Errno> {
        let device = Device::named(device).ok_or(Errno(libc::ENODEV))?;
        let adapter = adapter::open(&device.facts())?;
        Self::publish(device, adapter, (cmd_fd, exports), calls)
    }

    /// Gives a context to the program.
    fn publish(
        device: &Device,
        adapter: feroce::Context,
        (cmd_fd, exports): (OwnedFd, Arc<Exports>),
        mut verbs: verbs_context,
    ) -> Result<*mut ibv_context, Errno> {
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device.public();
        verbs.context.cmd_fd = cmd_fd.as_raw_fd();
        verbs.context.async_fd = adapter.async_fd().map_err(Errno::from)?.as_raw_fd();
        verbs.context.num_comp_vectors = c_int::try_from(adapter.attr().comp_vectors).unwrap_or(1);
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        static LAST: AtomicU32 = AtomicU32::new(0);
        let registry = Registry::default();
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let (public, adapter) = (UnsafeCell::new(verbs), Mutex::new(adapter));
        let verbs = Self { public, adapter, registry, exports, number, _cmd_fd: cmd_fd }.give();
        lint::start(caller::name);
        if lint::is_on() {
            leave::watch_status();
        }
        // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot
        // destroy it.
        let context = unsafe { Self::of(verbs) };
        open().push(Listed::new(context));
        Ok(context.as_ptr())
    }
}

/// Every context that is open, in the order of opening. A context in the list lives at least as
/// long as the lock is held.
pub(crate) fn open() -> MutexGuard<'static, Vec<Listed<verbs_context>>> {
    static OPEN: Mutex<Vec<Listed<verbs_context>>> = Mutex::new(Vec::new());
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: ibv_close_device(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    if lint::is_on() {
        let adapter = context.adapter();
        lint::device_closed(adapter.device().name(), &adapter.counters());
    }
    // Objects that the program has not destroyed refer to it, and it may destroy them later.
    if context.registry.lock().is_empty() && context.exports.lock().is_empty() {
        open().retain(|listed| !listed.is(context));
        // SAFETY: ibv_close_device(3): the context is live, and the program uses neither it nor an
        // object of it after this call.
        drop(unsafe { Context::take(context.public()) });
    }
    0
}
