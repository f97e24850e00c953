//! Links to other parts of a fabric, and what their ends tell each other.

use crate::packet::PortRef;

/// A link to another part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Border {
    /// Its end in this part.
    pub(crate) here: PortRef,
    /// Its end in the other one.
    pub(crate) there: PortRef,
    /// What the other one has been told.
    pub(crate) told: Option<Signal>,
}

/// What one end of a link between parts tells the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// How often it went down by itself. The number wraps.
    pub turn: u32,
    /// Whether it looks for the other end, or has found it.
    pub is_ready: bool,
}
