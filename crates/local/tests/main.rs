//! Tests of processes of one host, in one program.

mod common;
mod direct_access;
mod port_owner;
mod port_rings;
mod remote_payload;
mod remote_payload_engine;
mod shm;
mod stopped;
