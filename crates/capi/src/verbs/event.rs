//! Asynchronous events.

use core::ffi::c_int;

use feroce::{AsyncEvent, CqId, Qpn, SrqId};
use feroce_lint as lint;

use super::context::Context;
use super::cq::Cq;
use super::object::Object;
use super::qp::Qp;
use super::registry::Tables;
use super::srq::Srq;
use super::wait;
use crate::abi::*;
use crate::errno::status;

/// May be cancelled while it waits: see [`wait`].
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        // SAFETY: ibv_get_async_event(3): `context` is a live context.
        let context = unsafe { Context::behind(context) };
        if let Some(found) = next(context) {
            // SAFETY: ibv_get_async_event(3): `event` points to room for the event.
            unsafe { event.write(found) };
            return 0;
        }
        // SAFETY: the context is live; only the field `async_fd` is read, without a reference.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        if let Err(errno) = wait::until_readable(fd) {
            return status(Err(errno));
        }
    }
}

/// The next event whose object still exists.
fn next(context: &Context) -> Option<ibv_async_event> {
    loop {
        let event = context.adapter().try_async_event()?;
        if lint::is_on()
            && let AsyncEvent::QpAccessError(qpn) = event
        {
            let (context, qpn) = (context.as_ptr().addr(), qpn.get());
            lint::access_refused_here(lint::Name { context, qpn });
        }
        let tables = context.registry.lock();
        if let Some((element, event_type)) = translate(&tables, &event) {
            return Some(ibv_async_event { element, event_type });
        }
    }
}

fn translate(
    tables: &Tables,
    event: &AsyncEvent,
) -> Option<(ibv_async_event__element, ibv_event_type)> {
    let (event_type, element) = convert::async_event(event);
    let element = match element {
        convert::Element::Cq(cq) => of_cq(tables, cq)?,
        convert::Element::Qp(qp) => of_qp(tables, qp)?,
        convert::Element::Srq(srq) => of_srq(tables, srq)?,
        convert::Element::Port => ibv_async_event__element { port_num: 1 },
    };
    Some((element, event_type))
}

fn of_cq(tables: &Tables, id: CqId) -> Option<ibv_async_event__element> {
    // SAFETY: the object is in the tables, which this thread has locked; its destructor removes it
    // from there before it frees it.
    let cq: &Cq = unsafe { tables.cqs.get(&id)?.get() };
    cq.async_acks.deliver();
    Some(ibv_async_event__element { cq: cq.as_ptr() })
}

fn of_qp(tables: &Tables, qpn: Qpn) -> Option<ibv_async_event__element> {
    // SAFETY: the object is in the tables, which this thread has locked; its destructor removes it
    // from there before it frees it.
    let qp: &Qp = unsafe { tables.qps.get(&qpn)?.get() };
    qp.acks.deliver();
    Some(ibv_async_event__element { qp: qp.as_ptr() })
}

fn of_srq(tables: &Tables, id: SrqId) -> Option<ibv_async_event__element> {
    // SAFETY: the object is in the tables, which this thread has locked; its destructor removes it
    // from there before it frees it.
    let srq: &Srq = unsafe { tables.srqs.get(&id)?.get() };
    srq.acks.deliver();
    Some(ibv_async_event__element { srq: srq.public() })
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: ibv_ack_async_event(3): `event` points to an event that ibv_get_async_event(3)
    // returned.
    let ibv_async_event { element, event_type } = unsafe { event.read() };
    match event_type {
        IBV_EVENT_CQ_ERR => {
            // SAFETY: the type of the event says which member of the union this library has set.
            let cq = unsafe { element.cq };
            // SAFETY: the destructor of the object waits until the program has acknowledged its
            // events, so the object is live.
            unsafe { Cq::behind(cq) }.async_acks.ack(1);
        }
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: the type of the event says which member of the union this library has set.
            let qp = unsafe { element.qp };
            // SAFETY: the destructor of the object waits until the program has acknowledged its
            // events, so the object is live.
            unsafe { Qp::behind(qp) }.acks.ack(1);
        }
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: the type of the event says which member of the union this library has set.
            let srq = unsafe { element.srq };
            // SAFETY: the destructor of the object waits until the program has acknowledged its
            // events, so the object is live.
            unsafe { Srq::of(srq) }.acks.ack(1);
        }
        _ => {}
    }
}
