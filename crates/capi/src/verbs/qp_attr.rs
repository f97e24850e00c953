//! Modify and query of queue pairs.

use core::ffi::{c_int, c_uint};

use feroce::{Access, Pmtu, Psn, Qkey, QpAttr, QpState, Qpn};
use feroce_lint::{self as lint, Name};

use super::ah::{addr_vec, ah_attr};
use super::qp::Qp;
use super::query::mtu;
use crate::abi::*;
use crate::errno::{Errno, code};
use crate::zeroed::Zeroed;

/// Attributes that can be given.
const KNOWN: c_uint = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_ALT_PATH
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_PATH_MIG_STATE
    | IBV_QP_DEST_QPN;

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    public: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: ibv_modify_qp(3): `public` is a live queue pair.
    let qp = unsafe { Qp::behind(public) };
    // SAFETY: ibv_modify_qp(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    let mask = meaningful(qp.qp_type, mask.cast_unsigned());
    let done = translate(&attr, mask)
        .and_then(|wanted| check_migration(qp, &wanted, mask).map(|()| wanted))
        .and_then(|wanted| Ok(qp.handle.modify(&wanted)?));
    code(done.map(|()| {
        if lint::is_on() {
            // SAFETY: `public` points to a live object, whose `context` does not change after it
            // was made.
            let context = unsafe { (*public).context }.addr();
            let name = Name { context, qpn: qp.handle.qpn().get() };
            note(name, &attr, mask);
        }
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: `public` points to a live object. This library sets `state` through the raw
            // pointer, without a reference to the public part.
            unsafe { (*public).state = attr.qp_state };
        }
    }))
}

/// Records the change for lint.
fn note(name: Name, attr: &ibv_qp_attr, mask: c_uint) {
    if mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RESET {
        lint::qp_reset(name);
    }
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        lint::qp_access(name, Access::from_bits_truncate(attr.qp_access_flags));
    }
}

/// Leaves out what means nothing to one end of an extended reliable connection. Programs give it
/// to both ends, and Linux ignores it.
fn meaningful(qp_type: ibv_qp_type, mask: c_uint) -> c_uint {
    match qp_type {
        IBV_QPT_XRC_SEND => mask & !(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        IBV_QPT_XRC_RECV => mask & !(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY),
        _ => mask,
    }
}

/// Whether the transition may carry the state of path migration, which the adapter does not know,
/// because there is one path.
fn check_migration(qp: &Qp, wanted: &QpAttr, mask: c_uint) -> Result<(), Errno> {
    if mask & IBV_QP_PATH_MIG_STATE == 0 {
        return Ok(());
    }
    let from = qp.handle.query().and_then(|facts| facts.state).ok_or(Errno::INVALID)?;
    let moves = (from, wanted.state.unwrap_or(from));
    let has_it = matches!(
        moves,
        (QpState::Rtr | QpState::Rts | QpState::Sqd, QpState::Rts) | (QpState::Sqd, QpState::Sqd)
    );
    if has_it && qp.qp_type != IBV_QPT_UD { Ok(()) } else { Err(Errno::INVALID) }
}

/// The attributes that the mask picks, as the adapter takes them.
fn translate(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpAttr, Errno> {
    let has = |bit: c_uint| mask & bit != 0;
    if has(IBV_QP_RATE_LIMIT) || has(IBV_QP_CAP) {
        return Err(Errno::UNSUPPORTED);
    }
    // There is one path, and it has always been migrated to.
    let migrates = has(IBV_QP_PATH_MIG_STATE) && attr.path_mig_state != IBV_MIG_MIGRATED;
    if mask & !KNOWN != 0 || migrates {
        return Err(Errno::INVALID);
    }
    // For values that come as they are.
    macro_rules! given {
        ($bit:ident, $value:expr) => {
            has($bit).then(|| $value)
        };
    }
    Ok(QpAttr {
        state: given!(IBV_QP_STATE, state(attr.qp_state)).transpose()?,
        cur_state: given!(IBV_QP_CUR_STATE, state(attr.cur_qp_state)).transpose()?,
        sqd_notify: given!(IBV_QP_EN_SQD_ASYNC_NOTIFY, attr.en_sqd_async_notify != 0),
        access: given!(IBV_QP_ACCESS_FLAGS, Access::from_bits_truncate(attr.qp_access_flags)),
        pkey_index: given!(IBV_QP_PKEY_INDEX, attr.pkey_index),
        port: given!(IBV_QP_PORT, attr.port_num),
        qkey: given!(IBV_QP_QKEY, Qkey(attr.qkey)),
        av: given!(IBV_QP_AV, addr_vec(&attr.ah_attr)).transpose()?,
        path_mtu: given!(IBV_QP_PATH_MTU, path_mtu(attr.path_mtu)).transpose()?,
        timeout: given!(IBV_QP_TIMEOUT, attr.timeout),
        retry_cnt: given!(IBV_QP_RETRY_CNT, attr.retry_cnt),
        rnr_retry: given!(IBV_QP_RNR_RETRY, attr.rnr_retry),
        rq_psn: given!(IBV_QP_RQ_PSN, Psn::new(attr.rq_psn)),
        max_rd_atomic: given!(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        max_dest_rd_atomic: given!(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        // Adapters take the five bits that there are, and programs give more.
        min_rnr_timer: given!(IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer & 31),
        sq_psn: given!(IBV_QP_SQ_PSN, Psn::new(attr.sq_psn)),
        dest_qpn: given!(IBV_QP_DEST_QPN, Qpn::new(attr.dest_qp_num)),
        alt_path: given!(IBV_QP_ALT_PATH, addr_vec(&attr.alt_ah_attr)).transpose()?,
    })
}

fn state(code: ibv_qp_state) -> Result<QpState, Errno> {
    match code {
        IBV_QPS_RESET..=IBV_QPS_ERR => Ok(QpState::from_u8(code as u8)),
        _ => Err(Errno::INVALID),
    }
}

fn path_mtu(code: ibv_mtu) -> Result<Pmtu, Errno> {
    let all = [Pmtu::B256, Pmtu::B512, Pmtu::B1024, Pmtu::B2048, Pmtu::B4096];
    all.into_iter().find(|m| mtu(*m) == code).ok_or(Errno::INVALID)
}

/// Returns all attributes, whatever the mask selects.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    public: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: ibv_query_qp(3): `public` is a live queue pair.
    let qp = unsafe { Qp::behind(public) };
    code(qp.handle.query().ok_or(Errno::INVALID).map(|facts| {
        let found = show(&facts, &qp.made.cap);
        // SAFETY: ibv_query_qp(3): `attr` points to room for the attributes.
        unsafe { attr.write(found) };
        // SAFETY: ibv_query_qp(3): `init` points to room for the attributes.
        unsafe { init.write(qp.made) };
        if mask.cast_unsigned() & IBV_QP_STATE != 0 {
            // SAFETY: `public` points to a live object. This library sets `state` through the raw
            // pointer, without a reference to the public part.
            unsafe { (*public).state = found.qp_state };
        }
    }))
}

fn show(facts: &QpAttr, cap: &ibv_qp_cap) -> ibv_qp_attr {
    let state = facts.state.unwrap_or_default() as c_uint;
    let attr = ibv_qp_attr::zeroed();
    ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: facts.path_mtu.map_or(0, mtu),
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: facts.qkey.unwrap_or_default().0,
        rq_psn: facts.rq_psn.unwrap_or_default().get(),
        sq_psn: facts.sq_psn.unwrap_or_default().get(),
        dest_qp_num: facts.dest_qpn.unwrap_or_default().get(),
        qp_access_flags: facts.access.unwrap_or_default().bits(),
        cap: *cap,
        ah_attr: facts.av.as_ref().map_or(attr.ah_attr, ah_attr),
        pkey_index: facts.pkey_index.unwrap_or(0),
        sq_draining: facts.sqd_notify.unwrap_or(false).into(),
        max_rd_atomic: facts.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: facts.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: facts.min_rnr_timer.unwrap_or(0),
        port_num: facts.port.unwrap_or(0),
        timeout: facts.timeout.unwrap_or(0),
        retry_cnt: facts.retry_cnt.unwrap_or(0),
        rnr_retry: facts.rnr_retry.unwrap_or(0),
        ..attr
    }
}

/// Bytes of a message land in order, so that a program may watch for the last one.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    if flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0 {
        (IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG | IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES)
            as c_int
    } else {
        1
    }
}
