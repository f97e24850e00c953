//! Time as a number that the caller supplies.

use core::fmt;

/// A point in time, in nanoseconds since an origin that only the supplier of time knows.
///
/// Constructible and printable, so that a run can be replayed from its log.
///
/// ```
/// # use feroce_train::Instant;
/// let start = Instant::from_nanos(1_000);
/// assert_eq!(start.plus_nanos(500).nanos_since(start), 500);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds since the origin.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self` plus `ns` nanoseconds; stays at the end of time rather than wrap.
    #[inline]
    #[must_use]
    pub const fn plus_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is the later one.
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
