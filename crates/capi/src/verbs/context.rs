//! Contexts: opening and closing devices, and the table of calls behind `ibv_context`.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use feroce::QpState;
use feroce_lint::{self as lint, Kind};

use super::device::Device;
use super::import::{self, Exports};
use super::object::Object;
use super::registry::Registry;
use super::{adapter, cq, cq_ex, dm, mr, mw, pd, post, qp, query, srq, xrc};
use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::zeroed::Zeroed;

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
        {
            // SAFETY: the context is live. A forked child has one thread until it makes others, so
            // no other thread reads the field.
            unsafe { (*self.as_ptr()).async_fd = new.async_fd().as_raw_fd() };
            *adapter = new;
        }
        adapter.clone()
    }

    /// Whether a queue pair may still use what was posted to it.
    pub(crate) fn is_at_work(&self, qpn: feroce::Qpn) -> bool {
        let handle = self.registry.lock().qps.get(&qpn).map(|listed| {
            // SAFETY: the object is in the tables, which this thread has locked; its destructor
            // removes it from there before it frees it.
            unsafe { listed.get() }.handle.clone()
        });
        let state = handle.and_then(|handle| handle.query_all()).map(|(attr, _)| attr.state);
        !matches!(state, None | Some(Some(QpState::Reset | QpState::Err)))
    }

    /// What programs see of it.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the public part of a live object; the address of a field is taken without a
        // reference.
        unsafe { &raw mut (*self.public()).context }
    }

    /// Opens a device.
    fn open(device: &Device) -> Result<*mut ibv_context, Errno> {
        let adapter = adapter::open(&device.facts())?;
        let exports = Arc::new(Exports::default());
        let cmd_fd = import::offer(device.facts().name(), &exports)?;
        Ok(Self::publish(device, adapter, cmd_fd, exports))
    }

    /// Opens a device once more, with what a context of it has.
    pub(crate) fn import(
        device: &str,
        cmd_fd: OwnedFd,
        exports: Arc<Exports>,
    ) -> Result<*mut ibv_context, Errno> {
        let device = Device::named(device).ok_or(Errno(libc::ENODEV))?;
        let adapter = adapter::open(&device.facts())?;
        Ok(Self::publish(device, adapter, cmd_fd, exports))
    }

    /// Gives a context to the program.
    fn publish(
        device: &Device,
        adapter: feroce::Context,
        cmd_fd: OwnedFd,
        exports: Arc<Exports>,
    ) -> *mut ibv_context {
        let mut verbs = verbs_context::zeroed();
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device.public();
        verbs.context.cmd_fd = cmd_fd.as_raw_fd();
        verbs.context.async_fd = adapter.async_fd().as_raw_fd();
        verbs.context.num_comp_vectors = c_int::try_from(adapter.attr().comp_vectors).unwrap_or(1);
        verbs.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        fill_calls(&mut verbs);
        let registry = Registry::default();
        let (public, adapter) = (UnsafeCell::new(verbs), Mutex::new(adapter));
        let verbs = Self { public, adapter, registry, exports, _cmd_fd: cmd_fd }.give();
        lint::start();
        // SAFETY: `give` returned the pointer; the program does not have it yet, so it cannot
        // destroy it.
        let context = unsafe { Self::of(verbs) };
        context.as_ptr()
    }
}

/// Calls that inline functions of `verbs.h` make through the context.
fn fill_calls(verbs: &mut verbs_context) {
    let ops = &mut verbs.context.ops;
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.alloc_null_mr = Some(mr::alloc_null_mr);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.create_srq_ex = Some(xrc::create_srq_ex);
    verbs.get_srq_num = Some(xrc::get_srq_num);
    verbs.open_qp = Some(xrc::open_qp);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: ibv_open_device(3): `device` is a device of a list that this library made; it never
    // frees devices.
    let device = unsafe { Device::of(device) };
    pointer(Context::open(device))
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
        // SAFETY: ibv_close_device(3): the context is live, and the program uses neither it nor an
        // object of it after this call.
        drop(unsafe { Context::take(context.public()) });
    }
    0
}
