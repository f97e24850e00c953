//! Rings and doorbells: how work moves between the threads that post and the one that owns an
//! engine.
//!
//! This crate owns every lock-free structure of feroce:
//!
//! * [`spsc()`]: a bounded queue between one [`Producer`] and one [`Consumer`]. A work queue is
//!   one; a completion queue is another. Its storage appears as it is first used, so that a queue
//!   pair that is created and left idle costs next to nothing.
//! * [`DoorbellOwner`]: how any number of threads tell the owner *which* queue has work, without
//!   allocating and without a bound that could overflow.
//! * [`ByteProducer`] and [`ByteConsumer`]: a queue of byte records in memory that two processes
//!   share and that neither trusts.
//! * [`EventRequest`] and [`OneEvent`]: how a consumer that is about to sleep asks one queue, or
//!   several, to be woken.
//! * [`Life`]: how one of several threads gets the right to end an object that they share.
//! * [`LockPair`]: two locks in one word, for threads that mostly need both.
//! * [`Sleeper`]: what the thread of an owner says about its sleep, so that no wake-up is lost.
//!
//! It never blocks, spins on another thread, wakes a thread or looks at a clock; who sleeps and
//! who is woken is decided above.
//!
//! The ordering argument of each structure is written at the top of its module and checked by the
//! loom models in `tests/loom.rs`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p feroce-ring --release --test loom
//! ```

#![no_std]

extern crate alloc;
#[cfg(all(test, not(loom)))]
extern crate std;

mod bytes;
mod doorbell;
mod event;
mod life;
mod lock_pair;
mod sleep;
mod slots;
mod spsc;
mod sync;

pub use bytes::{
    ByteConsumer, ByteProducer, Corrupt, MAX_BYTES, RingMemory, fall_asleep, must_wake,
};
pub use doorbell::{Doorbell, DoorbellOwner, DoorbellSet};
pub use event::{EventRequest, OneEvent};
pub use life::{Claim, Life, Unclaimed};
pub use lock_pair::{BothGuards, InnerGuard, LockPair, OuterGuard, Park};
pub use sleep::{Arming, Sleeper};
pub use spsc::{Consumer, MAX_CAPACITY, Producer, Vacant, spsc, try_spsc};
