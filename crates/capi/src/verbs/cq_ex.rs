//! Extended completion queues: one completion at a time, of which the program reads what it needs.

use core::ffi::{c_int, c_uint};

use feroce::{Cqe, WcFlags};
use feroce_lint as lint;

use super::context::Context;
use super::cq::{Cq, Plan};
use super::object::Object;
use super::wc;
use crate::abi::*;
use crate::errno::{Errno, pointer};

/// Where a program is in polling an extended queue.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// The completion that it looks at.
    current: Option<Cqe>,
    /// When timestamps began, in nanoseconds since 1970.
    epoch_ns: u64,
}

/// What completions of an extended queue can carry.
const WC_FLAGS: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: an open context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: the program gives attributes.
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
        // SAFETY: just made, and nobody else has it yet.
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
/// `public` is an extended queue of the program, which this thread polls.
#[inline]
unsafe fn polling<'a>(public: *mut ibv_cq_ex) -> &'a mut Polling {
    // SAFETY: as the caller says.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: this thread holds the lock since it began to poll.
    unsafe { cq.polling.held() }
}

/// Makes a completion the one that the program looks at.
///
/// # Safety
/// `public` is an extended queue of the program, which this thread polls.
#[inline]
unsafe fn show(public: *mut ibv_cq_ex, cqe: Option<Cqe>) -> c_int {
    let Some(cqe) = cqe else { return libc::ENOENT };
    if lint::is_on() {
        // SAFETY: as the caller says.
        lint::completed(unsafe { (*public).context }.addr(), &cqe);
    }
    // SAFETY: as the caller says.
    unsafe { (*public).wr_id = cqe.wr_id };
    // SAFETY: as the caller says.
    unsafe { (*public).status = cqe.status as c_uint };
    // SAFETY: as the caller says.
    let polling = unsafe { polling(public) };
    polling.current = Some(cqe);
    0
}

unsafe extern "C" fn start_poll(public: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program gives attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: an extended queue of the program.
    let cq = unsafe { Cq::of(public) };
    cq.polling.hold();
    // SAFETY: locked just now.
    let shown = unsafe { show(public, cq.cq.poll_one()) };
    if shown != 0 {
        // SAFETY: locked above; a program that found nothing does not end.
        unsafe { cq.polling.release() };
    }
    shown
}

unsafe extern "C" fn next_poll(public: *mut ibv_cq_ex) -> c_int {
    // SAFETY: an extended queue of the program.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: the program began to poll, and has not ended.
    unsafe { show(public, cq.cq.take_one()) }
}

unsafe extern "C" fn end_poll(public: *mut ibv_cq_ex) {
    // SAFETY: an extended queue of the program.
    let cq = unsafe { Cq::of(public) };
    // SAFETY: the program began to poll, so this thread has the lock.
    unsafe { cq.polling.release() };
}

/// Reads something of the completion that the program looks at; `T::default()` if there is none.
///
/// # Safety
/// `public` is an extended queue of the program, which this thread polls.
#[inline]
unsafe fn read<T: Default>(public: *mut ibv_cq_ex, f: impl FnOnce(&Cqe) -> T) -> T {
    // SAFETY: as the caller says.
    let polling = unsafe { polling(public) };
    polling.current.as_ref().map(f).unwrap_or_default()
}

/// Defines functions that read one thing each.
macro_rules! readers {
    ($($name:ident: $type:ty = |$cqe:pat_param| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(public: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program polls the queue.
            unsafe { read(public, |$cqe: &Cqe| $value) }
        })*
    };
}

readers! {
    read_opcode: ibv_wc_opcode = |cqe| wc::opcode(cqe.opcode);
    read_vendor_err: u32 = |cqe| wc::vendor_error(cqe);
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
    read_slid: u32 = |_| 0;
    read_sl: u8 = |cqe| cqe.sl;
    read_dlid_path_bits: u8 = |_| 0;
    read_completion_ts: u64 = |cqe| cqe.timestamp.as_nanos();
}

unsafe extern "C" fn read_wallclock_ns(public: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program polls the queue.
    let polling = unsafe { polling(public) };
    polling.current.map_or(0, |cqe| polling.epoch_ns.wrapping_add(cqe.timestamp.as_nanos()))
}
