//! Listeners: which services consumers listen for, and at which addresses.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use feroce_wire::Gid;
use feroce_wire::cm::ServiceId;

/// Identifies a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenId(pub(crate) u64);

/// At which of our addresses a listener accepts requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Accepts {
    /// All addresses.
    Any,
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// This address.
    Only(Gid),
    /// All addresses; requests name the service by itself, and have no IP addresses with them.
    Native,
}

impl Accepts {
    /// Whether the listener accepts requests to the address `local`.
    pub fn takes(self, local: Gid) -> bool {
        match self {
            Self::Any | Self::Native => true,
            Self::Ipv4 => local.as_ipv4().is_some(),
            Self::Ipv6 => local.as_ipv4().is_none(),
            Self::Only(gid) => gid == local,
        }
    }

    /// Order of the search: the listener with the most specific address comes first.
    const fn rank(self) -> u8 {
        match self {
            Self::Only(_) => 0,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::Any | Self::Native => 2,
        }
    }
}

/// What a listener takes requests for. Those for the other are refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Serves {
    /// Connections (REQ).
    Connections,
    /// Datagrams (SIDR_REQ).
    Datagrams,
}

/// Why [`listen`](crate::Manager::listen) fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// Another listener has the same service at the same addresses.
    InUse,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another listener has this service at this address: choose another port")
    }
}

impl core::error::Error for ListenError {}

#[derive(Debug)]
struct Listener {
    service: ServiceId,
    accepts: Accepts,
    serves: Serves,
    backlog: u32,
    /// Requests that the consumer has not taken yet.
    waiting: u32,
}

/// All listeners.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenId, Listener>,
    by_service: BTreeMap<ServiceId, Vec<ListenId>>,
    next: u64,
}

impl Listeners {
    pub(crate) fn add(
        &mut self,
        service: ServiceId,
        accepts: Accepts,
        serves: Serves,
        backlog: u32,
    ) -> Result<ListenId, ListenError> {
        let same = self.by_service.entry(service).or_default();
        if same.iter().filter_map(|id| self.all.get(id)).any(|l| l.accepts == accepts) {
            return Err(ListenError::InUse);
        }
        let id = ListenId(self.next);
        self.next += 1;
        self.all.insert(id, Listener { service, accepts, serves, backlog, waiting: 0 });
        same.push(id);
        same.sort_by_key(|id| self.all.get(id).map(|l| l.accepts.rank()));
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: ListenId) {
        let Some(listener) = self.all.remove(&id) else { return };
        if let Some(same) = self.by_service.get_mut(&listener.service) {
            same.retain(|&other| other != id);
            if same.is_empty() {
                self.by_service.remove(&listener.service);
            }
        }
    }

    /// The listener for requests for `service` to the address `local`.
    pub(crate) fn find(&self, service: ServiceId, local: Gid) -> Option<ListenId> {
        let takes = |id: &&ListenId| self.all.get(id).is_some_and(|l| l.accepts.takes(local));
        self.by_service.get(&service)?.iter().find(takes).copied()
    }

    /// Whether a listener takes requests of a kind.
    pub(crate) fn serves(&self, id: ListenId, what: Serves) -> bool {
        self.all.get(&id).is_some_and(|listener| listener.serves == what)
    }

    /// Whether requests for a listener have IP addresses in their private data (annex A11).
    pub(crate) fn has_addresses(&self, id: ListenId) -> bool {
        let listener = self.all.get(&id);
        listener.is_some_and(|l| l.accepts != Accepts::Native && l.service.as_ip().is_some())
    }

    /// Counts one more request that waits for the consumer; false if the backlog is full.
    pub(crate) fn admit(&mut self, id: ListenId) -> bool {
        let Some(listener) = self.all.get_mut(&id) else { return false };
        let has_room = listener.waiting < listener.backlog;
        listener.waiting += u32::from(has_room);
        has_room
    }

    /// The consumer has taken a request.
    pub(crate) fn taken(&mut self, id: ListenId) {
        if let Some(listener) = self.all.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Gid = Gid::from_ipv4([10, 0, 0, 1]);
    const OTHER: Gid = Gid::from_ipv4([10, 0, 0, 2]);
    const V6: Gid = Gid([0xfd; 16]);

    #[test]
    fn the_most_exact_listener_wins() {
        let mut listeners = Listeners::default();
        let service = ServiceId(7);
        let any = listeners.add(service, Accepts::Any, Serves::Connections, 1).unwrap();
        let v4 = listeners.add(service, Accepts::Ipv4, Serves::Connections, 1).unwrap();
        let only = listeners.add(service, Accepts::Only(V4), Serves::Connections, 1).unwrap();
        assert_eq!(
            listeners.add(service, Accepts::Ipv4, Serves::Connections, 1),
            Err(ListenError::InUse)
        );
        assert_eq!(listeners.find(service, V4), Some(only));
        assert_eq!(listeners.find(service, OTHER), Some(v4));
        assert_eq!(listeners.find(service, V6), Some(any));
        assert_eq!(listeners.find(ServiceId(8), V6), None);
        listeners.remove(only);
        assert_eq!(listeners.find(service, V4), Some(v4));
        listeners.remove(v4);
        listeners.remove(any);
        assert!(listeners.by_service.is_empty());
    }

    #[test]
    fn the_backlog_counts_requests_that_were_not_taken() {
        let mut listeners = Listeners::default();
        let id = listeners.add(ServiceId(7), Accepts::Any, Serves::Connections, 2).unwrap();
        assert!(listeners.admit(id) && listeners.admit(id) && !listeners.admit(id));
        listeners.taken(id);
        assert!(listeners.admit(id) && !listeners.admit(id));
    }
}
