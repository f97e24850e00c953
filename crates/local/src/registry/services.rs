//! The services that a process listens for.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use feroce_link::port::PortSocket;
use feroce_wire::Gid;

use super::Registry;
use super::names::byte_of_service;
use crate::layout::MAX_SERVICES;
use crate::lock;
use crate::portd::{Claims, Heard};

/// A service that this process listens for.
#[derive(Debug)]
pub(super) struct Service {
    address: Gid,
    id: u64,
    /// The claim among the processes of all users, if portd receives at the address.
    claim: Option<PortSocket>,
    /// A thread waits for the answer to its claim there.
    is_asked: bool,
    /// The claim was sent without waiting for the answer, which has not arrived yet.
    is_pending: bool,
}

/// Services that other processes have claimed while there was no portd.
#[derive(Debug, Default)]
pub(super) struct LostServices {
    is_any: AtomicBool,
    count: AtomicU64,
    list: Mutex<Vec<(Gid, u64)>>,
}

impl Service {
    fn is(&self, address: Gid, id: u64) -> bool {
        (self.address, self.id) == (address, id)
    }
}

impl Registry {
    /// Claims the requests for a service at an address. It is an error of kind
    /// [`io::ErrorKind::AddrInUse`] if a process has claimed them already. Where portd receives,
    /// this waits for its answer.
    pub fn claim_service(&self, address: Gid, id: u64) -> io::Result<()> {
        self.claim_among_own(address, id)?;
        let Some(claims) = self.claims.get() else { return Ok(()) };
        // Without the lock, because portd may take its time.
        let claim = claims.claim(address, id).inspect_err(|_| self.release_service(address, id))?;
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = services.iter_mut().find(|service| service.is(address, id)) {
            (service.claim, service.is_asked) = (claim, false);
        }
        Ok(())
    }

    /// Claims a service among the processes of this user.
    fn claim_among_own(&self, address: Gid, id: u64) -> io::Result<()> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if services.iter().any(|service| service.is(address, id)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if services.len() == MAX_SERVICES {
            let why = format!("more than {MAX_SERVICES} services of one device");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        if !lock::try_hold(&self.file, byte_of_service(address, id))? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let is_asked = self.claims.get().is_some();
        services.push(Service { address, id, claim: None, is_asked, is_pending: false });
        self.show_services(&services);
        Ok(())
    }

    /// Ends the claim to the requests for a service.
    pub fn release_service(&self, address: Gid, id: u64) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = services.iter().position(|s| s.is(address, id)) else { return };
        services.swap_remove(at);
        self.show_services(&services);
        lock::release(&self.file, byte_of_service(address, id));
    }

    fn show_services(&self, services: &[Service]) {
        let area = self.area(self.slot);
        for (place, service) in area.services.iter().zip(services) {
            place.store(service.address, service.id);
        }
        area.service_count.store(services.len() as u32, Ordering::Release);
    }

    /// Says how this process claims services where portd receives.
    pub(crate) fn claim_with(&self, claims: Claims) {
        // A registry has one lease.
        let _ = self.claims.set(claims);
    }

    /// Claims the services that portd does not know: those at addresses where it did not receive
    /// until now, or all, if it `is_new`.
    pub(crate) fn claim_again(&self, is_new: bool) {
        let Some(claims) = self.claims.get() else { return };
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        for service in services.iter_mut().filter(|service| !service.is_asked) {
            service.claim.take_if(|_| is_new);
            if service.claim.is_none() {
                service.claim = claims.claim_later(service.address, service.id);
                service.is_pending = service.claim.is_some();
            }
        }
    }

    /// Reads answers to claims that [`Registry::claim_again`] has made. Returns whether more are
    /// due.
    pub(crate) fn hear_claims(&self) -> bool {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        for service in services.iter_mut().filter(|service| service.is_pending) {
            let Some(heard) = service.claim.as_ref().and_then(Claims::hear) else { continue };
            service.is_pending = false;
            if heard != Heard::Claimed {
                service.claim = None;
            }
            if heard == Heard::Refused {
                self.add_lost(service.address, service.id);
            }
        }
        services.iter().any(|service| service.is_pending)
    }

    fn add_lost(&self, address: Gid, id: u64) {
        self.lost.list.lock().unwrap_or_else(PoisonError::into_inner).push((address, id));
        self.lost.count.fetch_add(1, Ordering::Relaxed);
        self.lost.is_any.store(true, Ordering::Release);
    }

    /// Whether [`Registry::take_lost_services`] would return one.
    #[inline]
    pub fn has_lost_services(&self) -> bool {
        self.lost.is_any.load(Ordering::Acquire)
    }

    /// Services of this process that portd has given to another one since the last call, with their
    /// addresses. Processes of other hosts and users do not reach them here any more.
    pub fn take_lost_services(&self) -> Vec<(Gid, u64)> {
        let mut list = self.lost.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.lost.is_any.store(false, Ordering::Release);
        std::mem::take(&mut *list)
    }

    /// How many services this process has lost so far.
    pub(crate) fn services_lost(&self) -> u64 {
        self.lost.count.load(Ordering::Relaxed)
    }
}
