//! The port owner: for each address one process receives what other hosts send, and the other
//! processes wait to take over.

use std::io;
use std::os::fd::AsRawFd;

use feroce_link::{Control, Logger, SharedPort};
use feroce_wire::Gid;

use super::peers::Peers;
use super::portd::Lease;
use super::registry::Registry;

/// The addresses of a process, and which of them it is the port owner of.
#[derive(Debug, Default)]
pub(super) struct PortOwner {
    all: Vec<Place>,
    taken_over: u64,
    log: Logger,
}

/// One address.
#[derive(Debug)]
struct Place {
    address: Gid,
    /// This process is the port owner: no other process may receive here.
    is_ours: bool,
    /// This process receives here: it has bound the port.
    receives: bool,
    /// Another link of this device is the port owner, and this one receives beside it.
    is_beside: bool,
    /// The warning that this process cannot bind the port was logged.
    complained: bool,
    /// portd receives here for this process.
    is_leased: bool,
    /// The port owner is stopped, and this process receives in its place, with its socket.
    stands_in: bool,
}

impl PortOwner {
    pub(super) fn set_log(&mut self, log: Logger) {
        self.log = log;
    }

    /// How often this process took over a port.
    pub(super) fn taken_over(&self) -> u64 {
        self.taken_over
    }

    /// Follows a change of the addresses. An address where neither this process nor another one
    /// receives is an error, and is not added. A process that has just ended may still occupy the
    /// port for a moment: then the error is [`io::ErrorKind::AddrInUse`], and the caller may try
    /// again.
    pub(super) fn set(
        &mut self,
        addresses: &[Gid],
        wire: &mut impl SharedPort,
        registry: &Registry,
        peers: &mut Peers,
        mut lease: Option<&mut Lease>,
    ) -> io::Result<()> {
        let outcome = wire.control(Control::Addresses(addresses));
        let mut removed = Vec::new();
        for place in self.all.extract_if(.., |place| !addresses.contains(&place.address)) {
            removed.push(place.address);
            if place.is_ours {
                registry.stop_receiving_at(place.address);
            }
        }
        let outcome =
            outcome.and_then(|()| self.add_missing(addresses, wire, registry, &mut lease));
        if outcome.is_err() {
            let taken: Vec<Gid> = self.all.iter().map(|place| place.address).collect();
            wire.control(Control::Addresses(&taken))?;
        }
        self.tell(lease, &removed, peers);
        self.show(wire, registry, peers)?;
        outcome
    }

    /// Tells portd where it is to receive for this process.
    fn tell(&self, lease: Option<&mut Lease>, removed: &[Gid], peers: &mut Peers) {
        let leased = self.all.iter().filter(|place| place.is_leased).map(|place| place.address);
        let leased: Vec<Gid> = leased.collect();
        if let Some(lease) = lease {
            lease.set_addresses(&leased, removed);
        }
        peers.set_leased(leased);
    }

    /// Follows a change of the addresses that portd receives at.
    pub(super) fn follow(&mut self, lease: &mut Lease, peers: &mut Peers) {
        let served = lease.served();
        for place in self.all.iter_mut().filter(|place| place.is_leased) {
            place.is_leased = served.contains(&place.address);
        }
        self.tell(Some(lease), &[], peers);
    }

    fn add_missing(
        &mut self,
        addresses: &[Gid],
        wire: &mut impl SharedPort,
        registry: &Registry,
        lease: &mut Option<&mut Lease>,
    ) -> io::Result<()> {
        for &address in addresses.iter().filter(|address| !address.is_zero()) {
            if self.all.iter().any(|place| place.address == address) {
                continue;
            }
            let is_leased = lease.as_ref().is_some_and(|lease| lease.may_serve(address));
            let is_ours = !is_leased && registry.try_receive_at(address)?;
            let is_beside = !is_ours && wire.is_steered(address) && wire.listen(address).is_ok();
            if is_ours && let Err(e) = wire.listen(address) {
                registry.stop_receiving_at(address);
                if let Some(lease) = lease {
                    lease.forgive(address);
                }
                return Err(e);
            }
            self.all.push(Place {
                address,
                is_ours,
                receives: is_ours,
                is_leased,
                is_beside,
                complained: false,
                stands_in: false,
            });
        }
        Ok(())
    }

    /// Takes over the ports that have no owner. False: there are addresses without a known port
    /// owner.
    pub(super) fn take(
        &mut self,
        wire: &mut impl SharedPort,
        registry: &Registry,
        peers: &mut Peers,
    ) -> bool {
        let (mut changed, mut all_taken) = (false, true);
        let unowned = |place: &&mut Place| !place.receives && !place.is_leased;
        for place in self.all.iter_mut().filter(unowned) {
            place.is_ours =
                place.is_ours || registry.try_receive_at(place.address).unwrap_or(false);
            if !place.is_ours {
                place.is_beside = place.is_beside
                    || wire.is_steered(place.address) && wire.listen(place.address).is_ok();
                all_taken &= peers.watch_receiver(place.address);
                continue;
            }
            // The stopped process has ended, or this process would not be the port owner.
            place.stands_in = false;
            match wire.listen(place.address) {
                Ok(()) => {
                    self.log.debug(format_args!(
                        "receiving at {} for everybody from now on",
                        place.address
                    ));
                    (place.receives, changed) = (true, true);
                    self.taken_over += 1;
                }
                Err(e) => {
                    all_taken = false;
                    // The socket of the last port owner may not be closed yet.
                    if e.kind() != io::ErrorKind::AddrInUse && !place.complained {
                        place.complained = true;
                        self.log
                            .warn(format_args!("no process receives at {}: {e}", place.address));
                    }
                }
            }
        }
        if changed && let Err(e) = self.show(wire, registry, peers) {
            self.log.warn(format_args!("{e}"));
        }
        all_taken
    }

    /// Receives for port owners that are stopped, with their sockets, as long as they are.
    pub(super) fn stand_in(&mut self, wire: &mut impl SharedPort, peers: &Peers) {
        for place in self.all.iter_mut().filter(|place| !place.receives) {
            let stopped = peers.stopped_receiver_at(place.address);
            match (stopped, place.stands_in) {
                (Some(socket), false) => {
                    place.stands_in = wire.borrow_receiver(place.address, socket);
                    if place.stands_in {
                        self.log
                            .debug(format_args!("who receives at {} is stopped", place.address));
                    }
                }
                (None, true) => {
                    place.stands_in = false;
                    wire.stop_listening(place.address);
                }
                _ => {}
            }
        }
    }

    fn show(
        &self,
        wire: &impl SharedPort,
        registry: &Registry,
        peers: &mut Peers,
    ) -> io::Result<()> {
        let socket = |place: &Place| {
            let socket = wire.receiver(place.address).filter(|_| place.receives)?;
            u32::try_from(socket.as_raw_fd()).ok()
        };
        let shown: Vec<_> = self.all.iter().map(|place| (place.address, socket(place))).collect();
        peers.set_own(shown.iter().map(|(address, _)| *address));
        registry.show_addresses(&shown)
    }
}
