//! Which process a packet goes to, by its destination queue pair and address.

use std::os::fd::OwnedFd;

use feroce_wire::{Gid, Qpn};

use super::Peers;
use crate::demux::{self, Target};
use crate::sys;

/// Where packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// To another host, or to all members of a multicast group.
    Wire,
    /// To another process.
    Slot(u8),
    /// Back to this process.
    Own,
    /// To queue pair 1 of a process on this host: the content of the packet decides which one.
    Management,
    /// To an address of this host, where no process owns that queue pair.
    Unowned,
}

/// The processes that a packet to an address of this host names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// The process in this slot.
    Slot(u8),
    /// Every process at the address.
    All,
    /// None of them.
    Unnamed,
}

impl Peers {
    /// Where packets to a queue pair at an address go.
    #[inline]
    pub(crate) fn route(&self, dst: Gid, qpn: Qpn) -> Route {
        match self.route.get() {
            Some((gid, to, route)) if gid == dst && to == qpn => route,
            _ => {
                let route = self.find_route(dst, qpn);
                self.route.set(Some((dst, qpn, route)));
                route
            }
        }
    }

    fn find_route(&self, dst: Gid, qpn: Qpn) -> Route {
        let (is_own, is_known) = (self.own.contains(&dst), self.shares(dst));
        if !is_own && !is_known {
            return Route::Wire;
        }
        if qpn == Qpn::QP1 {
            return Route::Management;
        }
        match demux::of_qpn(qpn) {
            Target::Slot(slot) if slot == self.registry.slot() && is_own => Route::Own,
            Target::Slot(slot) if self.peer(slot).is_some_and(|p| p.has(dst)) => Route::Slot(slot),
            // A process of another user may own it.
            _ if self.is_leased(dst) => Route::Wire,
            _ => Route::Unowned,
        }
    }

    /// The processes that a packet to an address of this host names.
    pub(crate) fn named_by(&self, dst: Gid, packet: &[u8]) -> Named {
        let me = self.registry.slot();
        let is_at = |slot: u8| match slot == me {
            true => self.own.contains(&dst),
            false => self.peer(slot).is_some_and(|p| p.has(dst)),
        };
        let named = match demux::of_packet(packet) {
            Target::Slot(slot) => Some(slot).filter(|slot| is_at(*slot)),
            Target::Service(id) => {
                let mut all = self.used.iter().copied().chain([me]);
                all.find(|slot| is_at(*slot) && self.registry.serves(*slot, dst, id))
            }
            Target::All => return Named::All,
            Target::Any => None,
        };
        named.map_or(Named::Unnamed, Named::Slot)
    }

    /// The other processes with an address.
    pub(crate) fn others_at(&self, dst: Gid) -> Vec<u8> {
        let used = self.used.iter().copied();
        used.filter(|slot| self.peer(*slot).is_some_and(|p| p.has(dst))).collect()
    }

    /// Whether this process has an address.
    pub(crate) fn has(&self, dst: Gid) -> bool {
        self.own.contains(&dst)
    }

    /// The process that handles packets to an address of this host that name no process: this one
    /// if it has the address, otherwise the port owner, otherwise any process with that address.
    pub(crate) fn handler_at(&self, dst: Gid) -> Option<u8> {
        if self.own.contains(&dst) {
            return Some(self.registry.slot());
        }
        self.receiver_at(dst).or_else(|| {
            let mut used = self.used.iter().copied();
            used.find(|slot| self.peer(*slot).is_some_and(|p| p.has(dst)))
        })
    }

    /// The port owner of an address, if that is another process.
    pub(crate) fn receiver_at(&self, address: Gid) -> Option<u8> {
        self.socket_at(address).map(|(slot, _)| slot)
    }

    /// The port owner of an address, if that is another process, and its socket.
    fn socket_at(&self, address: Gid) -> Option<(u8, u32)> {
        self.used.iter().find_map(|&slot| {
            let mut addresses = self.peer(slot)?.addresses.iter();
            let is_there =
                |(gid, socket): &(Gid, Option<u32>)| (*gid == address).then_some(*socket);
            Some((slot, addresses.find_map(is_there)??))
        })
    }

    /// The socket of the port owner of an address, if that is another process and is stopped.
    pub(crate) fn stopped_receiver_at(&self, address: Gid) -> Option<OwnedFd> {
        let (slot, socket) = self.socket_at(address)?;
        let process = self.registry.host_memory(slot);
        if !process.is_stopped() || !process.is_readable() {
            return None;
        }
        sys::descriptor_of(process.pid, socket).ok()
    }
}
