//! Completions, as C sees them.

use core::ffi::c_uint;

use feroce::{Cqe, WcFlags, WcOpcode, WcStatus};

use crate::abi::*;

/// A completion for `ibv_poll_cq`.
#[inline]
pub(crate) fn completion(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status as c_uint,
        opcode: opcode(cqe.opcode),
        vendor_err: vendor_error(cqe),
        byte_len: cqe.byte_len,
        imm: if cqe.flags.contains(WcFlags::WITH_INV) {
            ibv_wc__anon_imm { invalidated_rkey: cqe.invalidated.0 }
        } else {
            ibv_wc__anon_imm { imm_data: cqe.imm.0.to_be() }
        },
        qp_num: cqe.qpn.get(),
        src_qp: cqe.src_qp.get(),
        wc_flags: cqe.flags.bits().into(),
        pkey_index: 0,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: 0,
    }
}

/// The operation.
#[inline]
pub(crate) fn opcode(opcode: WcOpcode) -> ibv_wc_opcode {
    match opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::CmpSwap => IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::BindMw => IBV_WC_BIND_MW,
        WcOpcode::LocalInv => IBV_WC_LOCAL_INV,
        // Verbs for programs have no fast registration.
        WcOpcode::Reg => IBV_WC_DRIVER1,
        WcOpcode::Flush => IBV_WC_FLUSH,
        WcOpcode::AtomicWrite => IBV_WC_ATOMIC_WRITE,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// What a vendor would say about an error; we have nothing beyond the status.
#[inline]
pub(crate) fn vendor_error(cqe: &Cqe) -> u32 {
    if cqe.status == WcStatus::Success { 0 } else { cqe.status as u32 }
}
