//! The waist between engine and link: packet trains.
//!
//! A *train* is a run of consecutive packets of one message, of equal wire length (the last may
//! be shorter). It is a descriptor: its size does not depend on how many packets it stands for.
//! The engine makes [`Train`]s; a link turns each into bytes with [`Train::emit`], frames them
//! and seals the ICRC, which covers header fields that only the link knows. In the other
//! direction a link hands the engine [`RxTrain`]s: verified packets from the BTH on, ICRC
//! already checked and cut off by [`RxTrain::packets`]. A [`Burst`] is what the engine has to say
//! on a byte stream, a [`Scatter`] where it wants the bytes that come next.
//!
//! This crate knows neither engine nor link, has no state, and does no I/O. [`Instant`] lives
//! here because both sides of the waist speak of time without owning a clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod burst;
mod path;
mod payload;
mod rx;
mod scatter;
mod telemetry;
mod time;
mod tx;

pub use burst::{Burst, BurstPiece};
pub use path::{Ecn, Framing, GidEntry, LinkCaps, LinkLayer, Path, PortAddr};
pub use payload::{InlineBytes, Payload, RemotePayload};
pub use rx::{Packets, RxMeta, RxTrain};
pub use scatter::Scatter;
pub use telemetry::{Hop, Hops};
pub use time::Instant;
pub use tx::{Ext, Single, SingleBuf, Train, TrainOps};
