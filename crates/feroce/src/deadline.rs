//! How long a blocking call may still wait.

use std::time::{Duration, Instant};

/// The end of a wait; without one, the wait lasts as long as it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The wait lasts as long as it takes.
    pub(crate) const NONE: Self = Self(None);

    /// The wait ends after this time. A time beyond what the clock can tell has no end.
    #[expect(clippy::disallowed_methods, reason = "the caller blocks, and so has a real clock")]
    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    /// Whether the time is over.
    #[expect(clippy::disallowed_methods, reason = "the caller blocks, and so has a real clock")]
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// The milliseconds that one wait may take, rounded up; `None` if it has no end. A longer time
    /// needs several waits.
    #[expect(clippy::disallowed_methods, reason = "the caller blocks, and so has a real clock")]
    pub(crate) fn wait_ms(self) -> Option<u16> {
        let left = self.0?.saturating_duration_since(Instant::now());
        Some(u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_and_its_absence_does_not() {
        assert!(Deadline::after(Duration::ZERO).is_over());
        assert_eq!(Deadline::after(Duration::ZERO).wait_ms(), Some(0));
        assert!(!Deadline::after(Duration::from_secs(3600)).is_over());
        assert_eq!(Deadline::after(Duration::from_secs(3600)).wait_ms(), Some(u16::MAX));
        for endless in [Deadline::NONE, Deadline::after(Duration::MAX)] {
            assert_eq!((endless.is_over(), endless.wait_ms()), (false, None));
        }
    }
}
