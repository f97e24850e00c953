//! Completions.

use feroce_engine::{Cqe, WcFlags, WcOpcode, WcStatus};
use feroce_train::Instant;
use feroce_wire::{Imm, Lid, Qpn, Rkey};

use super::table;
use crate::*;

table! {
    /// The operation of a completion. Verbs for programs have no fast registration.
    WcOpcode, ibv_wc_opcode: wc_opcode, wc_opcode_of {
        Send = IBV_WC_SEND,
        Write = IBV_WC_RDMA_WRITE,
        Read = IBV_WC_RDMA_READ,
        CmpSwap = IBV_WC_COMP_SWAP,
        FetchAdd = IBV_WC_FETCH_ADD,
        BindMw = IBV_WC_BIND_MW,
        LocalInv = IBV_WC_LOCAL_INV,
        Reg = IBV_WC_DRIVER1,
        Flush = IBV_WC_FLUSH,
        AtomicWrite = IBV_WC_ATOMIC_WRITE,
        Recv = IBV_WC_RECV,
        RecvWriteImm = IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

table! {
    /// The outcome of a request.
    WcStatus, ibv_wc_status: wc_status, wc_status_of {
        Success = IBV_WC_SUCCESS,
        LocalLength = IBV_WC_LOC_LEN_ERR,
        LocalQpOperation = IBV_WC_LOC_QP_OP_ERR,
        LocalProtection = IBV_WC_LOC_PROT_ERR,
        Flushed = IBV_WC_WR_FLUSH_ERR,
        MwBind = IBV_WC_MW_BIND_ERR,
        BadResponse = IBV_WC_BAD_RESP_ERR,
        LocalAccess = IBV_WC_LOC_ACCESS_ERR,
        RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR,
        RemoteAccess = IBV_WC_REM_ACCESS_ERR,
        RemoteOperation = IBV_WC_REM_OP_ERR,
        RetryExceeded = IBV_WC_RETRY_EXC_ERR,
        RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR,
    }
}

/// A completion. There is nothing to say beyond the status, so `vendor_err` repeats it.
#[inline]
pub fn wc(cqe: &Cqe) -> ibv_wc {
    let status = wc_status(cqe.status);
    ibv_wc {
        wr_id: cqe.wr_id,
        status,
        opcode: wc_opcode(cqe.opcode),
        vendor_err: status,
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
        slid: cqe.slid.0,
        sl: cqe.sl,
        dlid_path_bits: cqe.dlid_path_bits,
    }
}

/// A completion at the time `now`. `word` is the immediate data or the key of the completion, as
/// it is in memory.
///
/// The opcode of a request that failed need not be valid; a number without a name becomes
/// `Send`. A status of a service that the engine does not have becomes the closest one.
#[inline]
pub fn cqe(wc: &ibv_wc, word: u32, now: Instant) -> Cqe {
    let status = wc_status_of(wc.status).unwrap_or(match wc.status {
        IBV_WC_REM_INV_RD_REQ_ERR => WcStatus::RemoteInvalidRequest,
        IBV_WC_REM_ABORT_ERR => WcStatus::RemoteOperation,
        IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        _ => WcStatus::LocalQpOperation,
    });
    let opcode = wc_opcode_of(wc.opcode).unwrap_or(WcOpcode::Send);
    Cqe {
        flags: WcFlags::from_bits_truncate(wc.wc_flags as u8),
        byte_len: wc.byte_len,
        imm: Imm(u32::from_be(word)),
        invalidated: Rkey(word),
        src_qp: Qpn::new(wc.src_qp),
        slid: Lid(wc.slid),
        sl: wc.sl,
        dlid_path_bits: wc.dlid_path_bits,
        ..Cqe::new(wc.wr_id, Qpn::new(wc.qp_num), opcode, status, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_comes_back_as_it_was() {
        let now = Instant::from_nanos(7);
        let plain = Cqe::new(3, Qpn::new(17), WcOpcode::Recv, WcStatus::Success, now);
        let filled = Cqe { byte_len: 4096, src_qp: Qpn::new(18), sl: 2, ..plain };
        let (imm, invalidated) = (Imm(0x0102_0304), Rkey(0x0403_0201));
        for (flags, word) in
            [(WcFlags::WITH_IMM, imm.0.to_be()), (WcFlags::WITH_INV, invalidated.0)]
        {
            let one = Cqe { flags, imm, invalidated, ..filled };
            let back = cqe(&wc(&one), word, now);
            assert_eq!((back.flags, back.byte_len, back.src_qp), (flags, 4096, one.src_qp));
            assert_eq!((back.wr_id, back.qpn, back.sl), (3, one.qpn, 2));
            match flags {
                WcFlags::WITH_IMM => assert_eq!(back.imm, imm),
                _ => assert_eq!(back.invalidated, invalidated),
            }
        }
    }

    #[test]
    fn what_the_engine_does_not_know_becomes_what_is_closest() {
        let now = Instant::from_nanos(7);
        let failed = Cqe::new(3, Qpn::new(17), WcOpcode::Read, WcStatus::Flushed, now);
        let with = |status, opcode| cqe(&ibv_wc { status, opcode, ..wc(&failed) }, 0, now);
        assert_eq!(with(IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_READ).status, WcStatus::Flushed);
        assert_eq!(with(IBV_WC_RESP_TIMEOUT_ERR, 0).status, WcStatus::RetryExceeded);
        assert_eq!(with(IBV_WC_FATAL_ERR, 0).status, WcStatus::LocalQpOperation);
        assert_eq!(with(u32::MAX, u32::MAX).opcode, WcOpcode::Send);
    }
}
