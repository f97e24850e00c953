//! Port numbers, and the bindings that hold them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use feroce_wire::cm::PortSpace;

/// Range of ports for bindings that ask for any port.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

/// A port in use, which its holder gives back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Binding {
    space: PortSpace,
    port: u16,
    number: u64,
}

impl Binding {
    /// The port.
    pub const fn port(self) -> u16 {
        self.port
    }
}

/// Why a port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// Another binding holds it at this address.
    InUse,
    /// Another binding holds it, and one of the two is for all addresses. Linux returns a different
    /// error in this case, which programs check for.
    Overlaps,
    /// All of them are in use.
    Exhausted,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "the port is in use at that address",
            Self::Overlaps => "the port is in use at some address, and wanted at all",
            Self::Exhausted => "every port is in use",
        })
    }
}

impl core::error::Error for BindError {}

#[derive(Debug)]
struct Holder {
    number: u64,
    /// The unspecified address stands for every address of its family; that of IPv6 includes IPv4,
    /// unless the binding is for IPv6 only.
    ip: IpAddr,
    af_only: bool,
    reuse: bool,
    listens: bool,
}

impl Holder {
    fn overlaps(&self, other: &Self) -> bool {
        let covers = |all: &Self, one: &Self| {
            all.ip.is_unspecified()
                && (all.ip.is_ipv4() == one.ip.is_ipv4() || all.ip.is_ipv6() && !all.af_only)
        };
        self.ip == other.ip || covers(self, other) || covers(other, self)
    }
}

/// The ports of a process.
#[derive(Debug, Default)]
pub struct PortTable {
    holders: BTreeMap<(PortSpace, u16), Vec<Holder>>,
    next: u64,
}

impl PortTable {
    /// Binds a port at an address; the unspecified address stands for all. Port zero binds any free
    /// port; the search begins at a place that `random` determines. `reuse` shares the port with
    /// other bindings that have it set, as long as none of them listens.
    pub fn bind(
        &mut self,
        space: PortSpace,
        ip: IpAddr,
        port: u16,
        (reuse, af_only): (bool, bool),
        random: u32,
    ) -> Result<Binding, BindError> {
        let number = self.next;
        let holder = Holder { number, ip, af_only, reuse, listens: false };
        let port = match port {
            0 => self.any_port(space, random)?,
            port => self.check(space, port, &holder).map(|()| port)?,
        };
        self.next += 1;
        self.holders.entry((space, port)).or_default().push(holder);
        Ok(Binding { space, port, number })
    }

    /// The holder of a port starts to listen; fails if another binding listens at an overlapping
    /// address.
    pub fn listen(&mut self, binding: Binding) -> Result<(), BindError> {
        let Some(holders) = self.holders.get_mut(&(binding.space, binding.port)) else {
            return Ok(());
        };
        let Some(at) = holders.iter().position(|h| h.number == binding.number) else {
            return Ok(());
        };
        let holder = &holders[at];
        let others = holders.iter().filter(|h| h.number != binding.number);
        if others.into_iter().any(|h| h.listens && h.overlaps(holder)) {
            return Err(BindError::InUse);
        }
        holders[at].listens = true;
        Ok(())
    }

    /// Changes how a port is held: whether it is shared, and whether for one address family only.
    pub fn set(&mut self, binding: Binding, (reuse, af_only): (bool, bool)) {
        let holders = self.holders.get_mut(&(binding.space, binding.port));
        let holder = holders.and_then(|all| all.iter_mut().find(|h| h.number == binding.number));
        if let Some(holder) = holder {
            (holder.reuse, holder.af_only) = (reuse, af_only);
        }
    }

    /// Gives a port back.
    pub fn release(&mut self, binding: Binding) {
        let key = (binding.space, binding.port);
        if let Some(holders) = self.holders.get_mut(&key) {
            holders.retain(|h| h.number != binding.number);
            if holders.is_empty() {
                self.holders.remove(&key);
            }
        }
    }

    /// Whether one more binding can hold a port.
    fn check(&self, space: PortSpace, port: u16, holder: &Holder) -> Result<(), BindError> {
        let Some(holders) = self.holders.get(&(space, port)) else { return Ok(()) };
        let shares = |h: &Holder| h.reuse && holder.reuse && !h.listens;
        match holders.iter().find(|h| h.overlaps(holder) && !shares(h)) {
            None => Ok(()),
            Some(h) if h.ip.is_unspecified() || holder.ip.is_unspecified() => {
                Err(BindError::Overlaps)
            }
            Some(_) => Err(BindError::InUse),
        }
    }

    /// A port without a binding at any address.
    fn any_port(&self, space: PortSpace, random: u32) -> Result<u16, BindError> {
        let (first, last) = (u32::from(*EPHEMERAL.start()), u32::from(*EPHEMERAL.end()));
        let count = last - first + 1;
        (0..count)
            .filter_map(|i| u16::try_from(first + (random % count + i) % count).ok())
            .find(|&port| !self.holders.contains_key(&(space, port)))
            .ok_or(BindError::Exhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
    const ANY4: IpAddr = IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED);
    const ANY6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED);
    const PLAIN: (bool, bool) = (false, false);
    const REUSE: (bool, bool) = (true, false);
    const V6_ONLY: (bool, bool) = (false, true);

    #[test]
    fn overlapping_addresses_exclude_each_other() {
        let mut table = PortTable::default();
        let mut bind = |ip, how| table.bind(PortSpace::Tcp, ip, 7471, how, 0).map(Binding::port);
        assert_eq!(bind(V4, PLAIN), Ok(7471));
        assert_eq!(bind(V4, PLAIN), Err(BindError::InUse));
        assert_eq!(bind(ANY4, PLAIN), Err(BindError::Overlaps));
        assert_eq!(bind(ANY6, PLAIN), Err(BindError::Overlaps));
        assert_eq!(bind(ANY6, V6_ONLY), Ok(7471));
        assert_eq!(bind(OTHER, PLAIN), Ok(7471));
        assert_eq!(bind(OTHER, REUSE), Err(BindError::InUse));
        assert!(table.bind(PortSpace::Udp, V4, 7471, PLAIN, 0).is_ok());
    }

    #[test]
    fn sharing_ends_with_a_listener() {
        let mut table = PortTable::default();
        let a = table.bind(PortSpace::Tcp, V4, 5, REUSE, 0).unwrap();
        let b = table.bind(PortSpace::Tcp, ANY4, 5, REUSE, 0).unwrap();
        assert_eq!(table.listen(a), Ok(()));
        assert_eq!(table.listen(b), Err(BindError::InUse));
        assert_eq!(table.bind(PortSpace::Tcp, V4, 5, REUSE, 0), Err(BindError::InUse));
        table.release(a);
        assert_eq!(table.listen(b), Ok(()));
        table.release(b);
        assert!(table.holders.is_empty());
    }

    #[test]
    fn holders_change_their_minds() {
        let mut table = PortTable::default();
        let a = table.bind(PortSpace::Tcp, V4, 5, PLAIN, 0).unwrap();
        assert_eq!(table.bind(PortSpace::Tcp, V4, 5, REUSE, 0), Err(BindError::InUse));
        table.set(a, REUSE);
        assert!(table.bind(PortSpace::Tcp, V4, 5, REUSE, 0).is_ok());
        let b = table.bind(PortSpace::Tcp, ANY6, 6, PLAIN, 0).unwrap();
        assert_eq!(table.bind(PortSpace::Tcp, V4, 6, PLAIN, 0), Err(BindError::Overlaps));
        table.set(b, V6_ONLY);
        assert!(table.bind(PortSpace::Tcp, V4, 6, PLAIN, 0).is_ok());
    }

    #[test]
    fn port_zero_is_any_port() {
        let mut table = PortTable::default();
        let count = usize::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let mut bind = |random| table.bind(PortSpace::Tcp, V4, 0, PLAIN, random).unwrap().port();
        assert_eq!((bind(0), bind(0)), (32_768, 32_769));
        let mut ports: Vec<u16> =
            (2..count as u32).map(&mut bind).chain([32_768, 32_769]).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        assert_eq!(table.bind(PortSpace::Tcp, V4, 0, PLAIN, 1), Err(BindError::Exhausted));
    }
}
