//! Memory windows.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use feroce::{Data, Dest, SendWr};
use feroce_lint::Kind;

use super::object::Object;
use super::pd::Pd;
use super::post;
use super::qp::{Qp, SendSide};
use crate::abi::*;
use crate::errno::{Errno, code, pointer};
use crate::memory;

/// A memory window. The program keeps its key in the public part.
#[repr(C)]
struct Mw {
    public: UnsafeCell<ibv_mw>,
    _mw: feroce::Mw,
}

// SAFETY: the type is `repr(C)`, and its first field is the `UnsafeCell` of the public part.
unsafe impl Object for Mw {
    type C = ibv_mw;

    const KIND: Option<Kind> = Some(Kind::Mw);
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    let Some(kind) = convert::mw_type_of(type_) else { return pointer(Err(Errno::INVALID)) };
    // SAFETY: ibv_alloc_mw(3): `pd` is a live protection domain.
    let domain = unsafe { &Pd::of(pd).pd };
    let made = memory::admit().and_then(|()| Ok(domain.alloc_mw(kind)?));
    // SAFETY: `pd` points to a live object, whose `context` does not change after it was made.
    let context = unsafe { (*pd).context };
    pointer(made.map(|mw| {
        let public = ibv_mw { context, pd, rkey: mw.rkey().0, handle: mw.rkey().0, type_ };
        Mw { public: UnsafeCell::new(public), _mw: mw }.give()
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: ibv_dealloc_mw(3): `mw` is live, and the program does not use it after this call.
    drop(unsafe { Mw::take(mw) });
    0
}

/// Binds a window of type 1, by a work request of our own making.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: ibv_bind_mw(3): `qp` is a live queue pair.
    let qp = unsafe { Qp::behind(qp) };
    // SAFETY: ibv_bind_mw(3): `mw` is a live memory window.
    let ibv_mw { rkey: old, type_, .. } = unsafe { mw.read() };
    // SAFETY: ibv_bind_mw(3): `bind` points to the range that the window shall cover.
    let bind = unsafe { bind.read() };
    if type_ != IBV_MW_TYPE_1 {
        return code(Err(Errno::INVALID));
    }
    let new = old & !0xff | (old.wrapping_add(1) & 0xff);
    let posted = post::bind_mw(old, new, &bind.bind_info).and_then(|op| {
        let (wr_id, flags) = (bind.wr_id, convert::send_flags_of(bind.send_flags));
        let wr = SendWr { wr_id, op, data: Data::EMPTY, flags, dest: Dest::Connected };
        qp.send.with(|SendSide { sender, .. }| {
            let sender = sender.as_mut().ok_or(Errno::INVALID)?;
            Ok(sender.post([wr])?)
        })
    });
    code(posted.map(|()| {
        // SAFETY: `mw` is live. This library sets the new key through the raw pointer, without a
        // reference to the public part.
        unsafe { (*mw).rkey = new };
    }))
}
