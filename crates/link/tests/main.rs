//! The carriers' tests from outside, in one program.

mod attacks;
mod common;
mod ether;
mod fault;
mod honest;
mod icrc;
mod memory;
mod namespaces;
mod port;
mod records;
mod tcp;
mod together;
mod udp;
