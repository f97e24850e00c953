//! Requests of peers that have not yet proved that they receive our messages.
//!
//! Anyone can send a REQ with any address, so these are limited: all together, those for a listener
//! and those from an address. When a limit is reached, the oldest of those to which the manager has
//! sent all its answers in vain makes room. Such a request is a second old at least, and a peer
//! that exists confirms sooner.

use alloc::collections::{BTreeMap, BTreeSet};

use feroce_train::PortAddr;
use feroce_wire::cm::CommId;

use crate::listen::ListenId;

/// When a request arrived, in terms of others, and for which listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opened {
    pub(crate) order: u64,
    pub(crate) listener: ListenId,
}

/// A request, as far as the limits are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: CommId,
    pub(crate) source: PortAddr,
    pub(crate) opened: Opened,
    /// Whether the manager has sent all its answers in vain.
    pub(crate) is_idle: bool,
}

/// Requests that count together against a limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Group {
    All,
    Of(ListenId),
    From(PortAddr),
}

impl Entry {
    fn groups(&self) -> [Group; 3] {
        [Group::All, Group::Of(self.opened.listener), Group::From(self.source)]
    }
}

/// All half-open requests, by group.
#[derive(Debug, Default)]
pub(crate) struct HalfOpen {
    counts: BTreeMap<Group, usize>,
    idle: BTreeSet<(Group, u64, CommId)>,
}

impl HalfOpen {
    /// How many there are in a group.
    pub(crate) fn len(&self, group: Group) -> usize {
        self.counts.get(&group).copied().unwrap_or(0)
    }

    /// The oldest in a group that may make room.
    pub(crate) fn oldest_idle(&self, group: Group) -> Option<CommId> {
        let first = (group, 0, CommId(0));
        let &(found, _, id) = self.idle.range(first..).next()?;
        (found == group).then_some(id)
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        for group in entry.groups() {
            *self.counts.entry(group).or_default() += 1;
            if entry.is_idle {
                self.idle.insert((group, entry.opened.order, entry.id));
            }
        }
    }

    pub(crate) fn remove(&mut self, entry: &Entry) {
        for group in entry.groups() {
            if let Some(count) = self.counts.get_mut(&group) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&group);
                }
            }
            self.idle.remove(&(group, entry.opened.order, entry.id));
        }
    }
}
