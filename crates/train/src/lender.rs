//! Memory that processes of one host let each other touch.

use feroce_mem::{Access, Reach, Source};
use feroce_wire::{Gid, Qpn, Rkey};

/// How often a [`Lender`] had revoked something when payload was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease(pub u32);

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
/// Whoever fetched something looks afterwards whether it was revoked meanwhile, and then treats it
/// as lost; whoever goes through a door looks before. The calls that revoke therefore come before
/// anybody hears that memory may be used otherwise, and return when nobody touches it any more.
pub trait Lender: core::fmt::Debug + Send + Sync {
    /// The newest lease: every revocation makes another.
    fn lease(&self) -> Lease;

    /// What was lent to the queue pair `peer` must not be fetched any more: requests are given up.
    /// Doors that it opened are forgotten.
    fn revoke_from(&self, peer: Qpn);

    /// What was lent in answers must not be fetched any more, and all doors are shut: a right to
    /// memory has ended.
    fn revoke_answers(&self);

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
