//! Handles of the objects that an engine holds.

use feroce_wire::Srqn;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        pub struct $name(pub u32);
    };
}

handle! {
    /// A completion queue.
    CqId
}
handle! {
    /// A shared receive queue.
    SrqId
}
handle! {
    /// An address handle.
    AhId
}
handle! {
    /// An XRC domain.
    XrcdId
}

impl SrqId {
    /// The number by which XRC packets name it. Zero is never used.
    #[doc(alias = "ibv_get_srq_num")]
    pub const fn number(self) -> Srqn {
        Srqn::new(self.0 + 1)
    }

    /// The queue with that number.
    pub(crate) const fn from_number(n: Srqn) -> Option<Self> {
        match n.get() {
            0 => None,
            n => Some(Self(n - 1)),
        }
    }
}
