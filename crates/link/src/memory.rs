//! A link between two engines of one process, over queues in memory.
//!
//! For tests and benchmarks of the layers above: the link copies packets and adds their ICRCs as on
//! a real network, and loses only packets that no end receives. A descriptor wakes the other end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::Gid;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::icrc::{ICRC_LEN, MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS, Sealer};
use crate::{Carrier, Control, LinkCounters};

/// Most bytes that wait at one end, sixteen times the first window of a destination; a sender of
/// more waits until half of them are read.
const MAX_QUEUED: usize = 4 << 20;
/// Most buffers kept for later: as many of the longest trains as may wait.
const MAX_SPARE: usize = 64;

/// One end of a link in memory. Packets to one of its own addresses come back; packets to a group
/// go to the ends that have joined it; all other packets go to the other end.
#[derive(Debug)]
pub struct MemoryLink {
    wire: Arc<Wire>,
    /// Which end this is.
    side: usize,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    tx_full: u64,
    tx_no_receiver: u64,
    rx_trains: u64,
}

/// What both ends share.
#[derive(Debug)]
struct Wire {
    ends: [Mutex<End>; 2],
    events: [EventFd; 2],
}

/// What waits at one end, and what that end takes.
#[derive(Debug, Default)]
struct End {
    queue: VecDeque<Item>,
    queued: usize,
    spare: Vec<Vec<u8>>,
    /// Seals what goes to this end.
    sealer: Sealer,
    addresses: Vec<Gid>,
    groups: Vec<Gid>,
    /// The descriptor of this end is readable.
    is_awake: bool,
    /// By side: whether that end found this one full and waits for room.
    waiting: [bool; 2],
}

/// A train on its way.
#[derive(Debug)]
struct Item {
    meta: RxMeta,
    stride: usize,
    bytes: Vec<u8>,
}

impl MemoryLink {
    /// Two ends. Each takes packets to any address until it is told its own.
    pub fn pair() -> io::Result<(Self, Self)> {
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let wire = Arc::new(Wire {
            ends: [Mutex::default(), Mutex::default()],
            events: [event()?, event()?],
        });
        let end = |side| Self { wire: Arc::clone(&wire), side, counters: Counters::default() };
        Ok((end(0), end(1)))
    }

    /// The ends that packets from here to `dst` go to.
    fn receivers(&self, dst: Gid) -> [bool; 2] {
        let (mut to, other) = ([false; 2], 1 - self.side);
        if dst.is_multicast() {
            return [0, 1].map(|side| self.wire.lock(side).groups.contains(&dst));
        }
        to[self.side] = self.wire.lock(self.side).addresses.contains(&dst);
        if !to[self.side] {
            let addresses = &self.wire.lock(other).addresses;
            to[other] = addresses.is_empty() || addresses.contains(&dst);
        }
        to
    }
}

impl Wire {
    fn lock(&self, side: usize) -> MutexGuard<'_, End> {
        self.ends[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor of an end readable.
    fn wake(&self, side: usize, end: &mut End) -> io::Result<()> {
        if !end.is_awake {
            end.is_awake = true;
            self.events[side].write(1)?;
        }
        Ok(())
    }

    /// Queues a train at an end; false if there is no room.
    fn push(&self, side: usize, from: usize, train: &Train) -> io::Result<bool> {
        let mut end = self.lock(side);
        if end.queued >= MAX_QUEUED {
            end.waiting[from] = true;
            return Ok(false);
        }
        let path = &train.path;
        let mut bytes = end.spare.pop().unwrap_or_default();
        bytes.resize(train.total_len() + train.count as usize * ICRC_LEN, 0);
        let meta = RxMeta::from(path);
        end.sealer.emit_all(train, meta.udp_sport, &mut bytes);
        end.queued += bytes.len();
        end.queue.push_back(Item { meta, stride: train.packet_len(0) + ICRC_LEN, bytes });
        self.wake(side, &mut end)?;
        Ok(true)
    }

    /// Takes the next train of an end, and lets it sleep if there is none.
    fn pop(&self, side: usize) -> io::Result<Option<Item>> {
        let mut end = self.lock(side);
        if let Some(item) = end.queue.pop_front() {
            end.queued -= item.bytes.len();
            return Ok(Some(item));
        }
        if end.is_awake {
            end.is_awake = false;
            self.events[side].read()?;
        }
        Ok(None)
    }

    /// Keeps a buffer for reuse, and wakes the ends that wait for room.
    fn done_with(&self, side: usize, bytes: Vec<u8>) -> io::Result<()> {
        let mut end = self.lock(side);
        if end.spare.len() < MAX_SPARE {
            end.spare.push(bytes);
        }
        let waiting = match end.queued {
            n if n < MAX_QUEUED / 2 => std::mem::take(&mut end.waiting),
            _ => return Ok(()),
        };
        drop(end);
        for waiter in [0, 1].into_iter().filter(|&waiter| waiting[waiter]) {
            self.wake(waiter, &mut self.lock(waiter))?;
        }
        Ok(())
    }
}

impl MemoryLink {
    /// Whether the train was sent, or lost as on any network; else a receiver is full.
    fn send_train(&mut self, train: &Train) -> io::Result<bool> {
        let to = self.receivers(train.path.dst.gid);
        if to == [false; 2] {
            self.counters.tx_no_receiver += 1;
            return Ok(true);
        }
        // If one member of a group is full, it loses the train: the sender cannot send a train
        // again to some of the members only.
        let mut taken = false;
        for side in [0, 1].into_iter().filter(|&side| to[side]) {
            taken |= self.wire.push(side, self.side, train)?;
        }
        match taken {
            true => self.counters.tx_trains += 1,
            false => self.counters.tx_full += 1,
        }
        Ok(taken)
    }
}

impl Carrier for MemoryLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps { max_packets: MAX_TRAIN_PACKETS.into(), max_bytes: MAX_TRAIN_BYTES }
    }

    fn headers(&self, path: &Path) -> RxMeta {
        path.into()
    }

    fn send(&mut self, _now: Instant, trains: &[Train]) -> io::Result<usize> {
        for (taken, train) in trains.iter().enumerate() {
            if !self.send_train(train)? {
                return Ok(taken);
            }
        }
        Ok(trains.len())
    }

    fn send_single(&mut self, _: Single<'_>) -> bool {
        false
    }

    fn arm(&mut self, _now: Instant) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn receive(
        &mut self,
        _now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        for taken in 0..budget {
            let Some(Item { meta, stride, bytes }) = self.wire.pop(self.side)? else {
                return Ok(taken);
            };
            sink(&RxTrain { meta, bytes: &bytes, stride, trailer: 0, remote: None });
            self.counters.rx_trains += 1;
            self.wire.done_with(self.side, bytes)?;
        }
        Ok(budget)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wire.events[self.side].as_fd()
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        let mut end = self.wire.lock(self.side);
        match control {
            Control::Addresses(addresses) => {
                end.addresses = addresses.iter().copied().filter(|a| !a.is_zero()).collect();
            }
            Control::Join(group) if end.groups.contains(&group) => {}
            Control::Join(group) => end.groups.push(group),
            Control::Leave(group) => end.groups.retain(|g| *g != group),
            Control::Exit | Control::Fork => {}
        }
        Ok(())
    }

    fn counters(&self) -> LinkCounters {
        let c = &self.counters;
        vec![
            ("memory_tx_trains", c.tx_trains),
            ("memory_tx_full", c.tx_full),
            ("memory_tx_no_receiver", c.tx_no_receiver),
            ("memory_rx_trains", c.rx_trains),
        ]
    }
}
