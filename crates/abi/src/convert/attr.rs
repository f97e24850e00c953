//! Attributes of queue pairs.

use core::ffi::c_uint;

use feroce_engine::{AddrVec, QpAttr, QpCap};
use feroce_mem::Access;
use feroce_wire::{Psn, Qkey, Qpn};

use super::{ah_attr, mtu, mtu_of, qp_state, qp_state_of};
use crate::*;

/// Makes the functions for either direction from one line per attribute: its bit, its member in
/// feroce and in C, and the two conversions. A conversion from C has the value of an `Option`.
macro_rules! attributes {
    ($path:ident; $(
        $bit:ident: $ours:ident, |$value:ident| $to:expr, $theirs:ident, |$code:ident| $from:expr;
    )*) => {
        /// Attributes, and the mask that says which of them are given.
        pub fn qp_attr(attr: &QpAttr) -> (ibv_qp_attr, c_uint) {
            let (mut out, mut mask) = (NOTHING, 0);
            $(if let Some($value) = attr.$ours {
                out.$theirs = $to;
                mask |= $bit;
            })*
            (out, mask)
        }

        /// The attributes that the mask selects. One with a value that feroce has no name for is
        /// left out, so that it is missing in the mask of the result. `path` converts an address
        /// vector.
        pub fn qp_attr_of(
            attr: &ibv_qp_attr,
            mask: c_uint,
            $path: impl Fn(&ibv_ah_attr) -> AddrVec,
        ) -> QpAttr {
            QpAttr {
                $($ours: if mask & $bit == 0 {
                    None
                } else {
                    let $code = &attr.$theirs;
                    $from
                },)*
            }
        }
    };
}

attributes! {
    path;
    IBV_QP_STATE: state, |state| qp_state(state), qp_state, |code| qp_state_of(*code);
    IBV_QP_CUR_STATE: cur_state, |state| qp_state(state), cur_qp_state, |code| qp_state_of(*code);
    IBV_QP_EN_SQD_ASYNC_NOTIFY: sqd_notify, |on| on.into(),
        en_sqd_async_notify, |on| Some(*on != 0);
    IBV_QP_ACCESS_FLAGS: access, |access| access.bits(),
        qp_access_flags, |bits| Some(Access::from_bits_truncate(*bits));
    IBV_QP_PKEY_INDEX: pkey_index, |index| index, pkey_index, |index| Some(*index);
    IBV_QP_PORT: port, |port| port, port_num, |port| Some(*port);
    IBV_QP_QKEY: qkey, |key| key.0, qkey, |key| Some(Qkey(*key));
    IBV_QP_AV: av, |av| ah_attr(&av), ah_attr, |attr| Some(path(attr));
    IBV_QP_PATH_MTU: path_mtu, |bytes| mtu(bytes), path_mtu, |code| mtu_of(*code);
    IBV_QP_TIMEOUT: timeout, |timeout| timeout, timeout, |timeout| Some(*timeout);
    IBV_QP_RETRY_CNT: retry_cnt, |count| count, retry_cnt, |count| Some(*count);
    IBV_QP_RNR_RETRY: rnr_retry, |count| count, rnr_retry, |count| Some(*count);
    IBV_QP_RQ_PSN: rq_psn, |psn| psn.get(), rq_psn, |psn| Some(Psn::new(*psn));
    IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic, |most| most, max_rd_atomic, |most| Some(*most);
    IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, |most| most,
        max_dest_rd_atomic, |most| Some(*most);
    IBV_QP_MIN_RNR_TIMER: min_rnr_timer, |timer| timer, min_rnr_timer, |timer| Some(*timer);
    IBV_QP_SQ_PSN: sq_psn, |psn| psn.get(), sq_psn, |psn| Some(Psn::new(*psn));
    IBV_QP_DEST_QPN: dest_qpn, |qpn| qpn.get(), dest_qp_num, |qpn| Some(Qpn::new(*qpn));
    IBV_QP_ALT_PATH: alt_path, |av| ah_attr(&av), alt_ah_attr, |attr| Some(path(attr));
}

/// Sizes of the queues of a queue pair.
pub fn qp_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}

/// Sizes of the queues of a queue pair.
pub fn qp_cap_of(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

const NO_PATH: ibv_ah_attr = ibv_ah_attr {
    grh: ibv_global_route {
        dgid: ibv_gid { raw: [0; 16] },
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    },
    dlid: 0,
    sl: 0,
    src_path_bits: 0,
    static_rate: 0,
    is_global: 0,
    port_num: 0,
};

const NOTHING: ibv_qp_attr = ibv_qp_attr {
    qp_state: 0,
    cur_qp_state: 0,
    path_mtu: 0,
    path_mig_state: 0,
    qkey: 0,
    rq_psn: 0,
    sq_psn: 0,
    dest_qp_num: 0,
    qp_access_flags: 0,
    cap: ibv_qp_cap {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    },
    ah_attr: NO_PATH,
    alt_ah_attr: NO_PATH,
    pkey_index: 0,
    alt_pkey_index: 0,
    en_sqd_async_notify: 0,
    sq_draining: 0,
    max_rd_atomic: 0,
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    port_num: 0,
    timeout: 0,
    retry_cnt: 0,
    rnr_retry: 0,
    alt_port_num: 0,
    alt_timeout: 0,
    rate_limit: 0,
};

#[cfg(test)]
mod tests {
    use feroce_engine::{AttrMask, QpState};
    use feroce_wire::{Gid, Lid, Pmtu};

    use super::*;
    use crate::convert::addr_vec;

    const GID: Gid = Gid([9; 16]);

    /// The union is not read: all paths of this test have the same GID.
    fn path(attr: &ibv_ah_attr) -> AddrVec {
        addr_vec(attr, GID.0)
    }

    fn everything() -> QpAttr {
        let av = AddrVec {
            dgid: GID,
            sgid_index: 3,
            flow_label: 4,
            hop_limit: 5,
            traffic_class: 6,
            sl: 7,
            src_path_bits: 3,
            dlid: Lid(8),
        };
        QpAttr {
            state: Some(QpState::Rts),
            cur_state: Some(QpState::Sqd),
            sqd_notify: Some(true),
            access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE),
            pkey_index: Some(1),
            port: Some(1),
            qkey: Some(Qkey(11)),
            av: Some(av),
            path_mtu: Some(Pmtu::B2048),
            timeout: Some(12),
            retry_cnt: Some(3),
            rnr_retry: Some(4),
            rq_psn: Some(Psn::new(13)),
            max_rd_atomic: Some(5),
            max_dest_rd_atomic: Some(6),
            min_rnr_timer: Some(14),
            sq_psn: Some(Psn::new(15)),
            dest_qpn: Some(Qpn::new(16)),
            alt_path: Some(AddrVec { sl: 2, ..av }),
        }
    }

    #[test]
    fn every_attribute_comes_back_under_its_own_bit() {
        let all = everything();
        let (c, mask) = qp_attr(&all);
        assert_eq!(mask, all.mask().bits(), "the bits of the engine are those of C");
        assert_eq!(qp_attr_of(&c, mask, path), all);
        for bit in all.mask().iter() {
            let one = qp_attr_of(&c, bit.bits(), path);
            assert_eq!(one.mask(), bit);
            assert_eq!(qp_attr(&one).1, bit.bits());
        }
        assert_eq!(qp_attr_of(&c, 0, path), QpAttr::default());
    }

    #[test]
    fn a_value_without_a_name_is_left_out() {
        let c = ibv_qp_attr { qp_state: IBV_QPS_UNKNOWN, path_mtu: 0, timeout: 14, ..NOTHING };
        let found = qp_attr_of(&c, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT, path);
        assert_eq!(found.mask(), AttrMask::TIMEOUT);
    }
}
