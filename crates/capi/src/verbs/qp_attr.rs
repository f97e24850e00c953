//! Modify and query of queue pairs.

use core::ffi::{c_int, c_uint};

use feroce::{Access, AttrMask, LinkLayer, ModifyQpError, QpAttr, QpState};
use feroce_lint::{self as lint, Name};

use super::ah::path;
use super::context::Context;
use super::qp::Qp;
use crate::abi::*;
use crate::errno::{Errno, code};

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
    // SAFETY: `public` points to a live object, whose `context` does not change after it was made.
    let context = unsafe { (*public).context };
    let name = Name { context: context.addr(), qpn: qp.handle.qpn().get() };
    let done = done.map_err(|refusal| {
        if lint::is_on() {
            // SAFETY: the context of a live queue pair is live.
            let link_layer = unsafe { Context::behind(context) }.adapter().port().link_layer;
            let words = refusal.words(&attr, mask, link_layer);
            lint::call_refused(name, "ibv_modify_qp", &words);
        }
        refusal.errno
    });
    code(done.map(|()| {
        if lint::is_on() {
            note(name, &attr, mask);
        }
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: `public` points to a live object. This library sets `state` through the raw
            // pointer, without a reference to the public part.
            unsafe { (*public).state = attr.qp_state };
        }
    }))
}

/// Why attributes are refused.
struct Refusal {
    errno: Errno,
    why: String,
}

impl Refusal {
    fn invalid(why: impl Into<String>) -> Self {
        Self { errno: Errno::INVALID, why: why.into() }
    }

    /// What lint says. A path without a GID is the mistake of nearly every beginner, so lint names
    /// it before any other.
    fn words(&self, attr: &ibv_qp_attr, mask: c_uint, link_layer: LinkLayer) -> String {
        let has_no_gid = mask & IBV_QP_AV != 0 && attr.ah_attr.is_global == 0;
        if has_no_gid && link_layer == LinkLayer::Ethernet {
            return "ah_attr.is_global is 0, and RoCE finds its peers by GID: set it, grh.dgid and \
                    grh.sgid_index (option -g of the pingpongs, -x of perftest)"
                .to_owned();
        }
        self.why.clone()
    }
}

impl From<ModifyQpError> for Refusal {
    fn from(error: ModifyQpError) -> Self {
        Self { why: error.to_string(), errno: error.into() }
    }
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
fn check_migration(qp: &Qp, wanted: &QpAttr, mask: c_uint) -> Result<(), Refusal> {
    if mask & IBV_QP_PATH_MIG_STATE == 0 {
        return Ok(());
    }
    let from = qp.handle.query().and_then(|facts| facts.state);
    let from = from.ok_or_else(|| Refusal::invalid("there is no such queue pair"))?;
    let moves = (from, wanted.state.unwrap_or(from));
    let has_it = matches!(
        moves,
        (QpState::Rtr | QpState::Rts | QpState::Sqd, QpState::Rts) | (QpState::Sqd, QpState::Sqd)
    );
    match has_it && qp.qp_type != IBV_QPT_UD {
        true => Ok(()),
        false => Err(Refusal::invalid("leave out IBV_QP_PATH_MIG_STATE in this transition")),
    }
}

/// The attributes that the mask picks, as the adapter takes them.
fn translate(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpAttr, Refusal> {
    let has = |bit: c_uint| mask & bit != 0;
    if has(IBV_QP_RATE_LIMIT) || has(IBV_QP_CAP) {
        let why = "the adapter has neither IBV_QP_RATE_LIMIT nor IBV_QP_CAP".to_owned();
        return Err(Refusal { errno: Errno::UNSUPPORTED, why });
    }
    // There is one path, and it has always been migrated to.
    let migrates = has(IBV_QP_PATH_MIG_STATE) && attr.path_mig_state != IBV_MIG_MIGRATED;
    if mask & !KNOWN != 0 {
        return Err(Refusal::invalid(format!("no attribute has the bits {:#x}", mask & !KNOWN)));
    }
    if migrates {
        return Err(Refusal::invalid(
            "path_mig_state: there is one path, so IBV_MIG_MIGRATED only",
        ));
    }
    // The adapter has no state of migration.
    let mask = mask & !IBV_QP_PATH_MIG_STATE;
    let on_other_port = |bit, attr: &ibv_ah_attr| has(bit) && attr.port_num != 1;
    if on_other_port(IBV_QP_AV, &attr.ah_attr) || on_other_port(IBV_QP_ALT_PATH, &attr.alt_ah_attr)
    {
        return Err(Refusal::invalid("port_num of a path: the device has port 1 only"));
    }
    let wanted = convert::qp_attr_of(attr, mask, path);
    // A value without a name is left out.
    if wanted.mask().bits() != mask {
        let refused = AttrMask::from_bits_truncate(mask & !wanted.mask().bits());
        let names: Vec<&str> = refused.iter_names().map(|(name, _)| name).collect();
        let why = format!("there is no such value of {}", names.join(" and "));
        return Err(Refusal::invalid(why));
    }
    // Adapters take the five bits that there are, and programs give more.
    Ok(QpAttr { min_rnr_timer: wanted.min_rnr_timer.map(|timer| timer & 31), ..wanted })
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

/// The attributes of a queue pair. Its state is the present one, its only path is the one that it
/// has always been migrated to.
fn show(facts: &QpAttr, cap: &ibv_qp_cap) -> ibv_qp_attr {
    let (attr, _) = convert::qp_attr(facts);
    ibv_qp_attr {
        cur_qp_state: attr.qp_state,
        path_mig_state: IBV_MIG_MIGRATED,
        cap: *cap,
        en_sqd_async_notify: 0,
        sq_draining: attr.en_sqd_async_notify,
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
