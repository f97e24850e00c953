//! Queue pair attributes from the parameters that the two sides of a connection agreed on.

use feroce_cm::{Peer, QpPlan, Transport};
use feroce_engine::{AddrVec, Engine, ModifyQpError, QpAttr, QpState};
use feroce_mem::Access;
use feroce_train::{Framing, GidEntry, Instant};
use feroce_wire::{Qkey, Qpn};

use super::subnet;
use crate::attr::entry_index;
use crate::driver::{Siblings, Wakes};

/// The attributes for a transition to `state`; `None` if there is none, or not enough is known.
pub(super) fn connected(
    plan: &QpPlan,
    engine: &Engine,
    most: u8,
    state: QpState,
) -> Option<QpAttr> {
    let is_rc = plan.transport == Transport::Rc;
    match state {
        QpState::Init => {
            let mut access = Access::REMOTE_WRITE;
            if is_rc && plan.max_dest_rd_atomic > 0 {
                access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            }
            Some(QpAttr::init(access))
        }
        QpState::Rtr => {
            let av = path(plan, engine)?;
            let (qpn, psn, mtu) = (plan.remote_qpn?, plan.rq_psn, plan.path.mtu);
            let mut attr = QpAttr::rtr_uc(av, qpn, psn, mtu);
            if is_rc {
                attr.max_dest_rd_atomic = Some(plan.max_dest_rd_atomic.min(most));
                attr.min_rnr_timer = Some(plan.min_rnr_timer);
            }
            Some(attr)
        }
        QpState::Rts => {
            let mut attr = QpAttr::rts_unreliable(plan.sq_psn);
            if is_rc {
                attr.timeout = Some(plan.timeout);
                attr.retry_cnt = Some(plan.retry_count);
                attr.rnr_retry = Some(plan.rnr_retry);
                attr.max_rd_atomic = Some(plan.max_rd_atomic.min(most));
            }
            Some(attr)
        }
        _ => None,
    }
}

/// The address vector of the peer.
fn path(plan: &QpPlan, engine: &Engine) -> Option<AddrVec> {
    if plan.peer.is_subnet() {
        return Some(subnet::vector(engine, plan.peer, &plan.path));
    }
    Some(AddrVec {
        dgid: plan.peer.remote.gid,
        sgid_index: entry_index(engine.gids(), plan.peer.local.gid, plan.peer.framing)?,
        flow_label: plan.path.flow_label,
        hop_limit: plan.path.hop_limit,
        traffic_class: plan.path.traffic_class,
        sl: plan.path.sl,
        ..AddrVec::default()
    })
}

/// The address vector of a peer of a datagram queue pair.
pub(super) fn datagram_path(gids: &[GidEntry], peer: Peer, tos: u8) -> AddrVec {
    AddrVec {
        dgid: peer.remote.gid,
        sgid_index: entry_index(gids, peer.local.gid, peer.framing).unwrap_or(0),
        traffic_class: tos,
        sl: priority(peer.framing, tos),
        ..AddrVec::default()
    }
}

/// The service level of a type of service. RoCEv1 has no DSCP that switches look at: the three bits
/// that were the precedence are the VLAN priority.
pub(super) fn priority(framing: Framing, tos: u8) -> u8 {
    if framing == Framing::RoceV1 { tos >> 5 } else { 0 }
}

/// Brings a queue pair, perhaps of another shard, up with the parameters that the two sides agreed
/// on.
pub(super) fn bring_up(
    engine: &mut Engine,
    (siblings, wakes): (&Siblings, &Wakes),
    now: Instant,
    qpn: Qpn,
    plan: &QpPlan,
) -> Result<(), ModifyQpError> {
    let most = engine.config().limits.max_rd_atomic;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = connected(plan, engine, most, state);
        // If the peer or an address is not known, `modify_qp` fails and names the missing
        // attributes.
        let attr = attr.unwrap_or_else(|| QpAttr::to(state));
        siblings.modify_qp(engine, wakes, now, (qpn, &attr))?;
    }
    Ok(())
}

/// Makes a datagram queue pair ready.
pub(super) fn bring_up_datagrams(
    engine: &mut Engine,
    now: Instant,
    qpn: Qpn,
    qkey: Qkey,
    psn: feroce_wire::Psn,
) -> Result<(), ModifyQpError> {
    engine.modify_qp(now, qpn, &QpAttr::init_ud(qkey))?;
    engine.modify_qp(now, qpn, &QpAttr::to(QpState::Rtr))?;
    engine.modify_qp(now, qpn, &QpAttr::rts_unreliable(psn))
}
