//! What one end of a flow may touch at the other.

use feroce_testkit::Mr;

/// Bytes of a peer that one end may change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) mr: Mr,
}

/// What one end may touch at the other.
#[derive(Debug)]
pub(crate) struct Reach {
    /// For writes.
    pub(crate) bytes: Area,
    /// For atomics.
    pub(crate) words: Area,
    /// Was read since it was last written, so the next change must be fenced.
    pub(crate) read: bool,
    pub(crate) windows: Windows,
}

/// A key that is bound and invalidated as the flow goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A window of type 1.
    One,
    /// A window of type 2.
    Two,
    /// A key for fast registration.
    Fast,
}

/// The key of one end that the other uses.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(super) token: Option<(Token, u32)>,
    /// The step of either end that must be done before the key may be bound again.
    pub(super) free_after: Option<(usize, usize)>,
}
