//! Packets to bytes and back.
#![no_std]
#![forbid(unsafe_code)]

mod id;

pub use id::{Gid, Imm, Lid, Lkey, Msn, Pkey, Psn, Qkey, Qpn, Rkey, Srqn};
