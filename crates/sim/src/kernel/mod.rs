//! The event kernel: a clock, an agenda, hosts and a fabric.
//!
//! The kernel drives engines as a driver does: it delivers packets, serves timers and transmits.
//! What runs on the hosts enters events of its own type into the agenda ([`Kernel::schedule`]) and
//! gets them back from [`Kernel::advance`].

mod host;
mod trace;

use feroce_fabric::Agenda;
use feroce_testkit::packets;
use feroce_train::{Instant, RxMeta, Single, SingleBuf};
use feroce_wire::Qpn;

pub use host::{Host, RxStyle, Style};
pub use trace::{Fate, Happening, Head, Trace};

use crate::fabric::{Batch, Delivery, Fabric};

/// An entry of the agenda.
#[derive(Debug)]
enum Entry<E> {
    /// The timer of a host expires.
    Timer(usize),
    /// The link of a host can take another train.
    LinkFree(usize),
    /// An event of what runs on the hosts.
    Guest(E),
}

/// What [`Kernel::advance`] did.
#[derive(Debug)]
pub enum Advanced<E> {
    /// The engine of this host ran: there may be events and completions.
    EngineRan(usize),
    /// An event that was scheduled.
    Event(E),
    /// Nothing: a deadline had moved since it was entered.
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
                self.deliver(&delivery);
                return Some(Advanced::EngineRan(delivery.to));
            }
        }
        let (at, entry) = self.agenda.pop()?;
        (self.now, self.events) = (at, self.events + 1);
        Some(match entry {
            Entry::Timer(host) if self.hosts[host].timer_at == Some(at) => {
                self.hosts[host].timer_at = None;
                self.hosts[host].engine.handle_timeout(at);
                self.pump(host);
                Advanced::EngineRan(host)
            }
            Entry::LinkFree(host) if self.hosts[host].link_free_at == Some(at) => {
                self.hosts[host].link_free_at = None;
                self.pump(host);
                Advanced::EngineRan(host)
            }
            Entry::Timer(_) | Entry::LinkFree(_) => Advanced::Stale,
            Entry::Guest(event) => Advanced::Event(event),
        })
    }

    fn deliver(&mut self, delivery: &Delivery) {
        let Delivery { from, to, batch } = delivery;
        let (from, to) = (*from, *to);
        for packet in &batch.packets {
            let (fate, head) = (Fate::Delivered, Head::new(packet));
            self.record(Happening::Packet { from, to, fate, head });
        }
        let style = self.hosts[to].style.rx;
        match style {
            RxStyle::Train => self.hosts[to].receive_trains(self.now, batch),
            RxStyle::Packets | RxStyle::EachPacket => {
                for i in 0..batch.packets.len() {
                    self.hosts[to].receive_one(self.now, batch, i);
                    if style == RxStyle::EachPacket {
                        self.pump(to);
                    }
                }
            }
        }
        self.pump(to);
    }

    /// Packets that no host sent arrive at a host.
    pub fn forge(&mut self, to: usize, batch: &Batch) {
        for packet in &batch.packets {
            let (fate, head) = (Fate::Forged, Head::new(packet));
            self.record(Happening::Packet { from: to, to, fate, head });
        }
        self.hosts[to].receive_trains(self.now, batch);
        self.pump(to);
    }

    /// Transmits what an engine wants sent, and enters its next deadline into the agenda.
    pub fn pump(&mut self, host: usize) {
        let now = self.now;
        let Self { hosts, fabric, trace, agenda, .. } = self;
        let Host { engine, style, link_free_at, timer_at, .. } = &mut hosts[host];
        engine.hold_acks(style.acks_wait && !engine.has_held_acks());
        while link_free_at.is_none() {
            let Some(train) = engine.poll_transmit(now, &style.caps) else {
                break;
            };
            let batch = Batch {
                meta: RxMeta::from(&train.path),
                packets: packets(&train).into_iter().map(|packet| packet.bytes).collect(),
            };
            fabric.inject(now, host, batch, trace);
            self.fabric_due = Some(now);
            engine.trains_read();
            if style.one_train {
                let at = now.plus_nanos(100 + train.total_len() as u64 / 4);
                *link_free_at = Some(at);
                agenda.push(at, Entry::LinkFree(host));
            }
        }
        // Trains from a queue pair to another of the same engine do not leave it.
        engine.trains_read();
        let is_busy = link_free_at.is_some();
        let acks_due = engine.has_held_acks().then(|| now.plus_nanos(300));
        let timeout = [engine.poll_timeout(), acks_due].into_iter().flatten().min();
        if let Some(at) = timeout.filter(|_| !is_busy || timeout > Some(now)) {
            let at = at.max(now.plus_nanos(1));
            if timer_at.is_none_or(|old| at < old) {
                *timer_at = Some(at);
                agenda.push(at, Entry::Timer(host));
            }
        }
    }

    /// Sends the one request that was just posted on `qpn` directly. False: the doorbell must be
    /// rung.
    pub fn send_directly(&mut self, host: usize, qpn: Qpn) -> bool {
        let now = self.now;
        let Self { hosts, fabric, trace, fabric_due, .. } = self;
        let Host { engine, style, link_free_at, .. } = &mut hosts[host];
        // While its link is busy, a host sends nothing.
        if !style.fast_path || link_free_at.is_some() {
            return false;
        }
        let mut packet = SingleBuf::default();
        if !engine.try_fast_path(qpn, &mut packet, |_| (), || now) {
            return false;
        }
        let Single { path, bytes, .. } = packet.get();
        let batch = Batch { meta: RxMeta::from(path), packets: vec![bytes.to_vec()] };
        fabric.inject(now, host, batch, trace);
        *fabric_due = Some(now);
        true
    }
}
