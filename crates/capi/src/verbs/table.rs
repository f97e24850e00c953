//! Opening a device: the table of calls behind `ibv_context`, which names the calls of all objects
//! and so stands above them.

use super::context::Context;
use super::device::Device;
use super::object::Object;
use super::{cq, cq_ex, dm, mr, mw, pd, post, qp_ex, query, xrc};
use crate::abi::*;
use crate::errno::pointer;
use crate::zeroed::Zeroed;

/// A context with the calls that inline functions of `verbs.h` make through it, and nothing else.
pub(super) fn calls() -> verbs_context {
    let mut verbs = verbs_context::zeroed();
    let ops = &mut verbs.context.ops;
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
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
    verbs.create_qp_ex = Some(qp_ex::create_qp_ex);
    verbs
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: ibv_open_device(3): `device` is a device of a list that this library made; it never
    // frees devices.
    let device = unsafe { Device::of(device) };
    pointer(Context::open(device, calls()))
}
