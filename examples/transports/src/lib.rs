//! [tonic](tonic) and [tarpc](tarpc) over `feroce-rpc`, for programs that have them.
//!
//! Both libraries leave it to others how their messages travel, and both have requests and
//! responses, as `feroce-rpc` has. So a call of theirs is a call of it: no byte stream is emulated,
//! HTTP/2 and framing are not needed, deadlines travel, and dropping a call cancels it.
//!
//! Requests may be as long as [`Limits::longest`](feroce_rpc::Limits). A response that is longer
//! than a message ([`Limits::eager`](feroce_rpc::Limits)) is written into a buffer of the caller:
//! [`Caller::with_long_responses`] has such buffers.

mod caller;
#[cfg(feature = "tarpc")]
pub mod tarpc;
#[cfg(feature = "tonic")]
pub mod tonic;

pub use caller::Caller;
