//! Seven ways to build a call from verbs, as a laboratory.
//!
//! A call is two messages: the request and the reply. Verbs move a message in several ways, and
//! each has a price: who has to be awake, what has to be posted before, how often a byte is
//! touched. Here are the seven that programs use, each in a module of its own that explains it in a
//! page of code. `feroce rpc bench` measures them.
//!
//! | pattern | a message is | the receiver waits for | needs receives | works on iWARP |
//! |---|---|---|---|---|
//! | [`send`] | a SEND | a completion | yes | yes |
//! | [`inline`] | a SEND whose bytes are in the work request | a completion | yes | yes |
//! | [`write_poll`] | a WRITE, and a WRITE of a flag | the flag in its memory | no | yes |
//! | [`write_imm`] | a WRITE with immediate data | a completion | yes, empty ones | no |
//! | [`write_send`] | a WRITE, and a short SEND behind it | a completion | yes, short ones | yes |
//! | [`read_fetch`] | a request as in `write_poll`, a READ of the reply | memory, READs | no | yes|
//! | [`hybrid`] | inline, SEND or WRITE and SEND, by length | a completion | yes | yes |
//!
//! ```
//! # use feroce::{Device, cm::{Listener, Manager}};
//! use feroce_rpc::patterns::{Answerer, Caller, Pattern};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let manager = |ip: &str| Manager::with([Device::at([ip.parse().unwrap()]).open()?]);
//! # let (here, there) = (manager("127.0.0.65")?, manager("127.0.0.66")?);
//! let listener = Listener::bind(&there, "127.0.0.66:0".parse()?)?;
//! # let at = listener.local_addr();
//! let server = std::thread::spawn(move || {
//!     let mut answerer = Answerer::accept(listener.accept()?)?;
//!     answerer.serve(|request, reply| reply.extend(request.iter().rev()), || false)
//! });
//! let mut caller = Caller::connect(&here, at, Pattern::WriteSend, 4096)?;
//! assert_eq!(caller.call(b"hello")?, b"olleh");
//! drop(caller);
//! // The server ends with its client.
//! assert_eq!(server.join().unwrap()?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Each end has one call under way and polls. A message is copied into registered memory by the
//! sender and out of it by the receiver, in every pattern alike, so that only the patterns differ.
//! What a library for programs adds is in the rest of this crate: many calls at once, tasks,
//! deadlines, and buffers that are not copied.

mod channel;
mod ends;
mod error;
pub mod hybrid;
pub mod inline;
mod pattern;
pub mod read_fetch;
pub mod send;
pub mod write_imm;
pub mod write_poll;
pub mod write_send;

pub use channel::Channel;
pub use ends::{Answerer, Caller};
pub use error::PatternError;
pub use pattern::Pattern;
