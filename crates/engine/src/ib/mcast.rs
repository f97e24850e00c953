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
        let is_new = !self.members.contains_key(&group);
        if is_new && self.members.len() >= max_groups as usize {
            return Err(CreateError::TooMany);
        }
        let members = self.members.entry(group).or_default();
        if !members.contains(&qpn) {
            if members.len() >= max_members as usize {
                return Err(CreateError::TooMany);
            }
            members.push(qpn);
        }
        Ok(is_new)
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
