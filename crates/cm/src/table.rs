//! The table of connections, and its indices.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use feroce_train::{Instant, PortAddr};
use feroce_wire::Qpn;
use feroce_wire::cm::CommId;

use crate::conn::{Class, Conn, RemoteKey};
use crate::half_open::HalfOpen;

/// Connections by our identifier, the peer's identifier, the peer's queue pair and their deadline.
///
/// The manager takes a connection out, changes its state and puts it back; `take` and `put` derive
/// the indices from the state.
#[derive(Debug, Default)]
pub(crate) struct Table {
    conns: BTreeMap<CommId, Conn>,
    by_remote: BTreeMap<RemoteKey, CommId>,
    by_qp: BTreeMap<(PortAddr, u32), CommId>,
    deadlines: BTreeSet<(Instant, CommId)>,
    remembered: BTreeSet<(Instant, CommId)>,
    half_open: HalfOpen,
    /// Connections with each peer that has proved that it is at its address.
    confirmed: BTreeMap<PortAddr, usize>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether a connection is such.
    pub(crate) fn any(&self, is_such: impl FnMut(&Conn) -> bool) -> bool {
        self.conns.values().any(is_such)
    }

    pub(crate) fn half_open(&self) -> &HalfOpen {
        &self.half_open
    }

    /// Whether a connection shows that a peer is at its address.
    pub(crate) fn is_confirmed(&self, peer: PortAddr) -> bool {
        self.confirmed.contains_key(&peer)
    }

    pub(crate) fn contains(&self, id: CommId) -> bool {
        self.conns.contains_key(&id)
    }

    pub(crate) fn get(&self, id: CommId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    pub(crate) fn find_remote(&self, key: RemoteKey) -> Option<CommId> {
        self.by_remote.get(&key).copied()
    }

    /// The connections with peers whose port and identifier `is_wanted` accepts.
    pub(crate) fn with_remote(&self, is_wanted: impl Fn(PortAddr, CommId) -> bool) -> Vec<CommId> {
        let remotes = self.by_remote.iter();
        remotes.filter(|((_, gid, id), _)| is_wanted(*gid, *id)).map(|(_, id)| *id).collect()
    }

    /// The connection with this queue pair of a peer.
    pub(crate) fn find_qp(&self, port: PortAddr, qpn: Qpn) -> Option<CommId> {
        self.by_qp.get(&(port, qpn.get())).copied()
    }

    /// The earliest deadline of any connection.
    pub(crate) fn first_deadline(&self) -> Option<(Instant, CommId)> {
        self.deadlines.first().copied()
    }

    /// The connection of class [`Class::Remembered`] with the earliest deadline, if there are more
    /// than `most` of that class.
    pub(crate) fn surplus(&self, most: usize) -> Option<CommId> {
        let first = self.remembered.first().filter(|_| self.remembered.len() > most);
        first.map(|&(_, id)| id)
    }

    pub(crate) fn take(&mut self, id: CommId) -> Option<Conn> {
        let conn = self.conns.remove(&id)?;
        if let Some(at) = conn.deadline() {
            self.deadlines.remove(&(at, id));
            self.remembered.remove(&(at, id));
        }
        if let Some(key) = conn.remote_key()
            && self.by_remote.get(&key) == Some(&id)
        {
            self.by_remote.remove(&key);
        }
        if let Some((port, qpn)) = conn.qp_key()
            && self.by_qp.get(&(port, qpn.get())) == Some(&id)
        {
            self.by_qp.remove(&(port, qpn.get()));
        }
        if let Some(entry) = conn.half_open() {
            self.half_open.remove(&entry);
        }
        let peer = conn.peer().remote;
        if conn.is_confirmed()
            && let Some(count) = self.confirmed.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                self.confirmed.remove(&peer);
            }
        }
        Some(conn)
    }

    pub(crate) fn put(&mut self, conn: Conn) {
        let id = conn.id();
        if let Some(at) = conn.deadline() {
            self.deadlines.insert((at, id));
            if conn.class() == Class::Remembered {
                self.remembered.insert((at, id));
            }
        }
        if let Some(key) = conn.remote_key() {
            self.by_remote.entry(key).or_insert(id);
        }
        if let Some((port, qpn)) = conn.qp_key() {
            self.by_qp.entry((port, qpn.get())).or_insert(id);
        }
        if let Some(entry) = conn.half_open() {
            self.half_open.add(&entry);
        }
        if conn.is_confirmed() {
            *self.confirmed.entry(conn.peer().remote).or_default() += 1;
        }
        self.conns.insert(id, conn);
    }
}
