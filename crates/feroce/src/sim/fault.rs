//! What can go wrong in a world.

use std::time::Duration;

/// A host of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(super) usize);

/// Something that goes wrong, or right again; [`World::at`](super::World::at) says when.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The host stops at once: its program ends, its memory is lost, and nothing leaves it any
    /// more. Its peers learn of it by silence.
    Crash(HostId),
    /// The program of a host begins anew, with a new device and empty memory. A host that runs
    /// crashes first.
    Restart(HostId),
    /// Packets between these hosts and all others are lost, until [`Fault::Heal`].
    Partition(Vec<HostId>),
    /// There is no partition any more.
    Heal,
    /// Every link loses packets with this probability, from 0 to 1.
    Loss(f64),
    /// The host does nothing until this long after it could: it has too little processor time. Zero
    /// makes it fast again.
    Slow(HostId, Duration),
    /// The link of a host goes down, or up again.
    Link(HostId, bool),
}
