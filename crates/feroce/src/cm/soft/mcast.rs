//! Multicast groups of ids.

use feroce_link::Control;
use feroce_wire::{Gid, Qpn};

use crate::Error;
use crate::driver::{LinkSide, State};

/// Attaches the queue pair of an id, if it has one, to a group, and joins the group on the link if
/// the device is not a member yet.
pub(super) fn join(
    state: &mut State,
    link: &mut LinkSide,
    qp: Option<Qpn>,
    group: Gid,
) -> Result<(), Error> {
    let must_join = match qp {
        Some(qp) => state.engine.attach_mcast(qp, group)?,
        // The consumer attaches its queue pair itself.
        None => true,
    };
    if must_join {
        link.control(Control::Join(group))?;
    }
    Ok(())
}

/// Detaches the queue pair of an id, if it has one, from a group, and leaves the group on the link
/// if no queue pair of the device is attached any more.
pub(super) fn leave(state: &mut State, link: &mut LinkSide, qp: Option<Qpn>, group: Gid) {
    let must_leave = match qp {
        // The queue pair may be gone already, and its membership with it.
        Some(qp) => state.engine.detach_mcast(qp, group).unwrap_or(false),
        None => true,
    };
    if must_leave && let Err(e) = link.control(Control::Leave(group)) {
        state.dispatch.wakes().warn(format_args!("cannot leave {group}: {e}"));
    }
}
