//! Conversion of requests, completions and attributes between the engine's types and those of C.

use std::ffi::{c_int, c_uint};

use feroce_abi::*;
use feroce_engine::{
    AddrVec, Cqe, Data, Dest, QpAttr, QpCap, QpState, SendFlags, SendOp, SendWr, Sge, WcFlags,
    WcOpcode, WcStatus,
};
use feroce_mem::{Access, Bind};
use feroce_train::Instant;
use feroce_wire::{Gid, Imm, Lid, Pmtu, Psn, Qkey, Qpn, Rkey};

use crate::describe::{PORT, Plain};

/// Hop limit where none is given.
const HOP_LIMIT: u8 = 64;

/// An element of a list.
#[inline]
pub(crate) fn sge(sge: &Sge) -> ibv_sge {
    ibv_sge { addr: sge.addr, length: sge.len, lkey: sge.lkey.0 }
}

/// A send, without the elements of its list, its neighbour and its address handle; `None` if this
/// library has no such operation, or not here.
#[inline]
pub(crate) fn send_wr(wr: &SendWr) -> Option<ibv_send_wr> {
    let mut out = ibv_send_wr::zeroed();
    out.wr_id = wr.wr_id;
    out.send_flags = send_flags(wr);
    let rdma = |remote: feroce_engine::Remote| ibv_send_wr__wr {
        rdma: ibv_send_wr__wr__rdma { remote_addr: remote.addr, rkey: remote.rkey.0 },
    };
    let atomic = |remote: feroce_engine::Remote, compare_add, swap| ibv_send_wr__wr {
        atomic: ibv_send_wr__wr__atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey.0,
        },
    };
    let imm = |imm: Imm| ibv_send_wr__anon_imm { imm_data: imm.0.to_be() };
    out.opcode = match wr.op {
        SendOp::Send => IBV_WR_SEND,
        SendOp::SendImm(data) => {
            out.imm = imm(data);
            IBV_WR_SEND_WITH_IMM
        }
        SendOp::SendInv(key) => {
            out.imm = ibv_send_wr__anon_imm { invalidate_rkey: key.0 };
            IBV_WR_SEND_WITH_INV
        }
        SendOp::Write(remote) => {
            out.wr = rdma(remote);
            IBV_WR_RDMA_WRITE
        }
        SendOp::WriteImm(remote, data) => {
            (out.wr, out.imm) = (rdma(remote), imm(data));
            IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read(remote) => {
            out.wr = rdma(remote);
            IBV_WR_RDMA_READ
        }
        SendOp::CmpSwap { remote, compare, swap } => {
            out.wr = atomic(remote, compare, swap);
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { remote, add } => {
            out.wr = atomic(remote, add, 0);
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::AtomicWrite(remote) => {
            out.wr = rdma(remote);
            IBV_WR_ATOMIC_WRITE
        }
        SendOp::LocalInv(key) => {
            out.imm = ibv_send_wr__anon_imm { invalidate_rkey: key.0 };
            IBV_WR_LOCAL_INV
        }
        SendOp::BindMw { .. } | SendOp::Flush { .. } | SendOp::Reg { .. } => return None,
    };
    if let Dest::Ud { qpn, qkey, .. } = wr.dest {
        let ud = ibv_send_wr__wr__ud {
            ah: std::ptr::null_mut(),
            remote_qpn: qpn.get(),
            remote_qkey: qkey.0,
        };
        out.wr = ibv_send_wr__wr { ud };
    }
    Some(out)
}

/// Modifiers of a send.
pub(crate) fn send_flags(wr: &SendWr) -> c_uint {
    let mut flags = 0;
    for (ours, theirs) in [
        (SendFlags::SIGNALED, IBV_SEND_SIGNALED),
        (SendFlags::SOLICITED, IBV_SEND_SOLICITED),
        (SendFlags::FENCE, IBV_SEND_FENCE),
    ] {
        if wr.flags.contains(ours) {
            flags |= theirs;
        }
    }
    if matches!(wr.data, Data::Inline(_)) { flags | IBV_SEND_INLINE } else { flags }
}

/// What a window is to cover.
pub(crate) fn bind_info(binding: &Bind, mr: *mut ibv_mr) -> ibv_mw_bind_info {
    let mut access = binding.access;
    access.set(Access::ZERO_BASED, binding.zero_based);
    ibv_mw_bind_info { mr, addr: binding.addr, length: binding.len, mw_access_flags: access.bits() }
}

/// A completion.
#[inline]
pub(crate) fn cqe(wc: &ibv_wc, now: Instant) -> Cqe {
    let opcode = match wc.opcode {
        IBV_WC_RDMA_WRITE => WcOpcode::Write,
        IBV_WC_RDMA_READ => WcOpcode::Read,
        IBV_WC_COMP_SWAP => WcOpcode::CmpSwap,
        IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        IBV_WC_BIND_MW => WcOpcode::BindMw,
        IBV_WC_LOCAL_INV => WcOpcode::LocalInv,
        IBV_WC_FLUSH => WcOpcode::Flush,
        IBV_WC_ATOMIC_WRITE => WcOpcode::AtomicWrite,
        IBV_WC_RECV => WcOpcode::Recv,
        IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvWriteImm,
        // The library need not report the opcode of a request that failed.
        _ => WcOpcode::Send,
    };
    // SAFETY: both members of the union are integers, for which every bit pattern is valid.
    let word = unsafe { wc.imm.imm_data };
    Cqe {
        flags: WcFlags::from_bits_truncate(wc.wc_flags as u8),
        byte_len: wc.byte_len,
        imm: Imm(u32::from_be(word)),
        invalidated: Rkey(word),
        src_qp: Qpn::new(wc.src_qp),
        sl: wc.sl,
        ..Cqe::new(wc.wr_id, Qpn::new(wc.qp_num), opcode, status(wc.status), now)
    }
}

/// The outcome. A status of a service that the engine does not have becomes the closest status
/// that it has.
fn status(status: ibv_wc_status) -> WcStatus {
    match status {
        IBV_WC_SUCCESS => WcStatus::Success,
        IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        IBV_WC_MW_BIND_ERR => WcStatus::MwBind,
        IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR => WcStatus::RemoteInvalidRequest,
        IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR => WcStatus::RemoteOperation,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        _ => WcStatus::LocalQpOperation,
    }
}

/// An address vector.
pub(crate) fn ah_attr(av: &AddrVec) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: u8::try_from(av.sgid_index).unwrap_or(u8::MAX),
            hop_limit: if av.hop_limit == 0 { HOP_LIMIT } else { av.hop_limit },
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid.0,
        sl: av.sl,
        is_global: u8::from(!av.dgid.is_zero()),
        port_num: PORT,
        ..ibv_ah_attr::zeroed()
    }
}

pub(crate) fn addr_vec(attr: &ibv_ah_attr) -> AddrVec {
    let grh = &attr.grh;
    AddrVec {
        // SAFETY: every bit pattern is an address.
        dgid: Gid(unsafe { grh.dgid.raw }),
        sgid_index: grh.sgid_index.into(),
        flow_label: grh.flow_label,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        sl: attr.sl,
        dlid: Lid(attr.dlid),
    }
}

/// Attributes to set. The bits of the mask are the same in the engine and in C.
pub(crate) fn qp_attr(attr: &QpAttr) -> (ibv_qp_attr, c_int) {
    let mut out = ibv_qp_attr::zeroed();
    out.qp_state = attr.state.unwrap_or_default() as c_uint;
    out.cur_qp_state = attr.cur_state.unwrap_or_default() as c_uint;
    out.en_sqd_async_notify = attr.sqd_notify.unwrap_or(false).into();
    out.qp_access_flags = attr.access.unwrap_or_default().bits();
    out.pkey_index = attr.pkey_index.unwrap_or(0);
    out.port_num = attr.port.unwrap_or(0);
    out.qkey = attr.qkey.unwrap_or_default().0;
    out.ah_attr = attr.av.as_ref().map_or(out.ah_attr, ah_attr);
    out.path_mtu = attr.path_mtu.map_or(0, |mtu| mtu.code().into());
    out.timeout = attr.timeout.unwrap_or(0);
    out.retry_cnt = attr.retry_cnt.unwrap_or(0);
    out.rnr_retry = attr.rnr_retry.unwrap_or(0);
    out.rq_psn = attr.rq_psn.unwrap_or_default().get();
    out.sq_psn = attr.sq_psn.unwrap_or_default().get();
    out.max_rd_atomic = attr.max_rd_atomic.unwrap_or(0);
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic.unwrap_or(0);
    out.min_rnr_timer = attr.min_rnr_timer.unwrap_or(0);
    out.dest_qp_num = attr.dest_qpn.unwrap_or_default().get();
    out.alt_ah_attr = attr.alt_path.as_ref().map_or(out.alt_ah_attr, ah_attr);
    (out, attr.mask().bits().cast_signed())
}

/// Attributes that a query returned.
pub(crate) fn shown(attr: &ibv_qp_attr) -> QpAttr {
    let state = |code: ibv_qp_state| QpState::from_u8(u8::try_from(code).unwrap_or(u8::MAX));
    QpAttr {
        state: Some(state(attr.qp_state)),
        cur_state: Some(state(attr.cur_qp_state)),
        sqd_notify: Some(attr.sq_draining != 0),
        access: Some(Access::from_bits_truncate(attr.qp_access_flags)),
        pkey_index: Some(attr.pkey_index),
        port: Some(attr.port_num),
        qkey: Some(Qkey(attr.qkey)),
        av: Some(addr_vec(&attr.ah_attr)),
        path_mtu: u8::try_from(attr.path_mtu).ok().and_then(Pmtu::from_code),
        timeout: Some(attr.timeout),
        retry_cnt: Some(attr.retry_cnt),
        rnr_retry: Some(attr.rnr_retry),
        rq_psn: Some(Psn::new(attr.rq_psn)),
        max_rd_atomic: Some(attr.max_rd_atomic),
        max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
        min_rnr_timer: Some(attr.min_rnr_timer),
        sq_psn: Some(Psn::new(attr.sq_psn)),
        dest_qpn: Some(Qpn::new(attr.dest_qp_num)),
        alt_path: None,
    }
}

/// Attributes of which only those count that the mask names.
pub(crate) fn masked(attr: &ibv_qp_attr, mask: c_int) -> QpAttr {
    let mask = mask.cast_unsigned();
    let all = shown(attr);
    macro_rules! given {
        ($($member:ident: $bit:ident,)*) => {
            QpAttr {
                $($member: all.$member.filter(|_| mask & $bit != 0),)*
                ..QpAttr::default()
            }
        };
    }
    given! {
        state: IBV_QP_STATE,
        access: IBV_QP_ACCESS_FLAGS,
        pkey_index: IBV_QP_PKEY_INDEX,
        port: IBV_QP_PORT,
        qkey: IBV_QP_QKEY,
        av: IBV_QP_AV,
        path_mtu: IBV_QP_PATH_MTU,
        timeout: IBV_QP_TIMEOUT,
        retry_cnt: IBV_QP_RETRY_CNT,
        rnr_retry: IBV_QP_RNR_RETRY,
        rq_psn: IBV_QP_RQ_PSN,
        max_rd_atomic: IBV_QP_MAX_QP_RD_ATOMIC,
        max_dest_rd_atomic: IBV_QP_MAX_DEST_RD_ATOMIC,
        min_rnr_timer: IBV_QP_MIN_RNR_TIMER,
        sq_psn: IBV_QP_SQ_PSN,
        dest_qpn: IBV_QP_DEST_QPN,
    }
}

/// Sizes of queues.
pub(crate) fn cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}

/// Sizes of queues that the driver granted, converted back.
pub(crate) fn granted(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}
