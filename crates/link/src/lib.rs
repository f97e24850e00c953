//! Links carry packet trains between engines.
//!
//! A carrier ([`UdpLink`]) turns trains into packets of a real network and back; `HostLink` of
//! `feroce-local` adds the other processes of the host. Layers wrap any link and record,
//! disturb or check what passes. The driver in `feroce` owns the stack and moves trains between it
//! and an engine; engine and link never see each other.
//!
//! Received packets travel up the stack as they were on the wire, ICRC included, so that a layer
//! can damage or record them; [`Verified`] on top of the stack checks the ICRC and drops what
//! fails.

mod describe;
mod fault;
mod icrc;
mod memory;
mod pcap;
mod sys;
mod tap;
mod trace;
mod udp;

use std::io;
use std::os::fd::BorrowedFd;

use feroce_train::{Instant, LinkCaps, Path, RxTrain, Single, Train};
use feroce_wire::{Gid, Qpn};

pub use describe::describe;
pub use fault::{Fault, FaultConfig, FaultParseError, Probability};
pub use icrc::{Checker, ICRC_LEN, IcrcPolicy, Sealer, Verified, part, seal_prefix};
pub use memory::MemoryLink;
pub use pcap::{Pcap, PcapConfig};
pub use tap::{Direction, Seen, Tap, Tapped};
pub use trace::Trace;
pub use udp::{UdpConfig, UdpLink};

/// What became of a train that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is on its way, or was lost as on any network.
    Done,
    /// The carrier is full, and has taken nothing; try again when [`Link::wait_fd`] has become
    /// readable, or a little later.
    Full,
}

/// Numbers that a link keeps, by name.
pub type LinkCounters = Vec<(&'static str, u64)>;

/// Something that carries trains.
pub trait Link: Send {
    /// What it can take in one train.
    fn caps(&self) -> LinkCaps;

    /// Sends a train. An error is one of the carrier; the packets count as lost.
    fn send(&mut self, now: Instant, train: &Train) -> io::Result<Sent>;

    /// Sends trains in order until the carrier is full, and returns how many it took. A carrier
    /// may send short ones together.
    fn send_all(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        for (taken, train) in trains.iter().enumerate() {
            if self.send(now, train)? == Sent::Full {
                return Ok(taken);
            }
        }
        Ok(trains.len())
    }

    /// Sends a packet without a train, if that can be done at once. False: it was not sent, and the
    /// caller sends it as a train.
    fn send_single(&mut self, _packet: Single<'_>) -> bool {
        false
    }

    /// Whether trains that are about to be sent, one at least, should wait until more can go with
    /// them. Packets that are alone in their trains may leave together; to gather long trains would
    /// only delay the first.
    fn gathers(&self, trains: &[Train]) -> bool {
        trains.last().is_none_or(|train| train.count == 1)
    }

    /// Hands what has arrived to `sink`, at most `budget` trains, and returns how many those were.
    /// What peers have written to our memory by themselves counts as one more.
    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize>;

    /// Whether it is certain, without a system call, that no process of this host has sent anything
    /// that [`Link::receive`] would return.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Readable when [`Link::receive`] has something, and when there is room again after
    /// [`Sent::Full`], if [`Link::arm`] was called before. Calling [`Link::receive`] until it
    /// returns 0, and [`Link::arm`], makes it unreadable.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// The calling thread is about to sleep on [`Link::wait_fd`]. False: something has arrived, and
    /// the thread should call [`Link::receive`] instead.
    ///
    /// Peers that can see whether a thread sleeps wake it only then, so that waking costs nothing
    /// while the thread polls. They do so until this is called again. A thread that `looks` at its
    /// memory when it wakes is also woken for what peer processes have written there, of which there
    /// is nothing to receive.
    fn arm(&mut self, _now: Instant, _looks: bool) -> bool {
        true
    }

    /// A polling thread has waited long for an answer. The link writes to the [`Link::nudge_fd`] of
    /// every peer process that has not taken yet what was sent to it.
    fn nudge(&mut self) {}

    /// Whether it is certain that the process that owns a queue pair is alive and has not taken yet
    /// what was sent to it.
    fn is_untaken(&self, _path: &Path, _qpn: Qpn) -> bool {
        false
    }

    /// Readable when a peer process waits for this one to call [`Link::receive`] and no thread
    /// sleeps on [`Link::wait_fd`]: the thread that polled may have ended. The driver thread reads
    /// it empty, which never blocks.
    fn nudge_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When [`Link::receive`] should be called even if nothing arrives: a layer holds packets back.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// `path` with what the carrier really puts in the headers: the UDP source port, the hop limit,
    /// and the ECN bits as the low bits of the traffic class.
    fn actual_path(&self, path: &Path) -> Path {
        *path
    }

    /// Follows a change of the addresses of the port.
    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()>;

    /// Takes packets to a multicast group.
    fn join(&mut self, group: Gid) -> io::Result<()>;

    /// No longer takes packets to a multicast group.
    fn leave(&mut self, group: Gid) -> io::Result<()>;

    /// What happened so far, all layers together.
    fn counters(&self) -> LinkCounters;

    /// This is the copy in a child of the process that has the link: dropping it must close the
    /// child's descriptors and do nothing else, because what they refer to is the parent's.
    fn abandon(&mut self) {}

    /// The process is about to end without dropping this: layers write what they have kept back.
    fn save(&mut self) {}
}

/// The methods of [`Link`] that layers leave to the link below, `self.inner`.
macro_rules! forward_to_inner {
    () => {
        fn caps(&self) -> feroce_train::LinkCaps {
            self.inner.caps()
        }

        fn gathers(&self, trains: &[feroce_train::Train]) -> bool {
            self.inner.gathers(trains)
        }

        fn wait_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.inner.wait_fd()
        }

        fn arm(&mut self, now: feroce_train::Instant, looks: bool) -> bool {
            self.inner.arm(now, looks)
        }

        fn nudge(&mut self) {
            self.inner.nudge();
        }

        fn is_untaken(&self, path: &feroce_train::Path, qpn: feroce_wire::Qpn) -> bool {
            self.inner.is_untaken(path, qpn)
        }

        fn nudge_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.inner.nudge_fd()
        }

        fn actual_path(&self, path: &feroce_train::Path) -> feroce_train::Path {
            self.inner.actual_path(path)
        }

        fn set_addresses(&mut self, addresses: &[feroce_wire::Gid]) -> std::io::Result<()> {
            self.inner.set_addresses(addresses)
        }

        fn join(&mut self, group: feroce_wire::Gid) -> std::io::Result<()> {
            self.inner.join(group)
        }

        fn leave(&mut self, group: feroce_wire::Gid) -> std::io::Result<()> {
            self.inner.leave(group)
        }
    };
}
use forward_to_inner;

/// Shows the packets of a train, one after the other, each written to `buffer`.
fn each_packet(train: &Train, buffer: &mut Vec<u8>, mut show: impl FnMut(u32, &[u8])) {
    for i in 0..train.count {
        buffer.resize(train.packet_len(i), 0);
        let len = train.emit(i, buffer);
        show(i, buffer.get(..len).unwrap_or(buffer));
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn caps(&self) -> LinkCaps {
        (**self).caps()
    }

    fn send(&mut self, now: Instant, train: &Train) -> io::Result<Sent> {
        (**self).send(now, train)
    }

    fn send_all(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        (**self).send_all(now, trains)
    }

    fn send_single(&mut self, packet: Single<'_>) -> bool {
        (**self).send_single(packet)
    }

    fn gathers(&self, trains: &[Train]) -> bool {
        (**self).gathers(trains)
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        (**self).receive(now, budget, sink)
    }

    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        (**self).wait_fd()
    }

    fn arm(&mut self, now: Instant, looks: bool) -> bool {
        (**self).arm(now, looks)
    }

    fn nudge(&mut self) {
        (**self).nudge();
    }

    fn is_untaken(&self, path: &Path, qpn: Qpn) -> bool {
        (**self).is_untaken(path, qpn)
    }

    fn nudge_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).nudge_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn actual_path(&self, path: &Path) -> Path {
        (**self).actual_path(path)
    }

    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        (**self).set_addresses(addresses)
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: Gid) -> io::Result<()> {
        (**self).leave(group)
    }

    fn counters(&self) -> LinkCounters {
        (**self).counters()
    }

    fn save(&mut self) {
        (**self).save();
    }

    fn abandon(&mut self) {
        (**self).abandon();
    }
}
