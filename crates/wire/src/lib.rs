//! Packets to bytes and back: the RDMA transport headers and what carries them.
//!
//! One file per header. Each header has two faces: a *repr*, a plain struct with `parse` and
//! `emit`, and a *view*, a borrowed window over checked bytes for reading one field without
//! parsing the others. The layout is written once, as the field constants of the file, and both
//! faces use it.
//!
//! What this crate never does: allocate, panic on input, use `unsafe`, look at a clock or a
//! socket, or decide whether a well-formed packet is acceptable. Unknown codes and reserved bits
//! are data; the engine judges them.
//!
//! Clause numbers refer to the IBTA architecture specification, volume 1.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

#[cfg(test)]
extern crate std;

mod aeth;
mod atomiceth;
mod bth;
mod cnp;
mod deth;
mod error;
mod feth;
mod field;
mod id;
mod ieth;
mod immdt;
mod opcode;
mod pmtu;
mod reth;
mod xrceth;

pub use aeth::{Aeth, AethView, CreditCode, NakCode, RnrTimer, Syndrome};
pub use atomiceth::{AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView};
pub use bth::{Bth, BthView};
pub use cnp::{CnpReserved, CnpReservedView};
pub use deth::{Deth, DethView};
pub use error::Truncated;
pub use feth::{Feth, FethView, FlushPlacement, FlushSelectivity};
pub use id::{Gid, Imm, Lid, Lkey, Msn, Pkey, Psn, Qkey, Qpn, Rkey, Srqn};
pub use ieth::{Ieth, IethView};
pub use immdt::{ImmDt, ImmDtView};
pub use opcode::{Op, Opcode, Service};
pub use pmtu::Pmtu;
pub use reth::{Reth, RethView};
pub use xrceth::{XrcEth, XrcEthView};
