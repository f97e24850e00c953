//! Extended queue pairs: sends put together call by call (`ibv_wr_*`).
//!
//! A call that names an operation begins a request and ends the one before; calls that set
//! something complete the request that is open. What cannot be posted is remembered until the
//! end, and then none of the requests since the start is.

use core::ffi::{c_int, c_uint, c_void};
use core::{ptr, slice};

use feroce::{Data, Dest, FlushKind, Imm, Lkey, Remote, Rkey, SendOp, SendWr, Sge, SgeList, Srqn};
use feroce_lint as lint;

use super::context::Context;
use super::object::Object;
use super::qp::{self, Plan, Qp, SendSide};
use super::{post, xrc};
use crate::abi::*;
use crate::errno::{Errno, code, pointer};

const CONNECTED: u64 = (IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_LOCAL_INV) as u64;

const RELIABLE: u64 = CONNECTED
    | (IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_FLUSH
        | IBV_QP_EX_WITH_ATOMIC_WRITE) as u64;

const DATAGRAM: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp_ex(3): `context` is a live context.
    let context = unsafe { Context::behind(context) };
    // SAFETY: ibv_create_qp_ex(3): `init` points to attributes.
    let attr = unsafe { init.read() };
    // SAFETY: the program names objects of its own.
    let made = unsafe { create_extended(context, &attr) };
    pointer(made.map(|public| {
        // SAFETY: this function has made the object, and neither the program nor another thread can
        // destroy it yet.
        let cap = unsafe { Qp::of(public) }.made.cap;
        // SAFETY: ibv_create_qp_ex(3): `init` points to attributes, in which the call updates the
        // sizes.
        unsafe { (*init).cap = cap };
        public.cast()
    }))
}

/// # Safety
/// The objects that the attributes name are live.
unsafe fn create_extended(
    context: &Context,
    attr: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp_ex, Errno> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |bit: u32| attr.comp_mask & bit != 0;
    let create_flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if attr.comp_mask & !KNOWN != 0 || create_flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let operations = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
    if let Some(operations) = operations {
        check(attr.qp_type, operations)?;
    }
    let plan = Plan {
        init: ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        },
        pd: if has(IBV_QP_INIT_ATTR_PD) { attr.pd } else { ptr::null_mut() },
        create_flags,
    };
    if attr.qp_type == IBV_QPT_XRC_RECV {
        let xrcd = if has(IBV_QP_INIT_ATTR_XRCD) { attr.xrcd } else { ptr::null_mut() };
        // SAFETY: by this function's contract, the objects that the attributes name are live.
        return unsafe { xrc::create_target(context, plan, xrcd) };
    }
    // SAFETY: by this function's contract, the objects that the attributes name are live.
    let public = unsafe { qp::create(context, &plan) }?;
    if let Some(operations) = operations {
        // SAFETY: this function has made the object, and neither the program nor another thread has
        // it yet.
        fill_calls(unsafe { &mut *public }, operations);
    }
    Ok(public)
}

/// Whether queue pairs of this type have these operations.
fn check(qp_type: ibv_qp_type, operations: u64) -> Result<(), Errno> {
    let known = match qp_type {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => RELIABLE,
        IBV_QPT_UC => CONNECTED,
        IBV_QPT_UD => DATAGRAM,
        _ => return Err(Errno::UNSUPPORTED),
    };
    if operations & !known == 0 { Ok(()) } else { Err(Errno::UNSUPPORTED) }
}

/// Calls that inline functions of `verbs.h` make through the queue pair: those that were asked
/// for, and those that go with them.
fn fill_calls(qp: &mut ibv_qp_ex, operations: u64) {
    let wanted = |flag: c_uint| operations & u64::from(flag) != 0;
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_ud_addr = (qp.qp_base.qp_type == IBV_QPT_UD).then_some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = (qp.qp_base.qp_type == IBV_QPT_XRC_SEND).then_some(wr_set_xrc_srqn);
    qp.wr_send = wanted(IBV_QP_EX_WITH_SEND).then_some(wr_send);
    qp.wr_send_imm = wanted(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    qp.wr_send_inv = wanted(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv);
    qp.wr_rdma_write = wanted(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    qp.wr_rdma_write_imm = wanted(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    qp.wr_rdma_read = wanted(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = wanted(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add =
        wanted(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add);
    qp.wr_atomic_write = wanted(IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(wr_atomic_write);
    qp.wr_flush = wanted(IBV_QP_EX_WITH_FLUSH).then_some(wr_flush);
    qp.wr_local_inv = wanted(IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv);
    qp.wr_bind_mw = wanted(IBV_QP_EX_WITH_BIND_MW).then_some(wr_bind_mw);
}

impl SendSide {
    /// Puts the open request into the queue.
    fn close(&mut self) {
        let Some(wr) = self.open.take() else { return };
        match self.stage(wr) {
            Ok(()) => self.staged += 1,
            Err(errno) => self.fail(errno),
        }
    }

    /// Takes back what is in the queue since the start.
    fn abort(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.abort();
        }
        if lint::is_on() {
            lint::sends_taken_back(self.name, self.staged);
        }
    }

    /// Remembers the first thing that went wrong.
    fn fail(&mut self, errno: Errno) {
        self.errno.get_or_insert(errno);
    }
}

/// The end of the queue that a program posts to.
///
/// # Safety
/// `public` is a live extended queue pair, and this thread is between ibv_wr_start(3) and
/// ibv_wr_complete(3) or ibv_wr_abort(3) of it.
#[inline]
unsafe fn side<'a>(public: *mut ibv_qp_ex) -> &'a mut SendSide {
    // SAFETY: by this function's contract, `public` is a live extended queue pair, and this thread
    // is between ibv_wr_start(3) and ibv_wr_complete(3) or ibv_wr_abort(3) of it.
    let qp = unsafe { Qp::of(public) };
    // SAFETY: by this function's contract the program has called ibv_wr_start(3) in this thread,
    // which took the lock.
    unsafe { qp.send.held() }
}

/// Ends what `ibv_wr_start` began.
///
/// # Safety
/// As for [`side`]; the reference that it returned is gone.
#[inline]
unsafe fn end(public: *mut ibv_qp_ex) {
    // SAFETY: this function has the contract of `side`; the reference that it returned is gone.
    let qp = unsafe { Qp::of(public) };
    // SAFETY: by this function's contract the program has called ibv_wr_start(3) in this thread,
    // which took the lock.
    unsafe { qp.send.release() };
}

/// Begins a request.
///
/// # Safety
/// As for [`side`].
#[inline]
unsafe fn begin(public: *mut ibv_qp_ex, op: Result<SendOp, Errno>) {
    // SAFETY: this function has the contract of `side`.
    let side = unsafe { side(public) };
    side.close();
    // SAFETY: by this function's contract `public` points to a live object; only the field `wr_id`
    // is read, without a reference.
    let wr_id = unsafe { (*public).wr_id };
    // SAFETY: `public` points to a live object; only the field `wr_flags` is read, without a
    // reference.
    let flags = convert::send_flags_of(unsafe { (*public).wr_flags });
    match op {
        Ok(op) => {
            let dest = Dest::Connected;
            side.open = Some(SendWr { wr_id, op, data: Data::EMPTY, flags, dest });
        }
        Err(errno) => side.fail(errno),
    }
}

/// Completes the open request; without one, the program has made a mistake.
///
/// # Safety
/// As for [`side`].
#[inline]
unsafe fn set(public: *mut ibv_qp_ex, change: impl FnOnce(&mut SendWr) -> Result<(), Errno>) {
    // SAFETY: this function has the contract of `side`.
    let side = unsafe { side(public) };
    let changed = side.open.as_mut().map_or(Err(Errno::INVALID), change);
    if let Err(errno) = changed {
        side.fail(errno);
    }
}

unsafe extern "C" fn wr_start(public: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_start(3): `public` is a live queue pair that ibv_qp_to_qp_ex(3) returned.
    unsafe { Qp::of(public) }.send.hold();
}

unsafe extern "C" fn wr_complete(public: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    let side = unsafe { side(public) };
    side.close();
    let errno = side.errno.take();
    match &mut side.sender {
        Some(sender) if errno.is_none() => sender.submit(),
        _ => side.abort(),
    }
    side.staged = 0;
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { end(public) };
    code(errno.map_or(Ok(()), Err))
}

unsafe extern "C" fn wr_abort(public: *mut ibv_qp_ex) {
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    let side = unsafe { side(public) };
    side.open = None;
    side.errno = None;
    side.abort();
    side.staged = 0;
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { end(public) };
}

/// Defines calls that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {
        $(unsafe extern "C" fn $name(public: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
            // ibv_wr_abort(3), so this thread holds the lock of the send side.
            unsafe { begin(public, Ok($op)) };
        })*
    };
}

/// Memory of the peer.
fn remote(addr: u64, rkey: u32) -> Remote {
    Remote { addr, rkey: Rkey(rkey) }
}

operations! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: be32) => SendOp::SendImm(Imm(u32::from_be(imm)));
    wr_send_inv(key: u32) => SendOp::SendInv(Rkey(key));
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write(remote(addr, rkey));
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: be32) =>
        SendOp::WriteImm(remote(addr, rkey), Imm(u32::from_be(imm)));
    wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read(remote(addr, rkey));
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        SendOp::CmpSwap { remote: remote(addr, rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) =>
        SendOp::FetchAdd { remote: remote(addr, rkey), add };
    wr_local_inv(key: u32) => SendOp::LocalInv(Rkey(key));
}

/// The eight bytes come with the call.
unsafe extern "C" fn wr_atomic_write(
    public: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    word: *const c_void,
) {
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { begin(public, Ok(SendOp::AtomicWrite(remote(addr, rkey)))) };
    // SAFETY: ibv_wr_atomic_write(3): `word` points to eight bytes.
    let bytes = unsafe { post::gather([(word.expose_provenance(), 8)].into_iter(), 8) };
    let data = bytes.map(Data::Inline);
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, |wr| data.map(|data| wr.data = data)) };
}

unsafe extern "C" fn wr_flush(
    public: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let has = |flag: c_uint| c_uint::from(placement) & flag != 0;
    let kind = FlushKind {
        global: has(IBV_FLUSH_GLOBAL),
        persistent: has(IBV_FLUSH_PERSISTENT),
        whole_region: c_uint::from(level) == IBV_FLUSH_MR,
    };
    let len = u32::try_from(len).map_err(|_| Errno::INVALID);
    let op = len.map(|len| SendOp::Flush { remote: remote(addr, rkey), len, kind });
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { begin(public, op) };
}

unsafe extern "C" fn wr_bind_mw(
    public: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: ibv_wr_bind_mw(3): `mw` is a live memory window.
    let old = unsafe { (*mw).rkey };
    // SAFETY: ibv_wr_bind_mw(3): `info` points to the range that the window shall cover.
    let op = post::bind_mw(old, rkey, &unsafe { info.read() });
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { begin(public, op) };
}

unsafe extern "C" fn wr_set_ud_addr(public: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: ibv_wr_set_ud_addr(3): `ah` is a live address handle.
    let dest = unsafe { post::datagram(ah, qpn, qkey) };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, |wr| dest.map(|dest| wr.dest = dest)) };
}

unsafe extern "C" fn wr_set_xrc_srqn(public: *mut ibv_qp_ex, srqn: u32) {
    let change = |wr: &mut SendWr| {
        wr.dest = Dest::Xrc(Srqn::new(srqn));
        Ok(())
    };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, change) };
}

unsafe extern "C" fn wr_set_sge(public: *mut ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    let change = |wr: &mut SendWr| {
        wr.data = Data::Sges(SgeList::from(Sge { addr, len, lkey: Lkey(lkey) }));
        Ok(())
    };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, change) };
}

unsafe extern "C" fn wr_set_sge_list(public: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: ibv_wr_set_sge_list(3): `list` points to `count` elements.
    let data = Data::Sges(unsafe { post::sges(list, count) });
    let change = |wr: &mut SendWr| {
        wr.data = data;
        Ok(())
    };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, change) };
}

unsafe extern "C" fn wr_set_inline_data(public: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    // SAFETY: ibv_wr_set_inline_data(3): `public` is a live queue pair that ibv_qp_to_qp_ex(3)
    // returned.
    let most = unsafe { Qp::of(public) }.max_inline;
    // SAFETY: ibv_wr_set_inline_data(3): `addr` points to `len` bytes.
    let bytes = unsafe { post::gather([(addr.expose_provenance(), len)].into_iter(), most) };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, |wr| bytes.map(|bytes| wr.data = Data::Inline(bytes))) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    public: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: ibv_wr_set_inline_data_list(3): `public` is a live queue pair that ibv_qp_to_qp_ex(3)
    // returned.
    let most = unsafe { Qp::of(public) }.max_inline;
    let list = if count == 0 {
        &[]
    } else {
        // SAFETY: ibv_wr_set_inline_data_list(3): `list` points to `count` elements.
        unsafe { slice::from_raw_parts(list, count) }
    };
    let pieces = list.iter().map(|piece| (piece.addr.expose_provenance(), piece.length));
    // SAFETY: ibv_wr_set_inline_data_list(3): each element describes readable memory.
    let bytes = unsafe { post::gather(pieces, most) };
    // SAFETY: the program calls this between ibv_wr_start(3) and ibv_wr_complete(3) or
    // ibv_wr_abort(3), so this thread holds the lock of the send side.
    unsafe { set(public, |wr| bytes.map(|bytes| wr.data = Data::Inline(bytes))) };
}

/// The extended queue pair, if it was made as one.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(public: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended: *mut ibv_qp_ex = public.cast();
    // SAFETY: every queue pair of ours is an extended one underneath.
    let start = unsafe { (*extended).wr_start };
    if start.is_some() { extended } else { ptr::null_mut() }
}
