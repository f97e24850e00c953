//! A layer that disturbs received packets at random, reproducibly from a seed.
//!
//! Faults apply one after the other: loss, damage and duplication when a packet arrives; then the
//! rate limit; then the delay; then reordering. Each has a random number generator of its own, so
//! that switching one on does not change what another does. Packets without faults stay together
//! in their train.

mod config;
mod shaper;
mod switch;

use std::io;
use std::sync::Arc;

use fastrand::Rng;
use feroce_train::{Instant, RxTrain, Single, Train};

use crate::icrc::part;
use crate::{Carrier, Control, LinkCounters, forward_to_inner, impl_layer};
pub use config::{FaultConfig, FaultParseError, Probability};
use shaper::Shaper;
pub use switch::FaultSwitch;

const LOST: &str = "lost by the setting fault";
const DAMAGED: &str = "damaged by the setting fault";
const DUPLICATED: &str = "duplicated by the setting fault";
const LATE: &str = "held back by the setting fault";
const OVERFLOWED: &str = "dropped by the setting fault, whose queue is full";

/// How captures and traces mark packets that [`Fault`] has lost, damaged, duplicated, held back
/// behind later ones, or not taken because the queue of its rate was full.
pub const FAULT_MARKS: [&str; 5] = [LOST, DAMAGED, DUPLICATED, LATE, OVERFLOWED];

/// Whether the adapter gets no packet with this mark of [`FAULT_MARKS`]; it drops damaged ones.
pub fn is_taken_by_fault(mark: &str) -> bool {
    [LOST, DAMAGED, OVERFLOWED].contains(&mark)
}

/// Loses, duplicates, damages, reorders, delays and slows down received packets.
///
/// It stands below [`Verified`](crate::Verified), which notices the damage.
#[derive(Debug)]
pub struct Fault<C> {
    inner: C,
    is_harmless: bool,
    injector: Injector,
    switch: Arc<FaultSwitch>,
    /// How often the switch was set when the faults were taken from it.
    changes: u64,
}

impl<C: Carrier> Fault<C> {
    /// Disturbs what `inner` receives.
    pub fn new(inner: C, config: &FaultConfig) -> Self {
        Self::with_switch(inner, Arc::new(FaultSwitch::new(config.clone())))
    }

    /// Disturbs what `inner` receives as `switch` says, which may change.
    pub fn with_switch(inner: C, switch: Arc<FaultSwitch>) -> Self {
        let (changes, config) = (switch.changes(), switch.get());
        let injector = Injector {
            config: config.clone(),
            dice: Dice::new(config.seed),
            shaper: Shaper::new(&config),
            counters: Counters::default(),
        };
        Self { inner, is_harmless: config.is_harmless(), injector, switch, changes }
    }

    /// Takes other faults from the switch.
    #[cold]
    fn follow(&mut self) {
        self.changes = self.switch.changes();
        let config = self.switch.get();
        self.is_harmless = config.is_harmless();
        self.switch.begin();
        self.injector.dice = Dice::new(config.seed);
        self.injector.shaper.follow(&config);
        self.injector.config = config;
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    lost: u64,
    duplicated: u64,
    corrupted: u64,
}

/// One random number generator for each fault.
#[derive(Debug)]
struct Dice {
    loss: Rng,
    duplicate: Rng,
    reorder: Rng,
    corrupt: Rng,
    /// Not whether a packet is damaged, but where.
    damage: Rng,
}

impl Dice {
    fn new(seed: u64) -> Self {
        let mut root = Rng::with_seed(seed);
        Self {
            loss: root.fork(),
            duplicate: root.fork(),
            reorder: root.fork(),
            corrupt: root.fork(),
            damage: root.fork(),
        }
    }
}

/// Rolls the dice.
pub(crate) fn happens(p: Probability, rng: &mut Rng) -> bool {
    !p.is_never() && rng.u32(0..Probability::ALWAYS.ppb()) < p.ppb()
}

/// What happens to one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fate {
    is_lost: bool,
    is_corrupted: bool,
    is_duplicated: bool,
    is_late: bool,
}

impl Fate {
    fn marks(self) -> impl Iterator<Item = &'static str> {
        let others =
            [(self.is_corrupted, DAMAGED), (self.is_duplicated, DUPLICATED), (self.is_late, LATE)];
        // A packet that is lost suffers nothing else.
        let lost = [(self.is_lost, LOST)].into_iter();
        let others = others.into_iter().filter(move |_| !self.is_lost);
        lost.chain(others).filter(|(is_so, _)| *is_so).map(|(_, mark)| mark)
    }
}

/// Everything but the link below.
#[derive(Debug)]
struct Injector {
    config: FaultConfig,
    dice: Dice,
    shaper: Shaper,
    counters: Counters,
}

impl Injector {
    fn fate(&mut self) -> Fate {
        Fate {
            is_lost: happens(self.config.loss, &mut self.dice.loss),
            is_corrupted: happens(self.config.corrupt, &mut self.dice.corrupt),
            is_duplicated: happens(self.config.duplicate, &mut self.dice.duplicate),
            is_late: happens(self.config.reorder, &mut self.dice.reorder),
        }
    }

    /// Decides about the packets of a train that has arrived.
    fn arrive(
        &mut self,
        now: Instant,
        train: &RxTrain<'_>,
        switch: &FaultSwitch,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) {
        switch.begin();
        if train.bytes.is_empty() {
            // It has no byte to damage; the check of the ICRC drops and counts it.
            return sink(train);
        }
        let (mut unharmed, mut first) = (0..0, 0);
        for (place, packet) in train.bytes.chunks(train.stride.max(1)).enumerate() {
            let fate = self.fate();
            if fate == Fate::default() {
                unharmed.end += packet.len();
                continue;
            }
            if !unharmed.is_empty() {
                self.shaper.enter(now, &part(train, unharmed.clone()), false, sink);
                self.mark_overflowed(switch, first);
            }
            first = place + 1;
            let end = unharmed.end + packet.len();
            unharmed = end..end;
            fate.marks().for_each(|mark| switch.mark(place, mark));
            self.suffer(now, &RxTrain { bytes: packet, ..*train }, fate, sink);
            self.mark_overflowed(switch, place);
        }
        if !unharmed.is_empty() {
            self.shaper.enter(now, &part(train, unharmed), false, sink);
            self.mark_overflowed(switch, first);
        }
    }

    /// Marks the packets that the shaper did not take, of those that begin at a place.
    fn mark_overflowed(&mut self, switch: &FaultSwitch, first: usize) {
        self.shaper.refused.drain(..).for_each(|place| switch.mark(first + place, OVERFLOWED));
    }

    /// Applies to a packet what was decided about it.
    fn suffer(
        &mut self,
        now: Instant,
        packet: &RxTrain<'_>,
        fate: Fate,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) {
        if fate.is_lost {
            self.counters.lost += 1;
            return;
        }
        let mut bytes = packet.bytes.to_vec();
        if fate.is_corrupted {
            self.counters.corrupted += 1;
            corrupt(&mut bytes, &mut self.dice.damage);
        }
        let packet = RxTrain { bytes: &bytes, ..*packet };
        self.shaper.enter(now, &packet, fate.is_late, sink);
        if fate.is_duplicated {
            self.counters.duplicated += 1;
            self.shaper.enter(now, &packet, false, sink);
        }
    }
}

/// Changes one to eight bits of one byte that the ICRC covers.
fn corrupt(packet: &mut [u8], rng: &mut Rng) {
    /// Byte of the base transport header with the congestion bits, which switches may change.
    const NOT_COVERED: usize = 4;
    if packet.is_empty() {
        return;
    }
    let at = rng.usize(0..packet.len());
    let at = if at == NOT_COVERED { at - 1 } else { at };
    packet[at] ^= rng.u8(1..);
}

impl_layer!(Fault);

impl<C: Carrier> Carrier for Fault<C> {
    forward_to_inner!();

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        self.inner.control(control)
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.inner.send(now, trains)
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        if self.changes != self.switch.changes() {
            self.follow();
        }
        if self.is_harmless && self.injector.shaper.is_empty() {
            return self.inner.receive(now, budget, sink);
        }
        let (injector, switch) = (&mut self.injector, &*self.switch);
        let due = injector.shaper.release(now, budget, sink);
        let arrived = self
            .inner
            .receive(now, budget, &mut |train| injector.arrive(now, train, switch, sink))?;
        Ok(due + arrived)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let own = self.injector.shaper.poll_timeout();
        [self.inner.poll_timeout(), own].into_iter().flatten().min()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        let Counters { lost, duplicated, corrupted } = self.injector.counters;
        counters.extend([
            ("fault_lost", lost),
            ("fault_duplicated", duplicated),
            ("fault_corrupted", corrupted),
        ]);
        self.injector.shaper.add_counters(&mut counters);
        counters
    }
}
