//! iWARP: RDMA over a TCP stream.
//!
//! | file | layer | text |
//! |---|---|---|
//! | [`mpa`] | startup frames: who asks for what, private data | RFC 5044 7, RFC 6581 |
//! | [`fpdu`] | framing of the stream: length, padding, CRC, markers | RFC 5044 4 |
//! | [`ddp`] | where a segment goes: tagged or untagged | RFC 5041 |
//! | [`rdmap`] | what it does: opcodes, READ requests | RFC 5040 |
//! | [`atomic`] | atomic operations and immediate data | RFC 7306 |
//! | [`terminate`] | why a stream ends | RFC 5040 4.8 |
//!
//! A peer's stream begins with one startup frame. Then come *FPDUs*: a length, a *ULPDU* (DDP
//! header and payload), padding to four bytes, and a CRC-32C. An *STag* names memory as a key does
//! in InfiniBand, so it is an [`Rkey`] here.
//!
//! [`Rkey`]: crate::Rkey

pub mod atomic;
mod crc32c;
pub mod ddp;
pub mod fpdu;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

pub use crc32c::Crc32c;
