//! The control side of queue pairs of the engine.

use std::sync::Arc;

use feroce_engine::{QpAttr, QpInitAttr, QpState};
use feroce_link::Control;
use feroce_mem::Access;
use feroce_wire::{Gid, Qpn};

use crate::driver::{Driver, Object};
use crate::{Error, ModifyQpError};

/// The control side of a queue pair.
#[derive(Debug)]
pub(crate) struct SoftQp {
    pub(super) qpn: Qpn,
    pub(super) driver: Arc<Driver>,
}

impl SoftQp {
    /// Remote access that only this backend has.
    pub(crate) fn more_access(&self) -> Access {
        Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT
    }

    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.driver.control_until_quiet(|s, now| {
            let peer = s.engine.peer_of(self.qpn);
            let modified = s.engine.modify_qp(now, self.qpn, attr).map_err(ModifyQpError::from);
            let ends_rights = matches!(attr.state, Some(QpState::Reset | QpState::Err))
                || attr.access.is_some()
                || attr.av.is_some();
            let peer = peer.filter(|_| ends_rights);
            (modified, peer.and_then(|peer| s.engine.last_revocation(Some(peer))))
        })
    }

    pub(crate) fn query(&self) -> Option<(QpAttr, QpInitAttr)> {
        self.driver.read(|s| s.engine.query_qp(self.qpn))
    }

    pub(crate) fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        self.driver.control_link(|s, link, _| {
            if s.engine.attach_mcast(self.qpn, group)? {
                link.control(Control::Join(group))?;
            }
            Ok(())
        })
    }

    pub(crate) fn detach_mcast(&self, group: Gid) -> Result<(), Error> {
        self.driver.control_link(|s, link, _| {
            if s.engine.detach_mcast(self.qpn, group)? {
                link.control(Control::Leave(group))?;
            }
            Ok(())
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.driver.control_until_quiet(|s, _| {
            let peer = s.engine.peer_of(self.qpn);
            let destroyed = s.engine.destroy_qp(self.qpn);
            if destroyed.is_ok() {
                s.dispatch.disown(Object::Qp(self.qpn));
            }
            let revoked = peer.and_then(|peer| s.engine.last_revocation(Some(peer)));
            (destroyed.map_err(Error::from), revoked)
        })
    }
}
