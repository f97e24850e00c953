//! Work requests.

use core::ffi::c_uint;
use core::ptr;

use feroce_engine::{Data, Dest, Remote, SendFlags, SendOp, SendWr, Sge};
use feroce_mem::{Access, Bind};
use feroce_wire::{Imm, Lkey, Rkey};

use crate::*;

/// A scatter/gather element.
#[inline]
pub fn sge(sge: &Sge) -> ibv_sge {
    ibv_sge { addr: sge.addr, length: sge.len, lkey: sge.lkey.0 }
}

/// A scatter/gather element.
#[inline]
pub fn sge_of(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, len: sge.length, lkey: Lkey(sge.lkey) }
}

/// Modifiers of a send that have the same meaning in both. Inline data is a kind of data in
/// feroce, and checksums of IP belong to raw packets.
const FLAGS: [(SendFlags, c_uint); 3] = [
    (SendFlags::SIGNALED, IBV_SEND_SIGNALED),
    (SendFlags::SOLICITED, IBV_SEND_SOLICITED),
    (SendFlags::FENCE, IBV_SEND_FENCE),
];

/// Modifiers of a send.
#[inline]
pub fn send_flags(wr: &SendWr) -> c_uint {
    let inline = if matches!(wr.data, Data::Inline(_)) { IBV_SEND_INLINE } else { 0 };
    let given = FLAGS.into_iter().filter(|(ours, _)| wr.flags.contains(*ours));
    given.fold(inline, |all, (_, theirs)| all | theirs)
}

/// Modifiers of a send.
#[inline]
pub fn send_flags_of(flags: c_uint) -> SendFlags {
    let given = FLAGS.into_iter().filter(|(_, theirs)| flags & theirs != 0);
    given.fold(SendFlags::empty(), |all, (ours, _)| all | ours)
}

/// The members of the unions of a send that operations use. Any operation may be read with all of
/// them: what the operation does not use is ignored.
#[derive(Clone, Copy)]
pub struct Words {
    pub rdma: ibv_send_wr__wr__rdma,
    pub atomic: ibv_send_wr__wr__atomic,
    /// Immediate data or a key, as it is in memory.
    pub imm: u32,
}

/// The operation of a send; `None` for those of other services, and for binding a window, which
/// refers to objects of C.
#[inline]
pub fn send_op(opcode: ibv_wr_opcode, words: &Words) -> Option<SendOp> {
    let Words { rdma, atomic, imm } = words;
    let (imm, key) = (Imm(u32::from_be(*imm)), Rkey(*imm));
    let remote = Remote { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) };
    let word = Remote { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey) };
    Some(match opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
        IBV_WR_SEND_WITH_INV => SendOp::SendInv(key),
        IBV_WR_RDMA_WRITE => SendOp::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote, imm),
        IBV_WR_RDMA_READ => SendOp::Read(remote),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CmpSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite(remote),
        IBV_WR_LOCAL_INV => SendOp::LocalInv(key),
        _ => return None,
    })
}

/// A send without what refers to objects of C: the elements of its list, its successor and its
/// address handle. `None` if `ibv_post_send` has no such operation, or not without an object of C.
#[inline]
pub fn send_wr(wr: &SendWr) -> Option<ibv_send_wr> {
    let mut out = ibv_send_wr { wr_id: wr.wr_id, send_flags: send_flags(wr), ..NO_SEND };
    let rdma = |remote: Remote| ibv_send_wr__wr {
        rdma: ibv_send_wr__wr__rdma { remote_addr: remote.addr, rkey: remote.rkey.0 },
    };
    let atomic = |remote: Remote, compare_add, swap| {
        let (remote_addr, rkey) = (remote.addr, remote.rkey.0);
        let atomic = ibv_send_wr__wr__atomic { remote_addr, compare_add, swap, rkey };
        ibv_send_wr__wr { atomic }
    };
    let imm = |imm: Imm| ibv_send_wr__anon_imm { imm_data: imm.0.to_be() };
    let key = |key: Rkey| ibv_send_wr__anon_imm { invalidate_rkey: key.0 };
    let (opcode, word, words) = match wr.op {
        SendOp::Send => (IBV_WR_SEND, out.imm, out.wr),
        SendOp::SendImm(data) => (IBV_WR_SEND_WITH_IMM, imm(data), out.wr),
        SendOp::SendInv(rkey) => (IBV_WR_SEND_WITH_INV, key(rkey), out.wr),
        SendOp::Write(remote) => (IBV_WR_RDMA_WRITE, out.imm, rdma(remote)),
        SendOp::WriteImm(remote, data) => (IBV_WR_RDMA_WRITE_WITH_IMM, imm(data), rdma(remote)),
        SendOp::Read(remote) => (IBV_WR_RDMA_READ, out.imm, rdma(remote)),
        SendOp::CmpSwap { remote, compare, swap } => {
            (IBV_WR_ATOMIC_CMP_AND_SWP, out.imm, atomic(remote, compare, swap))
        }
        SendOp::FetchAdd { remote, add } => {
            (IBV_WR_ATOMIC_FETCH_AND_ADD, out.imm, atomic(remote, add, 0))
        }
        SendOp::AtomicWrite(remote) => (IBV_WR_ATOMIC_WRITE, out.imm, rdma(remote)),
        SendOp::LocalInv(rkey) => (IBV_WR_LOCAL_INV, key(rkey), out.wr),
        SendOp::BindMw { .. } | SendOp::Flush { .. } | SendOp::Reg { .. } => return None,
    };
    (out.opcode, out.imm, out.wr) = (opcode, word, words);
    if let Dest::Ud { qpn, qkey, .. } = wr.dest {
        let (remote_qpn, remote_qkey) = (qpn.get(), qkey.0);
        let ud = ibv_send_wr__wr__ud { ah: ptr::null_mut(), remote_qpn, remote_qkey };
        out.wr = ibv_send_wr__wr { ud };
    }
    Some(out)
}

/// What a window is to cover, of the memory region `mr`.
pub fn bind_info(binding: &Bind, mr: *mut ibv_mr) -> ibv_mw_bind_info {
    let mut access = binding.access;
    access.set(Access::ZERO_BASED, binding.zero_based || access.contains(Access::ZERO_BASED));
    ibv_mw_bind_info { mr, addr: binding.addr, length: binding.len, mw_access_flags: access.bits() }
}

const NO_SEND: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm: ibv_send_wr__anon_imm { imm_data: 0 },
    wr: ibv_send_wr__wr {
        atomic: ibv_send_wr__wr__atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
    },
    qp_type: ibv_send_wr__qp_type { xrc: ibv_send_wr__qp_type__xrc { remote_srqn: 0 } },
    op: ibv_send_wr__anon_op {
        bind_mw: ibv_send_wr__anon_op__bind_mw {
            mw: ptr::null_mut(),
            rkey: 0,
            bind_info: ibv_mw_bind_info {
                mr: ptr::null_mut(),
                addr: 0,
                length: 0,
                mw_access_flags: 0,
            },
        },
    },
};

#[cfg(test)]
mod tests {
    use feroce_train::InlineBytes;

    use super::*;

    #[test]
    fn flags_come_back_and_inline_data_is_one_of_them() {
        for flags in [SendFlags::empty(), SendFlags::all(), SendFlags::FENCE] {
            let wr = SendWr { flags, ..SendWr::new(1, SendOp::Send, Data::EMPTY) };
            assert_eq!(send_flags_of(send_flags(&wr)), flags);
            assert_eq!(send_flags(&wr) & IBV_SEND_INLINE, 0);
        }
        let inline = SendWr::new(1, SendOp::Send, Data::Inline(InlineBytes::new(b"x")));
        assert_ne!(send_flags(&inline) & IBV_SEND_INLINE, 0);
    }

    #[test]
    fn operations_come_back() {
        let remote = Remote { addr: 0x1000, rkey: Rkey(0x0102_0304) };
        let (imm, key) = (Imm(0x0506_0708), Rkey(0x090a_0b0c));
        let words = |imm| Words {
            rdma: ibv_send_wr__wr__rdma { remote_addr: remote.addr, rkey: remote.rkey.0 },
            atomic: ibv_send_wr__wr__atomic {
                remote_addr: remote.addr,
                compare_add: 5,
                swap: 6,
                rkey: remote.rkey.0,
            },
            imm,
        };
        for op in [
            SendOp::Send,
            SendOp::SendImm(imm),
            SendOp::SendInv(key),
            SendOp::Write(remote),
            SendOp::WriteImm(remote, imm),
            SendOp::Read(remote),
            SendOp::CmpSwap { remote, compare: 5, swap: 6 },
            SendOp::FetchAdd { remote, add: 5 },
            SendOp::AtomicWrite(remote),
            SendOp::LocalInv(key),
        ] {
            let c = send_wr(&SendWr::new(9, op, Data::EMPTY)).unwrap();
            let has_key = matches!(op, SendOp::SendInv(_) | SendOp::LocalInv(_));
            let word = if has_key { key.0 } else { imm.0.to_be() };
            assert_eq!((c.wr_id, send_op(c.opcode, &words(word))), (9, Some(op)));
        }
    }
}
