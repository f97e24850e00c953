//! Extended completion queues: one completion at a time, of which the program reads what it needs.

use core::ffi::{c_int, c_uint};

use feroce::{Cqe, WcFlags};
use feroce_lint as lint;

use super::context::Context;
use super::cq::{Cq, Plan, Polling};
use super::object::Object;
use crate::abi::*;
use crate::errno::{Errno, pointer};

/// What completions of an extended queue can carry.
const WC_FLAGS: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: ibv_create_cq_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_create_cq_ex(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    pointer(check(&attr).and_then(|()| {
        let plan = Plan {
            depth: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
        };
        let polling = Polling { current: None, epoch_ns: context.adapter().epoch_ns() };
        let public = Cq::create(context, &plan, polling)?;
        // SAFETY: this function has made the object, and neither the program nor another thread has
        // it yet.
        fill_calls(unsafe { &mut *public }, attr.wc_flags);
        Ok(public)
    }))
}

fn check(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    const MASK: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if attr.comp_mask & !MASK != 0 || flags & !FLAGS != 0 || attr.wc_flags & !WC_FLAGS != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(())
}

/// Calls that inline functions of `verbs.h` make through the queue: those that were asked for.
fn fill_calls(cq: &mut ibv_cq_ex, wc_flags: u64) {
    let wanted = |flag: c_uint| wc_flags & u64::from(flag) != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = wanted(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    cq.read_imm_data = wanted(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    cq.read_qp_num = wanted(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    cq.read_src_qp = wanted(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    cq.read_slid = wanted(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    cq.read_sl = wanted(IBV_WC_EX_WITH_SL).then_some(read_sl);
    cq.read_dlid_path_bits = wanted(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    cq.read_completion_ts =
        wanted(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    cq.read_completion_wallclock_ns =
        wanted(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock_ns);
}

/// Where the program is in polling.
///
/// # Safety
/// `public` is a live extended completion queue, and this thread is between ibv_start_poll(3) and
/// ibv_end_poll(3) of it.
#[inline]
unsafe fn polling<'a>(public: *mut ibv_cq_ex) -> &'a mut Polling {
    // SAFETY: by this function's contract, `public` is a live extended completion queue, and this
    // thread is between ibv_start_poll(3) and ibv_end_poll(3) of it.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: by this function's contract this thread holds the lock, which ibv_start_poll(3) took.
    unsafe { cq.polling.held() }
}

/// Makes a completion the one that the program looks at.
///
/// # Safety
/// As for [`polling`].
#[inline]
unsafe fn show(public: *mut ibv_cq_ex, cqe: Option<Cqe>) -> c_int {
    let Some(cqe) = cqe else { return libc::ENOENT };
    if lint::is_on() {
        // SAFETY: by this function's contract `public` points to a live object, whose `context`
        // does not change after it was made.
        lint::completed(unsafe { (*public).context }.addr(), &cqe);
    }
    // SAFETY: by this function's contract `public` points to a live object. This library sets
    // `wr_id` through the raw pointer, without a reference to the public part.
    unsafe { (*public).wr_id = cqe.wr_id };
    // SAFETY: by this function's contract `public` points to a live object. This library sets
    // `status` through the raw pointer, without a reference to the public part.
    unsafe { (*public).status = convert::wc_status(cqe.status) };
    // SAFETY: this function has the contract of `polling`.
    let polling = unsafe { polling(public) };
    polling.current = Some(cqe);
    0
}

unsafe extern "C" fn start_poll(public: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: ibv_start_poll(3): `attr` points to attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: ibv_start_poll(3): `public` is a live extended completion queue.
    let cq = unsafe { Cq::of(public) };
    cq.polling.hold();
    // SAFETY: `hold` above has taken the lock for this thread.
    let shown = unsafe { show(public, cq.cq.poll_one()) };
    if shown != 0 {
        // SAFETY: locked above; a program that found nothing does not end.
        unsafe { cq.polling.release() };
    }
    shown
}

unsafe extern "C" fn next_poll(public: *mut ibv_cq_ex) -> c_int {
    // SAFETY: ibv_next_poll(3): `public` is a live extended completion queue.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: ibv_next_poll(3): the program calls it between ibv_start_poll(3) and ibv_end_poll(3),
    // so this thread holds the lock of the poller.
    unsafe { show(public, cq.cq.take_one()) }
}

unsafe extern "C" fn end_poll(public: *mut ibv_cq_ex) {
    // SAFETY: ibv_end_poll(3): `public` is a live extended completion queue.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: the program began to poll, so this thread has the lock.
    unsafe { cq.polling.release() };
}

/// Reads something of the completion that the program looks at; `T::default()` if there is none.
///
/// # Safety
/// As for [`polling`].
#[inline]
unsafe fn read<T: Default>(public: *mut ibv_cq_ex, f: impl FnOnce(&Cqe) -> T) -> T {
    // SAFETY: this function has the contract of `polling`.
    let polling = unsafe { polling(public) };
    polling.current.as_ref().map(f).unwrap_or_default()
}

/// Defines functions that read one thing each.
macro_rules! readers {
    ($($name:ident: $type:ty = |$cqe:pat_param| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(public: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program calls this between ibv_start_poll(3) and ibv_end_poll(3), so this
            // thread holds the lock of the poller.
            unsafe { read(public, |$cqe: &Cqe| $value) }
        })*
    };
}

readers! {
    read_opcode: ibv_wc_opcode = |cqe| convert::wc_opcode(cqe.opcode);
    read_vendor_err: u32 = |cqe| convert::wc_status(cqe.status);
    read_byte_len: u32 = |cqe| cqe.byte_len;
    read_imm_data: be32 = |cqe| if cqe.flags.contains(WcFlags::WITH_INV) {
        // One of the two is in this place; the key is not in network order.
        cqe.invalidated.0
    } else {
        cqe.imm.0.to_be()
    };
    read_qp_num: u32 = |cqe| cqe.qpn.get();
    read_src_qp: u32 = |cqe| cqe.src_qp.get();
    read_wc_flags: c_uint = |cqe| cqe.flags.bits().into();
    read_slid: u32 = |cqe| cqe.slid.0.into();
    read_sl: u8 = |cqe| cqe.sl;
    read_dlid_path_bits: u8 = |cqe| cqe.dlid_path_bits;
    read_completion_ts: u64 = |cqe| cqe.timestamp.as_nanos();
}

unsafe extern "C" fn read_wallclock_ns(public: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program calls this between ibv_start_poll(3) and ibv_end_poll(3), so this thread
    // holds the lock of the poller.
    let polling = unsafe { polling(public) };
    polling.current.map_or(0, |cqe| polling.epoch_ns.wrapping_add(cqe.timestamp.as_nanos()))
}
