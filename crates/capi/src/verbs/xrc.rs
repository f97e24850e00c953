//! Extended reliable connections: domains, their shared receive queues, and targets.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce_lint::Kind;

use super::context::Context;
use super::cq::Cq;
use super::identity::FileId;
use super::object::Object;
use super::pd::Pd;
use super::qp::{self, Plan, Qp};
use super::srq::{self, Srq};
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// A domain.
#[repr(C)]
struct Xrcd {
    public: UnsafeCell<ibv_xrcd>,
    xrcd: feroce::Xrcd,
    /// The file that it was opened with, if any.
    file: Option<File>,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Xrcd {
    type C = ibv_xrcd;

    const KIND: Option<Kind> = Some(Kind::Xrcd);
}

/// A file, and the device that a domain is of.
#[derive(Clone, PartialEq, Eq)]
struct File {
    device: String,
    id: FileId,
}

/// A domain, which all calls with the same file share, and how often it is open.
struct Shared {
    file: File,
    xrcd: feroce::Xrcd,
    openings: usize,
}

/// Domains that were opened with a file. Other processes have their own.
static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

fn shared() -> MutexGuard<'static, Vec<Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: ibv_open_xrcd(3): `context` is a live context.
    let behind = unsafe { Context::behind(context) };
    // SAFETY: ibv_open_xrcd(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    pointer(memory::admit().and_then(|()| open(behind, &attr)).map(|(xrcd, file)| {
        Xrcd { public: UnsafeCell::new(ibv_xrcd { context }), xrcd, file }.give()
    }))
}

fn open(
    context: &Context,
    attr: &ibv_xrcd_init_attr,
) -> Result<(feroce::Xrcd, Option<File>), Errno> {
    if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return Err(Errno::INVALID);
    }
    if attr.fd == -1 {
        return Ok((context.adapter().open_xrcd()?, None));
    }
    let device = context.adapter().device().name().to_owned();
    let file = File { device, id: FileId::of(attr.fd)? };
    let (create, exclusive) = (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0);
    let mut all = shared();
    match all.iter_mut().find(|known| known.file == file) {
        Some(_) if create && exclusive => Err(Errno::INVALID),
        Some(known) => {
            known.openings += 1;
            Ok((known.xrcd.clone(), Some(file)))
        }
        None if !create => Err(Errno(libc::EAGAIN)),
        None => {
            let xrcd = context.adapter().open_xrcd()?;
            all.push(Shared { file: file.clone(), xrcd: xrcd.clone(), openings: 1 });
            Ok((xrcd, Some(file)))
        }
    }
}

pub(crate) unsafe extern "C" fn close_xrcd(public: *mut ibv_xrcd) -> c_int {
    // SAFETY: ibv_close_xrcd(3): `public` is a live XRC domain.
    let xrcd = unsafe { Xrcd::of(public) };
    if let Err(errno) = close(xrcd) {
        return code(Err(errno));
    }
    // SAFETY: ibv_close_xrcd(3): `public` is live, no object uses it, and the program does not use
    // it after this call.
    drop(unsafe { Xrcd::take(public) });
    0
}

fn close(xrcd: &Xrcd) -> Result<(), Errno> {
    let Some(file) = &xrcd.file else { return Ok(xrcd.xrcd.close()?) };
    let mut all = shared();
    let Some(at) = all.iter().position(|known| known.file == *file) else { return Ok(()) };
    if all[at].openings == 1 {
        xrcd.xrcd.close()?;
        all.remove(at);
    } else {
        all[at].openings -= 1;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_create_srq_ex(3): `init` points to attributes.
    let init = unsafe { init.read() };
    let has = |bit| init.comp_mask & bit != 0;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    if init.comp_mask >= IBV_SRQ_INIT_ATTR_TM || srq_type > IBV_SRQT_XRC {
        return pointer(Err(Errno::UNSUPPORTED));
    }
    if let Err(errno) = memory::admit() {
        return pointer(Err(errno));
    }
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        return pointer(Err(Errno::INVALID));
    }
    // SAFETY: ibv_create_srq_ex(3): `init.pd` is a live protection domain.
    let pd = unsafe { &Pd::of(init.pd).pd };
    let (max_wr, max_sge) = (init.attr.max_wr, init.attr.max_sge);
    let made = if srq_type == IBV_SRQT_BASIC {
        pd.create_srq(max_wr, max_sge)
    } else {
        if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) {
            return pointer(Err(Errno::INVALID));
        }
        // SAFETY: ibv_create_srq_ex(3): `init.xrcd` is a live XRC domain.
        let xrcd = unsafe { Xrcd::of(init.xrcd) };
        // SAFETY: ibv_create_srq_ex(3): `init.cq` is a live completion queue.
        let cq = unsafe { Cq::behind(init.cq) };
        pd.create_xrc_srq(&xrcd.xrcd, &cq.cq, max_wr, max_sge)
    };
    let publish = |srq| {
        let made = Srq::publish((srq, srq_type), init.pd, init.srq_context, context);
        if srq_type == IBV_SRQT_BASIC { srq::noted(made) } else { made }
    };
    pointer(made.map(publish).map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: ibv_get_srq_num(3): `srq` is a live shared receive queue.
    let srq = unsafe { Srq::of(srq) };
    // SAFETY: ibv_get_srq_num(3): `number` points to room for the number.
    unsafe { number.write(srq.srq.number().get()) };
    0
}

/// Makes the receiving end of a connection.
///
/// # Safety
/// `xrcd` is a live XRC domain, or NULL.
pub(crate) unsafe fn create_target(
    context: &Context,
    plan: Plan,
    xrcd: *mut ibv_xrcd,
) -> Result<*mut ibv_qp_ex, Errno> {
    if xrcd.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: by this function's contract, `xrcd` is a live XRC domain, or NULL.
    let xrcd = unsafe { Xrcd::of(xrcd) };
    memory::admit()?;
    let (handle, _, _) = xrcd.xrcd.target_qp().create()?.split();
    Ok(qp::publish(context, &plan, handle, (None, None)))
}

/// Opens a target that this process has made before, by its number.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: ibv_open_qp(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_open_qp(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
        return pointer(Err(Errno::INVALID));
    }
    if let Err(errno) = memory::admit() {
        return pointer(Err(errno));
    }
    let tables = context.registry.lock();
    let found = tables.qps.get(&feroce::Qpn::new(attr.qp_num)).map(|listed| {
        // SAFETY: the object is in the tables, which this thread has locked; its destructor removes
        // it from there before it frees it.
        let target: &Qp = unsafe { listed.get() };
        (target.handle.clone(), target.made)
    });
    drop(tables);
    let found = found.filter(|(_, made)| made.qp_type == IBV_QPT_XRC_RECV);
    pointer(found.ok_or(Errno::INVALID).map(|(handle, mut init)| {
        init.qp_context = attr.qp_context;
        let plan = Plan { init, pd: core::ptr::null_mut(), create_flags: 0 };
        qp::publish(context, &plan, handle, (None, None)).cast()
    }))
}
