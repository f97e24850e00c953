//! Disturbs what streams receive at random, reproducibly from a seed.
//!
//! TCP repairs what packets suffer, so the faults here are those that it does not: bytes that
//! change between the checksums of TCP and the memory, connections that are cut or reset, delay,
//! and a slow path. A stream is divided into blocks of [`BLOCK`] bytes, and what happens in each is
//! decided by the seed, the number of the stream and the number of the block: how the kernel cuts
//! the stream when it hands it over changes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use fastrand::Rng;
use feroce_train::Instant;

use super::{StreamId, TcpEvent};
use crate::fault::happens;
use crate::{FaultConfig, FaultSwitch, LinkCounters};

/// Bytes that have one fate.
const BLOCK: u64 = 1024;

/// What the owner has to do with a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultOrder {
    /// Leave what arrives to TCP, or take it again.
    Pause(StreamId, bool),
    /// Break the connection.
    Reset(StreamId),
}

/// Damages, cuts, resets, delays and slows down what streams receive.
#[derive(Debug)]
pub struct StreamFaults {
    config: FaultConfig,
    switch: Arc<FaultSwitch>,
    /// How often the switch was set when `config` was taken from it.
    changes: u64,
    streams: BTreeMap<StreamId, Victim>,
    /// What is not due yet, by time and then in order.
    held: BTreeMap<(Instant, u64), (StreamId, Held)>,
    /// How many streams and held pieces there were.
    seen: u64,
    serial: u64,
    /// When what has arrived so far has passed a slow path.
    free_at: Instant,
    orders: Vec<FaultOrder>,
    corrupted: u64,
    cut: u64,
    reset: u64,
}

/// What happens to a stream.
#[derive(Debug)]
struct Victim {
    /// Which stream it is, from 1.
    number: u64,
    dice: Dice,
    position: u64,
    /// Where something happens in this block.
    corrupt_at: Option<u64>,
    break_at: Option<(u64, Break)>,
    /// When the last piece is due; order is kept.
    last: Instant,
    held: u64,
    is_paused: bool,
    /// It was cut: nothing of it is handed over any more.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Cut,
    Reset,
}

#[derive(Debug)]
enum Held {
    Data(Vec<u8>),
    End(Option<io::Error>),
}

/// One random number generator for each fault, so that switching one on does not change what
/// another does.
#[derive(Debug)]
struct Dice {
    corrupt: Rng,
    cut: Rng,
    reset: Rng,
    jitter: Rng,
    /// Not whether a block is damaged, but how.
    damage: Rng,
}

impl StreamFaults {
    /// Faults as configured; those that TCP repairs do nothing.
    pub fn new(config: FaultConfig) -> Self {
        Self::with_switch(Arc::new(FaultSwitch::new(config)))
    }

    /// Faults as `switch` says, which may change.
    pub fn with_switch(switch: Arc<FaultSwitch>) -> Self {
        let (changes, config) = (switch.changes(), switch.get());
        Self {
            config,
            switch,
            changes,
            streams: BTreeMap::new(),
            held: BTreeMap::new(),
            seen: 0,
            serial: 0,
            free_at: Instant::ZERO,
            orders: Vec::new(),
            corrupted: 0,
            cut: 0,
            reset: 0,
        }
    }

    /// Takes other faults from the switch. What they do to a stream begins where the stream is now;
    /// pieces that are held stay held until they are due.
    #[cold]
    fn renew(&mut self) {
        self.changes = self.switch.changes();
        self.config = self.switch.get();
        for victim in self.streams.values_mut() {
            victim.dice = Dice::new(self.config.seed, victim.number);
            victim.draw(&self.config);
        }
    }

    /// Something has happened: hands it over, as it is or worse, now or later.
    pub fn arrive(
        &mut self,
        now: Instant,
        event: TcpEvent<'_>,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) {
        if self.changes != self.switch.changes() {
            self.renew();
        }
        match event {
            TcpEvent::Accepted { stream, .. } | TcpEvent::Connected { stream, .. } => {
                self.seen += 1;
                let victim = Victim::new(self.config.seed, self.seen);
                self.streams.insert(stream, victim);
                sink(event);
            }
            TcpEvent::Data { stream, bytes } => self.data(now, stream, bytes, sink),
            TcpEvent::Ended { stream, error } => {
                let is_over = self.streams.get(&stream).is_none_or(|victim| victim.is_over);
                if !is_over {
                    self.end(now, stream, error, sink);
                }
            }
            TcpEvent::Failed { .. }
            | TcpEvent::Sent { .. }
            | TcpEvent::Where { .. }
            | TcpEvent::Landed { .. } => sink(event),
        }
    }

    fn data(
        &mut self,
        now: Instant,
        stream: StreamId,
        bytes: &[u8],
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) {
        let Some(victim) = self.streams.get_mut(&stream).filter(|victim| !victim.is_over) else {
            return;
        };
        let (bytes, corrupted, broken) = victim.suffer(&self.config, bytes);
        self.corrupted += corrupted;
        if !bytes.is_empty() {
            self.deliver(now, stream, bytes, sink);
        }
        let Some(broken) = broken else { return };
        let error = match broken {
            Break::Cut => {
                self.cut += 1;
                None
            }
            Break::Reset => {
                self.reset += 1;
                self.orders.push(FaultOrder::Reset(stream));
                Some(ErrorKind::ConnectionReset.into())
            }
        };
        self.end(now, stream, error, sink);
    }

    fn deliver(
        &mut self,
        now: Instant,
        stream: StreamId,
        bytes: Cow<'_, [u8]>,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) {
        let due = self.due(now, stream, bytes.len() as u64);
        let Some(victim) = self.streams.get_mut(&stream) else { return };
        if due <= now && victim.held == 0 {
            return sink(TcpEvent::Data { stream, bytes: &bytes });
        }
        victim.held += bytes.len() as u64;
        if !victim.is_paused && victim.held >= self.config.queue_bytes {
            victim.is_paused = true;
            self.orders.push(FaultOrder::Pause(stream, true));
        }
        self.hold(due, stream, Held::Data(bytes.into_owned()));
    }

    fn end(
        &mut self,
        now: Instant,
        stream: StreamId,
        error: Option<io::Error>,
        sink: &mut dyn FnMut(TcpEvent<'_>),
    ) {
        let due = self.due(now, stream, 0);
        let Some(victim) = self.streams.get_mut(&stream) else { return };
        victim.is_over = true;
        if due <= now && victim.held == 0 {
            return sink(TcpEvent::Ended { stream, error });
        }
        self.hold(due, stream, Held::End(error));
    }

    /// When a piece that has arrived is due.
    fn due(&mut self, now: Instant, stream: StreamId, len: u64) -> Instant {
        let FaultConfig { delay_ns, jitter_ns, rate_bps, .. } = self.config;
        let Some(victim) = self.streams.get_mut(&stream) else { return now };
        let mut due = now;
        if rate_bps > 0 {
            let ns = u128::from(len) * 8_000_000_000 / u128::from(rate_bps);
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            self.free_at = self.free_at.max(now).plus_nanos(ns);
            due = self.free_at;
        }
        let least = delay_ns.saturating_sub(jitter_ns);
        let most = delay_ns.saturating_add(jitter_ns);
        let delay = if most > least { victim.dice.jitter.u64(least..=most) } else { delay_ns };
        victim.last = due.plus_nanos(delay).max(victim.last);
        victim.last
    }

    fn hold(&mut self, due: Instant, stream: StreamId, held: Held) {
        self.serial += 1;
        self.held.insert((due, self.serial), (stream, held));
    }

    /// Hands over what is due, and returns how many pieces that were.
    pub fn release(&mut self, now: Instant, sink: &mut dyn FnMut(TcpEvent<'_>)) -> usize {
        let mut count = 0;
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let (stream, held) = first.remove();
            // The owner has ended the stream: its pieces are discarded.
            let Some(victim) = self.streams.get_mut(&stream) else { continue };
            count += 1;
            match held {
                Held::Data(bytes) => {
                    victim.held = victim.held.saturating_sub(bytes.len() as u64);
                    if victim.is_paused && victim.held <= self.config.queue_bytes / 2 {
                        victim.is_paused = false;
                        self.orders.push(FaultOrder::Pause(stream, false));
                    }
                    sink(TcpEvent::Data { stream, bytes: &bytes });
                }
                Held::End(error) => sink(TcpEvent::Ended { stream, error }),
            }
        }
        count
    }

    /// When [`StreamFaults::release`] has something to hand over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.held.first_key_value().map(|((due, _), _)| *due)
    }

    /// What the owner has to do with streams.
    pub fn take_orders(&mut self) -> Vec<FaultOrder> {
        std::mem::take(&mut self.orders)
    }

    /// The owner has ended a stream.
    pub fn finished(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// What happened so far.
    pub fn counters(&self) -> LinkCounters {
        vec![
            ("fault_corrupted", self.corrupted),
            ("fault_cut", self.cut),
            ("fault_reset", self.reset),
            ("fault_held", self.serial),
        ]
    }
}

impl Dice {
    fn new(seed: u64, number: u64) -> Self {
        let mut root = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self {
            corrupt: root.fork(),
            cut: root.fork(),
            reset: root.fork(),
            jitter: root.fork(),
            damage: root.fork(),
        }
    }
}

impl Victim {
    fn new(seed: u64, number: u64) -> Self {
        Self {
            number,
            dice: Dice::new(seed, number),
            position: 0,
            corrupt_at: None,
            break_at: None,
            last: Instant::ZERO,
            held: 0,
            is_paused: false,
            is_over: false,
        }
    }

    /// Decides what happens in the rest of the block that the stream is in.
    fn draw(&mut self, config: &FaultConfig) {
        let begin = self.position;
        let end = (begin / BLOCK + 1) * BLOCK;
        let place = |rng: &mut Rng| rng.u64(begin..end);
        let Dice { corrupt, cut, reset, .. } = &mut self.dice;
        self.corrupt_at = happens(config.corrupt, corrupt).then(|| place(corrupt));
        let cut = happens(config.cut, cut).then(|| (place(cut), Break::Cut));
        let reset = happens(config.reset, reset).then(|| (place(reset), Break::Reset));
        self.break_at = cut.into_iter().chain(reset).min_by_key(|(at, _)| *at);
    }

    /// What is left of `bytes`, how many bytes were changed, and what happens behind it.
    fn suffer<'a>(
        &mut self,
        config: &FaultConfig,
        bytes: &'a [u8],
    ) -> (Cow<'a, [u8]>, u64, Option<Break>) {
        let (mut bytes, mut corrupted) = (Cow::Borrowed(bytes), 0);
        let begin = self.position;
        let end = begin + bytes.len() as u64;
        while self.position < end {
            if self.position.is_multiple_of(BLOCK) {
                self.draw(config);
            }
            let here = self.position..end.min((self.position / BLOCK + 1) * BLOCK);
            if let Some(at) = self.corrupt_at.filter(|at| here.contains(at)) {
                corrupted += 1;
                let damage = self.dice.damage.u8(1..);
                if let Some(byte) = bytes.to_mut().get_mut((at - begin) as usize) {
                    *byte ^= damage;
                }
            }
            if let Some((at, broken)) = self.break_at.filter(|(at, _)| here.contains(at)) {
                let len = (at - begin) as usize;
                bytes = match bytes {
                    Cow::Borrowed(all) => Cow::Borrowed(all.get(..len).unwrap_or(all)),
                    Cow::Owned(mut all) => {
                        all.truncate(len);
                        Cow::Owned(all)
                    }
                };
                return (bytes, corrupted, Some(broken));
            }
            self.position = here.end;
        }
        (bytes, corrupted, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(1);

    /// What is left of `bytes` that arrive in pieces of `len`, and how the stream ends.
    fn left(fault: &str, bytes: &[u8], len: usize) -> (Vec<u8>, Option<bool>) {
        let mut faults = StreamFaults::new(fault.parse().expect("well written"));
        let (mut arrived, mut ended) = (Vec::new(), None);
        let mut sink = |event: TcpEvent<'_>| match event {
            TcpEvent::Data { bytes, .. } => arrived.extend_from_slice(bytes),
            TcpEvent::Ended { error, .. } => ended = Some(error.is_some()),
            _ => {}
        };
        let local = ([127, 0, 0, 1], 1).into();
        let now = Instant::ZERO.plus_nanos(7);
        faults.arrive(now, TcpEvent::Connected { stream: STREAM, local, mss: 1448 }, &mut sink);
        for bytes in bytes.chunks(len) {
            faults.arrive(now, TcpEvent::Data { stream: STREAM, bytes }, &mut sink);
        }
        while let Some(at) = faults.poll_timeout() {
            assert!(faults.release(at, &mut sink) > 0);
        }
        (arrived, ended)
    }

    #[test]
    fn how_a_stream_is_cut_into_pieces_changes_nothing() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        for fault in ["corrupt=30%,seed=4", "cut=3%,seed=5", "reset=2%,corrupt=9%,delay=1ms~1ms"] {
            let whole = left(fault, &bytes, bytes.len());
            assert_ne!(whole, (bytes.clone(), None), "{fault}");
            for len in [1, 7, 1024, 1448, 65_536] {
                assert_eq!(left(fault, &bytes, len), whole, "{fault} {len}");
            }
        }
        assert_eq!(left("delay=1ms~1ms,rate=1Mbit", &bytes, 999), (bytes, None));
    }

    #[test]
    fn faults_of_an_open_stream_are_switched_on_and_off() {
        let switch = Arc::new(FaultSwitch::new(FaultConfig::default()));
        let mut faults = StreamFaults::with_switch(Arc::clone(&switch));
        let local = ([127, 0, 0, 1], 1).into();
        let now = Instant::ZERO;
        let connected = TcpEvent::Connected { stream: STREAM, local, mss: 1448 };
        faults.arrive(now, connected, &mut |_| ());
        // Blocks and pieces begin at different places.
        let bytes = &[0x55; 10 * BLOCK as usize + 100];
        let mut damaged = || {
            let mut count = 0;
            faults.arrive(now, TcpEvent::Data { stream: STREAM, bytes }, &mut |event| {
                let TcpEvent::Data { bytes, .. } = event else { panic!("{event:?}") };
                count += bytes.iter().filter(|&&byte| byte != 0x55).count();
            });
            count
        };
        assert_eq!(damaged(), 0);
        switch.set("corrupt=100%,seed=3".parse().expect("well written"));
        // The rest of a block, nine blocks, and the beginning of another.
        assert!((10..=11).contains(&damaged()));
        switch.set(FaultConfig::default());
        assert_eq!(damaged(), 0, "not even in the block that a fault was drawn for");
    }

    #[test]
    fn a_slow_path_holds_a_bounded_queue() {
        let mut faults = StreamFaults::new("rate=1Mbit:4KiB".parse().expect("well written"));
        let mut ignore = |_: TcpEvent<'_>| ();
        let local = ([127, 0, 0, 1], 1).into();
        let now = Instant::ZERO;
        faults.arrive(now, TcpEvent::Connected { stream: STREAM, local, mss: 1448 }, &mut ignore);
        for _ in 0..4 {
            assert_eq!(faults.take_orders(), []);
            let bytes = &[0; 1024];
            faults.arrive(now, TcpEvent::Data { stream: STREAM, bytes }, &mut ignore);
        }
        assert_eq!(faults.take_orders(), [FaultOrder::Pause(STREAM, true)]);
        // 1024 bytes take 8.192 ms: half of the queue is empty after two of them.
        assert_eq!(faults.release(now.plus_nanos(16_384_000), &mut ignore), 2);
        assert_eq!(faults.take_orders(), [FaultOrder::Pause(STREAM, false)]);
        // What the owner has ended is discarded.
        faults.finished(STREAM);
        assert_eq!(faults.release(now.plus_nanos(99_000_000), &mut ignore), 0);
        assert_eq!(faults.poll_timeout(), None);
    }
}
