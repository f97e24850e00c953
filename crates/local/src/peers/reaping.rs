//! Members that have gone: how this one hears of it, and what it does then.

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::Peers;
use crate::layout::SLOTS;

impl Peers {
    /// Records which members have gone, as the kernel reports, and returns whether any has.
    pub(crate) fn hear(&mut self) -> bool {
        let mut somebody = false;
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
            somebody = true;
        }
        somebody
    }

    /// Records that a member seems to have gone.
    pub(super) fn suspect(&mut self, slot: u8) {
        if !self.suspects.contains(&slot) {
            self.suspects.push(slot);
        }
    }

    /// Reaps the suspects that are dead, and returns whether suspects remain.
    pub(crate) fn bury_suspects(&mut self) -> bool {
        if self.suspects.is_empty() {
            return false;
        }
        let (member, buried) = (&self.member, &mut self.counters.buried);
        self.suspects.retain(|&slot| {
            let is_buried = member.bury_if_dead(slot);
            *buried += u64::from(is_buried);
            !is_buried && member.generation_of(slot).is_some()
        });
        self.sync();
        !self.suspects.is_empty()
    }

    /// Reaps every dead member, suspected or not.
    pub(crate) fn bury_all_dead(&mut self) {
        for &slot in &self.used {
            self.counters.buried += u64::from(self.member.bury_if_dead(slot));
        }
        self.sync();
    }

    /// Reports the members that have gone, once everything that they sent is received.
    #[cold]
    pub(super) fn report_departures(&mut self) {
        let (incoming, member) = (&self.incoming, &self.member);
        self.gone.retain(|(generation, departure)| {
            let is_from = |from: u8, of: u32| from + 1 == departure.prefix && of == *generation;
            let is_unread = incoming.iter().any(|ring| is_from(ring.from, ring.generation));
            if !is_unread && member.wants_departures() {
                member.add_departure(departure.clone());
            }
            is_unread
        });
    }
}
