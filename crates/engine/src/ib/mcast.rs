//! Multicast groups and their members on this port.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use feroce_wire::{Gid, Qpn};

use crate::hca::error::{CreateError, DestroyError};

/// Members by group.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<Gid, Vec<Qpn>>,
}

impl Groups {
    /// Attaches; attaching twice is one membership. True: the group is new on this port.
    pub(crate) fn attach(
        &mut self,
        group: Gid,
        qpn: Qpn,
        max_groups: u32,
        max_members: u32,
    ) -> Result<bool, CreateError> {
        let groups = self.members.len();
        let mut found = self.members.get_mut(&group);
        let others = found.as_deref().map_or(&[][..], Vec::as_slice);
        if others.contains(&qpn) {
            return Ok(false);
        }
        let is_full = found.is_none() && groups >= max_groups as usize;
        if is_full || others.len() >= max_members as usize {
            return Err(CreateError::TooMany);
        }
        let Some(members) = &mut found else {
            self.members.insert(group, alloc::vec![qpn]);
            return Ok(true);
        };
        members.try_reserve(1).map_err(|_| CreateError::OutOfMemory)?;
        members.push(qpn);
        Ok(false)
    }

    /// Detaches. True: the group has no members left on this port.
    pub(crate) fn detach(&mut self, group: Gid, qpn: Qpn) -> Result<bool, DestroyError> {
        let members = self.members.get_mut(&group).ok_or(DestroyError::Unknown)?;
        let at = members.iter().position(|&m| m == qpn).ok_or(DestroyError::Unknown)?;
        members.remove(at);
        let is_last = members.is_empty();
        if is_last {
            self.members.remove(&group);
        }
        Ok(is_last)
    }

    /// Whether a queue pair is attached to any group.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.members.values().any(|m| m.contains(&qpn))
    }

    /// The members of a group.
    pub(crate) fn of(&self, group: Gid) -> &[Qpn] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }
}
