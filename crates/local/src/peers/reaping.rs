//! Processes that have gone: how this one hears of it, and what it does then.

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::Peers;
use crate::layout::SLOTS;

impl Peers {
    /// Records which processes have gone, as the kernel reports, and returns whether any has.
    pub(crate) fn hear(&mut self) -> bool {
        let mut any_gone = false;
        let mut events = [EpollEvent::empty(); 16];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            let Ok(slot) = u8::try_from(event.data()) else { continue };
            if event.data() >= SLOTS as u64 {
                continue;
            }
            if let Some(contact) =
                self.slots[usize::from(slot)].as_ref().and_then(|peer| peer.contact.as_ref())
            {
                let _ = self.epoll.delete(contact.life());
            }
            self.suspect(slot);
            any_gone = true;
        }
        any_gone
    }

    /// Records that a process seems to have gone.
    pub(super) fn suspect(&mut self, slot: u8) {
        if !self.suspects.contains(&slot) {
            self.suspects.push(slot);
        }
    }

    /// Reaps the suspects that are dead, and returns whether suspects remain.
    pub(crate) fn reap_suspects(&mut self) -> bool {
        if self.suspects.is_empty() {
            return false;
        }
        let (registry, reaped) = (&self.registry, &mut self.counters.reaped);
        self.suspects.retain(|&slot| {
            let is_reaped = registry.reap_if_dead(slot);
            *reaped += u64::from(is_reaped);
            !is_reaped && registry.generation_of(slot).is_some()
        });
        self.sync();
        !self.suspects.is_empty()
    }

    /// Reaps every dead process, suspected or not.
    pub(crate) fn reap_all_dead(&mut self) {
        for &slot in &self.used {
            self.counters.reaped += u64::from(self.registry.reap_if_dead(slot));
        }
        self.sync();
    }

    /// Reports the processes that have gone, once everything that they sent is received.
    #[cold]
    pub(super) fn report_departures(&mut self) {
        let (incoming, registry) = (&self.incoming, &self.registry);
        self.gone.retain(|(generation, departure)| {
            let is_from = |from: u8, of: u32| from + 1 == departure.prefix && of == *generation;
            let is_unread = incoming.iter().any(|ring| is_from(ring.from, ring.generation));
            if !is_unread && registry.wants_departures() {
                registry.add_departure(departure.clone());
            }
            is_unread
        });
    }
}
