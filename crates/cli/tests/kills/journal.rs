//! What the processes note while they run, and what the disk may hold after that.
//!
//! A line is one `write` to a file that is only appended to, so it outlives the process that wrote
//! it. A line about a write comes before the command is sent; a line about its end after the
//! completion has come.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use super::blocks::{BLOCK, SLOT_BLOCKS, SLOTS, write_of};

/// A line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// The parts have had writes up to this number, and block by block a known content.
    Base { slot: u64, last: u64 },
    /// A target is about to be started; the ones before have ended.
    Target(u64),
    /// A host is about to be started.
    Host(u64),
    /// A host has ended.
    Dead(u64),
    /// A write of blocks of a part begins.
    Write { slot: u64, seq: u64, first: u64, count: u64 },
    /// It was acknowledged.
    Written { slot: u64, seq: u64 },
    /// A flush begins.
    Flush(u64),
    /// It was acknowledged.
    Flushed(u64),
}

impl Line {
    fn text(self) -> String {
        match self {
            Self::Base { slot, last } => format!("base {slot} {last}\n"),
            Self::Target(number) => format!("target {number}\n"),
            Self::Host(number) => format!("host {number}\n"),
            Self::Dead(number) => format!("dead {number}\n"),
            Self::Write { slot, seq, first, count } => {
                format!("write {slot} {seq} {first} {count}\n")
            }
            Self::Written { slot, seq } => format!("written {slot} {seq}\n"),
            Self::Flush(number) => format!("flush {number}\n"),
            Self::Flushed(number) => format!("flushed {number}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(match (kind, &numbers[..]) {
            ("base", &[slot, last]) => Self::Base { slot, last },
            ("target", &[number]) => Self::Target(number),
            ("host", &[number]) => Self::Host(number),
            ("dead", &[number]) => Self::Dead(number),
            ("write", &[slot, seq, first, count]) => Self::Write { slot, seq, first, count },
            ("written", &[slot, seq]) => Self::Written { slot, seq },
            ("flush", &[number]) => Self::Flush(number),
            ("flushed", &[number]) => Self::Flushed(number),
            _ => return None,
        })
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Journal(File);

impl Journal {
    pub(super) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Self(file.expect("a journal"))
    }

    pub(super) fn note(&self, line: Line) {
        let text = line.text();
        let written = (&self.0).write(text.as_bytes()).expect("a line of the journal");
        assert_eq!(written, text.len(), "a line of the journal");
    }
}

pub(super) fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).expect("a journal");
    text.lines().map(|line| Line::parse(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

/// Highest number of a write to each part.
pub(super) fn last_writes(lines: &[Line]) -> BTreeMap<u64, u64> {
    let mut last = BTreeMap::new();
    for line in lines {
        let (slot, seq) = match *line {
            Line::Base { slot, last } => (slot, last),
            Line::Write { slot, seq, .. } => (slot, seq),
            _ => continue,
        };
        let known = last.entry(slot).or_insert(0);
        *known = seq.max(*known);
    }
    last
}

/// A write of the time since the last check.
#[derive(Clone, Debug)]
struct Written {
    seq: u64,
    blocks: std::ops::Range<u64>,
    host: u64,
    /// The target that was started last when it began.
    target: u64,
    is_acknowledged: bool,
    is_flushed: bool,
}

/// How the time ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Processes were killed: what was acknowledged is there.
    Killed,
    /// The file system went down without writing anything more: what was flushed is there.
    PowerLoss,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) writes: u64,
    pub(super) acknowledged: u64,
    pub(super) flushes: u64,
    /// Acknowledged and not flushed writes of blocks that a power loss took back.
    pub(super) taken_back: u64,
}

/// The content of the disk when it was looked at last: the write that each block is of.
#[derive(Debug)]
pub(super) struct Model {
    blocks: Vec<u64>,
    last: BTreeMap<u64, u64>,
    pub(super) counts: Counts,
}

impl Model {
    pub(super) fn new() -> Self {
        let last = (0..SLOTS).map(|slot| (slot, 0)).collect();
        let blocks = vec![0; (SLOTS * SLOT_BLOCKS) as usize];
        Self { blocks, last, counts: Counts::default() }
    }

    /// Begins a journal.
    pub(super) fn begin(&self, journal: &Journal) {
        self.last.iter().for_each(|(&slot, &last)| journal.note(Line::Base { slot, last }));
    }

    /// Compares the bytes of a disk with what may be there. They are the known content from now on.
    pub(super) fn check(&mut self, lines: &[Line], disk: &[u8], end: End) -> Result<(), String> {
        assert_eq!(disk.len(), self.blocks.len() * BLOCK, "the length of the disk");
        let history = History::of(lines);
        self.counts.flushes += history.flushes;
        for (slot, last) in &mut self.last {
            *last = history.last.get(slot).copied().unwrap_or(*last);
        }
        for (index, bytes) in disk.chunks_exact(BLOCK).enumerate() {
            let (slot, block) = (index as u64 / SLOT_BLOCKS, index as u64 % SLOT_BLOCKS);
            let place = || format!("part {slot}, block {block}");
            let found = write_of(bytes, slot, block)
                .ok_or_else(|| format!("{}: a block that no write has put there", place()))?;
            let known = self.blocks[index];
            let writes = history.writes.get(&slot).map_or(&[][..], Vec::as_slice);
            let here = writes.iter().filter(|write| write.blocks.contains(&block));
            let here: Vec<&Written> = here.collect();
            history.allow(found, known, &here, end).map_err(|e| format!("{}: {e}", place()))?;
            let newer = here.iter().filter(|write| write.is_acknowledged && write.seq > found);
            self.counts.taken_back += newer.count() as u64;
            self.blocks[index] = found;
        }
        let all = || history.writes.values().flatten();
        self.counts.writes += all().count() as u64;
        self.counts.acknowledged += all().filter(|write| write.is_acknowledged).count() as u64;
        Ok(())
    }
}

/// A journal, in order.
#[derive(Debug, Default)]
struct History {
    writes: BTreeMap<u64, Vec<Written>>,
    /// Hosts that have ended, with the target that was started last when they did.
    dead: BTreeMap<u64, u64>,
    last: BTreeMap<u64, u64>,
    flushes: u64,
}

impl History {
    fn of(lines: &[Line]) -> Self {
        let mut this = Self { last: last_writes(lines), ..Self::default() };
        let (mut target, mut host) = (0, 0);
        // Writes that were acknowledged when a flush began, by the number of the flush.
        let mut acknowledged: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut flushes = BTreeMap::new();
        for line in lines {
            match *line {
                Line::Base { .. } => {}
                Line::Target(number) => target = number,
                Line::Host(number) => host = number,
                Line::Dead(number) => drop(this.dead.insert(number, target)),
                Line::Write { slot, seq, first, count } => {
                    let blocks = first..first + count;
                    let (is_acknowledged, is_flushed) = (false, false);
                    let write = Written { seq, blocks, host, target, is_acknowledged, is_flushed };
                    this.writes.entry(slot).or_default().push(write);
                }
                Line::Written { slot, seq } => {
                    this.mark(slot, seq, |write| write.is_acknowledged = true);
                    acknowledged.insert((slot, seq));
                }
                Line::Flush(number) => drop(flushes.insert(number, acknowledged.clone())),
                Line::Flushed(number) => {
                    this.flushes += 1;
                    for (slot, seq) in flushes.remove(&number).unwrap_or_default() {
                        this.mark(slot, seq, |write| write.is_flushed = true);
                        acknowledged.remove(&(slot, seq));
                    }
                }
            }
        }
        this
    }

    fn mark(&mut self, slot: u64, seq: u64, mark: impl Fn(&mut Written)) {
        let writes = self.writes.get_mut(&slot).into_iter().flatten();
        writes.filter(|write| write.seq == seq).for_each(mark);
    }

    /// Whether a block may be of the write `found`; it was of `known` when the time began.
    fn allow(&self, found: u64, known: u64, here: &[&Written], end: End) -> Result<(), String> {
        let holds = |write: &&&Written| match end {
            End::Killed => write.is_acknowledged,
            End::PowerLoss => write.is_flushed,
        };
        let kept = here.iter().filter(holds).max_by_key(|write| write.seq);
        let least = kept.map_or(known, |write| write.seq);
        if found == least {
            return Ok(());
        }
        let Some(write) = here.iter().find(|write| write.seq == found) else {
            return Err(describe("a write that was not made since", found, least, here));
        };
        // A target may execute a command of a host that was killed as long as it lives itself, so
        // after a later host has written.
        let may_be_late = |kept: &Written| {
            let died = self.dead.get(&write.host);
            !write.is_acknowledged && died.is_some_and(|target| kept.target <= *target)
        };
        if found > least || kept.is_some_and(|kept| may_be_late(kept)) {
            return Ok(());
        }
        Err(describe("an earlier write than the one that must be there", found, least, here))
    }
}

fn describe(what: &str, found: u64, least: u64, here: &[&Written]) -> String {
    let mut text = format!("{what}: found {found}, must be {least} or later\n");
    for write in here {
        writeln!(text, "  {write:?}").expect("text");
    }
    text
}
