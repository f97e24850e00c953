//! Memory that processes of one host let each other touch.

use feroce_mem::{Access, Reach, Source};
use feroce_wire::{Gid, Qpn, Rkey};

/// How often a [`Lender`] had revoked something when payload was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease(pub u32);

impl Lease {
    /// Whether this is `other` or older. Revocations are counted modulo 2^32.
    pub fn is_at_most(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0) <= u32::MAX / 2
    }
}

/// A revocation whose end is waited for: peer processes may still be copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The newest of the revocations that are meant.
    pub since: Lease,
    /// The process with this queue pair is the only one that had the rights; `None`: any may.
    pub peer: Option<Qpn>,
}

/// A connection inside a host, in the direction of its requests, and a key at its far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Address and queue pair of the requester.
    pub from: (Gid, Qpn),
    /// Address and queue pair of the responder.
    pub to: (Gid, Qpn),
    /// What the requester names memory of the responder with.
    pub rkey: Rkey,
}

/// Somebody who lets peers touch registered memory: fetch payload from it and, where a *door* is
/// open, read and write it by themselves.
///
/// A peer that has fetched something checks afterwards whether it was revoked meanwhile, and then
/// treats it as lost; a peer that goes through a door checks before. No call waits. A revocation
/// takes effect at once: no peer begins another copy. A copy that a peer has begun may still be
/// under way, until [`Lender::is_quiet`] says that it has ended.
pub trait Lender: core::fmt::Debug + Send + Sync {
    /// The newest lease: every revocation makes another.
    fn lease(&self) -> Lease;

    /// What was lent to the queue pair `peer` must not be fetched any more: requests are given up.
    /// Doors that it opened are forgotten.
    fn revoke_from(&self, peer: Qpn);

    /// What was lent in answers must not be fetched any more, and all doors are shut: a right to
    /// memory has ended.
    fn revoke_answers(&self);

    /// Whether every copy has ended that a peer process may have begun before a revocation, because
    /// the process has said so, is dead, or is stopped where it cannot touch the memory any more.
    /// Once true it stays true. It does not wait; the caller asks again.
    fn is_quiet(&self, revocation: Revocation) -> bool;

    /// Opens a door for the requester of a way, to what its key reaches. It hears of it if it is on
    /// this host.
    fn open(&self, _way: &Way, _reach: &Reach) {}

    /// Writes the first `len` bytes of a source to address `va` at the responder of a way, if there
    /// is a door. False: there is none, it does not lead there, the source had nothing, or it is
    /// quicker to send them; then nothing was written. `is_awaited`: somebody waits until it is
    /// complete.
    fn write(
        &self,
        _way: &Way,
        _va: u64,
        _len: usize,
        _source: &dyn Source,
        _is_awaited: bool,
    ) -> bool {
        false
    }

    /// Gives `take` the `len` bytes at address `va` of the responder of a way as a source, if there
    /// is a door. False: there is none, it does not lead there, or `take` said so.
    fn read(
        &self,
        _way: &Way,
        _va: u64,
        _len: usize,
        _take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        false
    }

    /// Whether there is a door for a way through which `len` bytes at `va` are moved as fast as
    /// memory allows.
    fn is_wide(&self, _way: &Way, _va: u64, _len: usize, _what: Access) -> bool {
        false
    }

    /// How many messages of peers came through our doors.
    fn passed(&self) -> u64 {
        0
    }
}
