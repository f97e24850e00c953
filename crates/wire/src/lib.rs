//! Packets to bytes and back: the RDMA transport headers and what carries them.
//!
//! One file per header. Each header has two faces: a *repr*, a plain struct with `parse` and
//! `emit`, and a *view*, a borrowed window over checked bytes for reading one field without
//! parsing the others. The layout is written once, as the field constants of the file, and both
//! faces use it. Management attributes, whose fields are bits, are tables ([`mad`]).
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
extern crate alloc;
#[cfg(test)]
extern crate std;

mod aeth;
mod atomiceth;
mod bth;
pub mod cm;
mod cnp;
mod deth;
mod error;
mod ethernet;
mod feth;
mod field;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gf2;
mod grh;
mod header_len;
mod ib_frame;
pub mod icrc;
mod id;
mod ieth;
mod immdt;
mod ipv4;
mod ipv6;
pub mod iwarp;
mod layout;
mod link_packet;
mod lrh;
pub mod mad;
mod opcode;
mod packet;
mod pmtu;
mod reth;
mod scatter;
#[cfg(test)]
mod tests;
mod udp;
pub mod vcrc;
mod words;
mod write;
mod xrceth;

pub use aeth::{Aeth, AethView, CreditCode, NakCode, RnrTimer, Syndrome};
pub use atomiceth::{AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView};
pub use bth::{Bth, BthView};
pub use cnp::{CnpReserved, CnpReservedView};
pub use deth::{Deth, DethView};
pub use error::Truncated;
pub use ethernet::{
    Ethernet, IPV4_ETHERTYPE, IPV6_ETHERTYPE, ROCE_V1_ETHERTYPE, VLAN_ETHERTYPE, VlanTag,
};
pub use feth::{Feth, FethView, FlushPlacement, FlushSelectivity};
pub use frame::{Frame, FrameError, Net, TooLong};
pub use grh::{GRH_NEXT_HEADER, Grh, GrhView};
pub use ib_frame::{IbFrame, IbFrameError};
pub use icrc::{IcrcDigest, IcrcPrefix};
pub use id::{Gid, Imm, Lid, Lkey, Msn, Pkey, Psn, Qkey, Qpn, Rkey, Srqn};
pub use ieth::{Ieth, IethView};
pub use immdt::{ImmDt, ImmDtView};
pub use ipv4::{IpError, Ipv4, Ipv4Options, Ipv4View};
pub use ipv6::Ipv6;
pub use link_packet::{FlowControl, FlowControlOp, FlowControlView, LinkPacketError};
pub use lrh::{LinkNext, Lrh, LrhView};
pub use opcode::{Op, Opcode, Service};
pub use packet::{EmitError, Exts, Packet, ParseError};
pub use pmtu::Pmtu;
pub use reth::{Reth, RethView};
pub use scatter::{Permutation, Prf};
pub use udp::{ROCE_UDP_PORT, UDP_PROTOCOL, Udp, UdpView};
pub use words::Note;
pub use xrceth::{XrcEth, XrcEthView};
