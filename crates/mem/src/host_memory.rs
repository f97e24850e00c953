//! Registered memory that processes of one host access directly.

use feroce_wire::{Gid, Qpn, Rkey};

use crate::{Access, Reach, Source};

/// How many revocations a [`HostMemory`] had counted when a payload was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RevocationEpoch(pub u32);

impl RevocationEpoch {
    /// Whether this is `other` or older. Revocations are counted modulo 2^32.
    pub fn is_at_most(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0) <= u32::MAX / 2
    }
}

/// A revocation whose end is waited for: peer processes may still be copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revocation {
    /// The newest of the revocations that are meant.
    pub since: RevocationEpoch,
    /// The process with this queue pair is the only one that had the rights; `None`: any may.
    pub peer: Option<Qpn>,
}

/// A connection inside a host, in the direction of its requests, and a key at its far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectPath {
    /// Address and queue pair of the requester.
    pub from: (Gid, Qpn),
    /// Address and queue pair of the responder.
    pub to: (Gid, Qpn),
    /// What the requester names memory of the responder with.
    pub rkey: Rkey,
}

/// A WRITE by direct access.
#[derive(Clone, Copy, Debug)]
pub struct DirectWrite<'a> {
    /// Where to, at the responder.
    pub va: u64,
    /// How many bytes.
    pub len: usize,
    /// What: the first `len` bytes of this.
    pub source: &'a dyn Source,
    /// The consumer waits until it is complete.
    pub is_awaited: bool,
}

/// What [`HostMemory::write_some`] runs.
pub type WriteSome<'a> = dyn FnMut(&dyn Fn(&DirectWrite<'_>) -> bool) -> usize + 'a;

/// Lets peer processes access registered memory: fetch payload from it and, where it is granted
/// direct access, read and write it by themselves.
///
/// A peer that has fetched something checks afterwards whether it was revoked meanwhile, and then
/// treats it as lost; a peer that goes by direct access checks before. No call waits. A revocation
/// takes effect at once: no peer begins another copy. A copy that a peer has begun may still be
/// under way, until [`HostMemory::is_quiet`] says that it has ended.
pub trait HostMemory: core::fmt::Debug + Send + Sync {
    /// The newest epoch: every revocation begins another.
    fn revocation_epoch(&self) -> RevocationEpoch;

    /// Payload offered to the queue pair `peer` must not be fetched any more: requests are given
    /// up. Direct access that it granted is forgotten.
    fn revoke_from(&self, peer: Qpn);

    /// Payload offered in answers must not be fetched any more, and all direct access ends: a right
    /// to memory has ended.
    fn revoke_answers(&self);

    /// Whether every copy has ended that a peer process may have begun before a revocation, because
    /// the process has said so, is dead, or is stopped where it cannot touch the memory any more.
    /// Once true it stays true. It does not wait; the caller asks again.
    fn is_quiet(&self, revocation: Revocation) -> bool;

    /// Grants the requester of a path direct access to what its key reaches, and tells it so if it
    /// is on this host.
    fn open(&self, path: &DirectPath, reach: &Reach);

    /// Executes the WRITE at the responder of a path, if there is direct access. False: there is
    /// none, it does not lead there, the source had nothing, or it is quicker to send the bytes;
    /// then nothing was written.
    fn write(&self, path: &DirectPath, write: &DirectWrite<'_>) -> bool;

    /// Runs `work` with a function that executes one WRITE at the responder of a path as
    /// [`HostMemory::write`] does. What all of them need is done once: the access is looked up and
    /// announced before the first, and counted after the last. `work` returns how many passed, and
    /// so does this; 0 also if there is no direct access, and `work` was not called.
    ///
    /// For short ones: no other copy is begun meanwhile, and no peer woken.
    fn write_some(&self, path: &DirectPath, work: &mut WriteSome<'_>) -> usize {
        work(&|write| self.write(path, write))
    }

    /// Gives `take` the `len` bytes at address `va` of the responder of a path as a source, if
    /// there is direct access. False: there is none, it does not lead there, or `take` said so.
    fn read(
        &self,
        path: &DirectPath,
        va: u64,
        len: usize,
        take: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool;

    /// Whether there is direct access for a path through which `len` bytes at `va` are moved as
    /// fast as memory allows.
    fn is_wide(&self, path: &DirectPath, va: u64, len: usize, what: Access) -> bool;

    /// How many messages peers have read or written by direct access.
    fn passed(&self) -> u64;
}
