//! The event kernel: a clock, an agenda, hosts and a fabric.
//!
//! The kernel drives engines as a driver does: it delivers packets, serves timers and transmits.
//! Shards of a host have a timer and a link each, so the agenda decides in which order they run.
//!
//! What runs on the hosts enters events of its own type into the agenda ([`Kernel::schedule`]) and
//! gets them back from [`Kernel::advance`].

mod host;
mod steering;
mod trace;

use feroce_fabric::Agenda;
use feroce_testkit::packets;
use feroce_train::{Instant, RxMeta, Single, SingleBuf};
use feroce_wire::Qpn;

pub use host::{Host, Place, RxStyle, Shard, Style};
pub use steering::{Division, Steering};
pub use trace::{Fate, Happening, Head, Trace};

use crate::fabric::{Batch, Delivery, Fabric};

/// An entry of the agenda.
#[derive(Debug)]
enum Entry<E> {
    /// The timer of a shard expires.
    Timer(Place),
    /// The link of a shard can take another train.
    LinkFree(Place),
    /// Packets that had arrived at another shard reach their own.
    PassedOn(usize, Delivery),
    /// An event of what runs on the hosts.
    Guest(E),
}

/// What [`Kernel::advance`] did.
#[derive(Debug)]
pub enum Advanced<E> {
    /// An engine of this host ran: there may be events and completions.
    EngineRan(usize),
    /// An event that was scheduled.
    Event(E),
    /// Nothing: a deadline had moved since it was entered, or packets wait for another shard.
    Stale,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Kernel<F, E> {
    now: Instant,
    agenda: Agenda<Instant, Entry<E>>,
    /// When the fabric wants to be polled.
    fabric_due: Option<Instant>,
    events: u64,
    /// The hosts; host `i` is at port `i` of the fabric.
    pub hosts: Vec<Host>,
    /// The network between them.
    pub fabric: F,
    /// What happened.
    pub trace: Trace,
}

impl<F: Fabric, E> Kernel<F, E> {
    /// A kernel whose clock stands at zero.
    pub fn new(hosts: Vec<Host>, fabric: F, trace: Trace) -> Self {
        let (now, agenda) = (Instant::ZERO, Agenda::default());
        Self { now, agenda, fabric_due: None, events: 0, hosts, fabric, trace }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Enters an event into the agenda.
    pub fn schedule(&mut self, at: Instant, event: E) {
        self.agenda.push(at, Entry::Guest(event));
    }

    /// Adds to the trace.
    pub fn record(&mut self, what: Happening) {
        self.trace.add(self.now, what);
    }

    /// Advances the clock to the next event and handles it. `None`: nothing is left to happen.
    ///
    /// Deliveries come before entries of the agenda that are due at the same time.
    pub fn advance(&mut self) -> Option<Advanced<E>> {
        loop {
            let agenda_at = self.agenda.next_at();
            let Some(at) = self.fabric_due.filter(|&at| agenda_at.is_none_or(|next| at <= next))
            else {
                break;
            };
            self.now = self.now.max(at);
            let (delivery, due) = self.fabric.poll(self.now);
            self.fabric_due = due;
            if let Some(delivery) = delivery {
                self.events += 1;
                return Some(self.steer(delivery));
            }
        }
        let (at, entry) = self.agenda.pop()?;
        (self.now, self.events) = (at, self.events + 1);
        Some(match entry {
            Entry::Timer(place) if self.shard(place).timer_at == Some(at) => {
                let shard = self.shard(place);
                shard.timer_at = None;
                shard.engine.handle_timeout(at);
                self.pump(place);
                Advanced::EngineRan(place.host)
            }
            Entry::LinkFree(place) if self.shard(place).link_free_at == Some(at) => {
                self.shard(place).link_free_at = None;
                self.pump(place);
                Advanced::EngineRan(place.host)
            }
            Entry::PassedOn(shard, delivery) => {
                self.deliver(shard, &delivery);
                Advanced::EngineRan(delivery.to)
            }
            Entry::Timer(_) | Entry::LinkFree(_) => Advanced::Stale,
            Entry::Guest(event) => Advanced::Event(event),
        })
    }

    fn shard(&mut self, place: Place) -> &mut Shard {
        &mut self.hosts[place.host].shards[place.shard]
    }

    /// Packets arrive at a host: at their own shard, or at another that passes them on.
    fn steer(&mut self, delivery: Delivery) -> Advanced<E> {
        let (home, now) = (self.home_of(&delivery), self.now);
        let Host { shards, steering, .. } = &mut self.hosts[delivery.to];
        let arrives_at = steering.arrives_at(delivery.from, home, shards.len());
        match home.filter(|home| *home != arrives_at) {
            None => {
                self.deliver(arrives_at, &delivery);
                Advanced::EngineRan(delivery.to)
            }
            Some(home) => {
                let at = steering.passed_on(now, arrives_at, home);
                steering.packets += delivery.batch.packets.len() as u64;
                self.record_packets(&delivery, Fate::Strayed);
                self.agenda.push(at, Entry::PassedOn(home, delivery));
                Advanced::Stale
            }
        }
    }

    /// The packets of a batch are of one train, and so for one queue pair.
    fn home_of(&self, delivery: &Delivery) -> Option<usize> {
        self.hosts[delivery.to].home_of(delivery.batch.packets.first()?)
    }

    fn record_packets(&mut self, delivery: &Delivery, fate: Fate) {
        let Delivery { from, to, batch } = delivery;
        for packet in &batch.packets {
            let head = Head::new(packet);
            self.record(Happening::Packet { from: *from, to: *to, fate, head });
        }
    }

    fn deliver(&mut self, shard: usize, delivery: &Delivery) {
        self.record_packets(delivery, Fate::Delivered);
        let Delivery { to, batch, .. } = delivery;
        let (place, now) = (Place { host: *to, shard }, self.now);
        let style = self.hosts[*to].style.rx;
        match style {
            RxStyle::Train => self.shard(place).receive_trains(now, batch),
            RxStyle::Packets | RxStyle::EachPacket => {
                for i in 0..batch.packets.len() {
                    self.shard(place).receive_one(now, batch, i);
                    if style == RxStyle::EachPacket {
                        self.pump(place);
                    }
                }
            }
        }
        self.pump(place);
    }

    /// Packets that no host sent arrive at a host.
    pub fn forge(&mut self, to: usize, batch: Batch) {
        let delivery = Delivery { from: to, to, batch };
        self.record_packets(&delivery, Fate::Forged);
        let shard = self.home_of(&delivery).unwrap_or(0);
        let (place, now) = (Place { host: to, shard }, self.now);
        self.shard(place).receive_trains(now, &delivery.batch);
        self.pump(place);
    }

    /// The shard runs at `at`, or before.
    pub fn wake(&mut self, place: Place, at: Instant) {
        let Shard { timer_at, .. } = self.shard(place);
        if timer_at.is_none_or(|old| at < old) {
            *timer_at = Some(at);
            self.agenda.push(at, Entry::Timer(place));
        }
    }

    /// Transmits what an engine wants sent, and enters its next deadline into the agenda.
    pub fn pump(&mut self, place: Place) {
        let now = self.now;
        let Self { hosts, fabric, trace, agenda, .. } = self;
        let Host { shards, style, .. } = &mut hosts[place.host];
        let Shard { engine, link_free_at, .. } = &mut shards[place.shard];
        engine.hold_acks(style.acks_wait && !engine.has_held_acks());
        while link_free_at.is_none() {
            let Some(train) = engine.poll_transmit(now, &style.caps) else {
                break;
            };
            let batch = Batch {
                meta: RxMeta::from(&train.path),
                packets: packets(&train).into_iter().map(|packet| packet.bytes).collect(),
            };
            fabric.inject(now, place.host, batch, trace);
            self.fabric_due = Some(now);
            engine.trains_read();
            if style.one_train {
                let at = now.plus_nanos(100 + train.total_len() as u64 / 4);
                *link_free_at = Some(at);
                agenda.push(at, Entry::LinkFree(place));
            }
        }
        // Trains from a queue pair to another of the same engine do not leave it.
        engine.trains_read();
        let is_busy = link_free_at.is_some();
        let acks_due = engine.has_held_acks().then(|| now.plus_nanos(300));
        let timeout = [engine.poll_timeout(), acks_due].into_iter().flatten().min();
        if let Some(at) = timeout.filter(|_| !is_busy || timeout > Some(now)) {
            self.wake(place, at.max(now.plus_nanos(1)));
        }
    }

    /// Sends the one request that was just posted on `qpn` directly. False: the doorbell must be
    /// rung.
    pub fn send_directly(&mut self, place: Place, qpn: Qpn) -> bool {
        let now = self.now;
        let Self { hosts, fabric, trace, fabric_due, .. } = self;
        let Host { shards, style, .. } = &mut hosts[place.host];
        let Shard { engine, link_free_at, .. } = &mut shards[place.shard];
        // While its link is busy, a shard sends nothing.
        if !style.fast_path || link_free_at.is_some() {
            return false;
        }
        let mut packet = SingleBuf::default();
        if !engine.try_fast_path(qpn, &mut packet, |_| (), || now) {
            return false;
        }
        let Single { path, bytes, .. } = packet.get();
        let batch = Batch { meta: RxMeta::from(path), packets: vec![bytes.to_vec()] };
        fabric.inject(now, place.host, batch, trace);
        *fabric_due = Some(now);
        true
    }
}
