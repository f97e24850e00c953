//! Several captures as one: in the order of time, and each packet once.
//!
//! A packet that two captures hold, that of its sender and that of its receiver for example, has
//! the same bytes in both. A packet that is sent again has the same bytes as well, so one packet of
//! a capture stands for at most one packet of each other capture, the one nearest before it.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::io;

use pcap_parser::Linktype;

use super::capture::{self, End, Record};
use super::dissect::{Carried, Port, dissect, tcp};
use crate::words;

/// Most captures.
pub(super) const MOST: usize = 64;

/// Between the times of one packet in two captures lies at most this much.
const WINDOW_NS: u64 = 1_000_000_000;

/// Bytes of a packet, from the base transport header on, that tell it from others. Captures may
/// cut packets at different lengths.
const TOLD_BY: usize = 64;

/// A capture.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) end: End,
    /// Packets in it.
    pub(super) packets: u64,
    /// How far its clock is ahead of that of the captures before it, in nanoseconds.
    pub(super) ahead_ns: i64,
    records: Vec<Owned>,
}

/// A record, with bytes of its own.
#[derive(Debug)]
struct Owned {
    time_ns: Option<u64>,
    link: Linktype,
    bytes: Vec<u8>,
    is_cut: bool,
    mark: Option<&'static str>,
    /// What is in it: several packets if it was captured before segmentation.
    keys: Vec<Key>,
    /// Its time, or that of the record before it if it has none, by the clock of the first capture.
    at_ns: u64,
}

/// What tells packets apart, and who sends to whom where that is known.
#[derive(Clone, Copy, Debug)]
struct Key {
    hash: u128,
    route: Option<(Port, Port)>,
}

/// A packet, once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Its place among the packets of its record.
    pub(super) nth: usize,
    /// The captures that have it, a bit each.
    pub(super) files: u64,
    /// What an adapter did to it, by any capture.
    pub(super) mark: Option<&'static str>,
    /// Its number among those of all captures.
    number: u64,
    at_ns: u64,
    route: Option<(Port, Port)>,
}

/// Captures, ready to be shown as one.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) sources: Vec<Source>,
    packets: Vec<Packet>,
    /// Capture, record and packets of each record that has packets of its own, in order.
    order: Vec<(usize, usize, Vec<usize>)>,
}

impl Source {
    /// Reads a capture into memory.
    pub(super) fn read(name: String, file: impl io::Read + Send) -> Self {
        let (mut records, mut at_ns) = (Vec::new(), 0);
        let end = capture::read(file, |record| {
            let Record { time_ns, link, bytes, is_cut, mark } = record;
            at_ns = time_ns.unwrap_or(at_ns);
            let (keys, bytes) = (keys(&record), bytes.to_vec());
            records.push(Owned { time_ns, link, bytes, is_cut, mark, keys, at_ns });
            true
        });
        let packets = records.iter().map(|record| record.keys.len() as u64).sum();
        Self { name, end, packets, ahead_ns: 0, records }
    }

    /// What it holds, in a line.
    pub(super) fn text(&self) -> String {
        let clock = match self.ahead_ns {
            0 => String::new(),
            ahead => {
                let by = words::duration(ahead.unsigned_abs());
                let way = if ahead > 0 { "ahead of" } else { "behind" };
                format!("; its clock is {by} {way} the first one, and its times are corrected")
            }
        };
        format!("{}: {} packets{clock}", self.name, self.packets)
    }

    /// The first and the last time in it.
    fn span(&self) -> Option<(u64, u64)> {
        let times = || self.records.iter().map(|record| record.at_ns);
        times().min().zip(times().max())
    }

    /// The packets that it has exactly once, with their times.
    fn unique(&self) -> BTreeMap<u128, (u64, Key)> {
        let mut found: BTreeMap<u128, Option<(u64, Key)>> = BTreeMap::new();
        for record in &self.records {
            for key in &record.keys {
                let once = Some((record.at_ns, *key));
                found.entry(key.hash).and_modify(|other| *other = None).or_insert(once);
            }
        }
        found.into_iter().filter_map(|(hash, once)| Some((hash, once?))).collect()
    }
}

impl Owned {
    fn record(&self) -> Record<'_> {
        let Self { time_ns, link, is_cut, .. } = *self;
        // What became of a packet is known of each packet, by all captures together.
        let time_ns = time_ns.map(|_| self.at_ns);
        Record { time_ns, link, bytes: &self.bytes, is_cut, mark: None }
    }
}

/// What tells the packets of a record from others.
fn keys(record: &Record<'_>) -> Vec<Key> {
    if let Some(segment) = tcp(record) {
        return vec![Key { hash: hash(&segment.identity()), route: None }];
    }
    match dissect(record) {
        Ok(packets) => {
            let key = |packet: &Carried<'_>| {
                let told = packet.transport.get(..TOLD_BY).unwrap_or(packet.transport);
                let what = (packet.src, packet.dst, packet.wire_len, told);
                Key { hash: hash(&what), route: Some((packet.src, packet.dst)) }
            };
            packets.iter().map(key).collect()
        }
        Err(_) => vec![Key { hash: hash(&record.bytes), route: None }],
    }
}

fn hash(what: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        what.hash(&mut hasher);
        hasher.finish()
    };
    u128::from(half(0)) << 64 | u128::from(half(1))
}

impl Merged {
    /// Puts captures together.
    pub(super) fn new(mut sources: Vec<Source>) -> Self {
        for at in 1..sources.len() {
            let (before, from) = sources.split_at_mut(at);
            if let Some(source) = from.first_mut() {
                source.ahead_ns = before.iter().find_map(|other| skew(other, source)).unwrap_or(0);
                let ahead = source.ahead_ns;
                let records = source.records.iter_mut();
                records.for_each(|r| r.at_ns = r.at_ns.saturating_add_signed(-ahead));
            }
        }
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (file, source) in sources.iter().enumerate() {
            all.extend((0..source.records.len()).map(|record| (file, record)));
        }
        // Stable: records of one capture that have the same time stay in order.
        all.sort_by_key(|&(file, record)| sources[file].records[record].at_ns);
        let mut merged = Self { sources, packets: Vec::new(), order: Vec::new() };
        let mut seen: HashMap<u128, Vec<usize>> = HashMap::new();
        for (file, record) in all {
            merged.take(file, record, &mut seen);
        }
        merged
    }

    fn take(&mut self, file: usize, record: usize, seen: &mut HashMap<u128, Vec<usize>>) {
        let Owned { at_ns, mark, ref keys, .. } = self.sources[file].records[record];
        let (bit, mut own) = (1 << file, Vec::new());
        for (nth, key) in keys.iter().enumerate() {
            let known = seen.entry(key.hash).or_default();
            let near = known.iter().rev().copied();
            let mut near = near.take_while(|&at| at_ns - self.packets[at].at_ns <= WINDOW_NS);
            if let Some(at) = near.find(|&at| self.packets[at].files & bit == 0) {
                let packet = &mut self.packets[at];
                packet.files |= bit;
                packet.mark = packet.mark.or(mark);
                continue;
            }
            known.push(self.packets.len());
            own.push(self.packets.len());
            let route = key.route;
            self.packets.push(Packet { nth, files: bit, mark, number: 0, at_ns, route });
        }
        if !own.is_empty() {
            self.order.push((file, record, own));
        }
    }

    /// Hands over every record that has packets of its own, with these packets and how many
    /// packets it has in all. `each` returns the number of the first of them.
    pub(super) fn each(
        &mut self,
        mut each: impl FnMut(Record<'_>, &[Packet], usize) -> io::Result<u64>,
    ) -> io::Result<()> {
        for (file, record, own) in &self.order {
            let record = &self.sources[*file].records[*record];
            let packets: Vec<Packet> = own.iter().map(|&at| self.packets[at]).collect();
            let first = each(record.record(), &packets, record.keys.len())?;
            for (number, &at) in (first..).zip(own) {
                self.packets[at].number = number;
            }
        }
        Ok(())
    }

    /// Packets that one capture has and another one does not, though it has others of the same
    /// sender to the same receiver.
    pub(super) fn missing(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (a, has) in self.sources.iter().enumerate() {
            for (b, lacks) in self.sources.iter().enumerate().filter(|(b, _)| *b != a) {
                let Some(((a0, a1), (b0, b1))) = has.span().zip(lacks.span()) else { continue };
                let both = a0.max(b0)..=a1.min(b1);
                let (bit_a, bit_b) = (1 << a, 1 << b);
                let mut routes: BTreeMap<(Port, Port), [u64; 3]> = BTreeMap::new();
                for packet in self.packets.iter().filter(|p| p.files & bit_a != 0) {
                    let Some(route) = packet.route else { continue };
                    let [shared, alone, first] = routes.entry(route).or_default();
                    if packet.files & bit_b != 0 {
                        *shared += 1;
                    } else if both.contains(&packet.at_ns) {
                        *first = if *alone == 0 { packet.number } else { *first };
                        *alone += 1;
                    }
                }
                routes.retain(|_, [shared, alone, _]| *shared > 0 && *alone > 0);
                found.extend(routes.iter().map(|((src, dst), [_, alone, first])| {
                    let packets = if *alone == 1 { "packet is" } else { "packets are" };
                    format!(
                        "{src} → {dst}: {alone} {packets} in {} and not in {}, the first is packet \
                         {first}: lost between the two, or not captured",
                        has.name, lacks.name
                    )
                }));
            }
        }
        found
    }
}

/// How far the clock of a capture is ahead of that of another, by the packets that both have; 0 if
/// the times of these packets are possible with equal clocks. `None` if they have none in common.
fn skew(reference: &Source, source: &Source) -> Option<i64> {
    let known = reference.unique();
    // By the two ends, the lower one first: what the times differ by, there and back.
    let mut pairs: BTreeMap<(Port, Port), [Vec<i64>; 2]> = BTreeMap::new();
    for (hash, (at, key)) in source.unique() {
        let (Some((there, _)), Some((src, dst))) = (known.get(&hash), key.route) else { continue };
        let difference = i128::from(at) - i128::from(*there);
        let difference = i64::try_from(difference).unwrap_or(0);
        let [forth, back] = pairs.entry((src.min(dst), src.max(dst))).or_default();
        if src < dst { forth.push(difference) } else { back.push(difference) }
    }
    let median = |all: &mut Vec<i64>| {
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let most = pairs.into_values().max_by_key(|[forth, back]| forth.len().min(back.len()))?;
    let [mut forth, mut back] = most;
    let (forth, back) = median(&mut forth).zip(median(&mut back))?;
    // A packet is at its sender before it is at its receiver: with equal clocks, the two differ in
    // sign.
    let is_ahead = forth.signum() == back.signum();
    Some(if is_ahead { i64::midpoint(forth, back) } else { 0 })
}
