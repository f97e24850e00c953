//! Objects that are left when the process ends.
//!
//! librdmacm keeps devices and protection domains that a program has not made and cannot free;
//! those are not counted ([`kept`]).

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::process;

use super::report::say;

/// Kinds of objects that programs make and have to free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Td,
    Mr,
    Mw,
    Dm,
    Channel,
    Cq,
    Srq,
    Qp,
    Ah,
    Xrcd,
    Pd,
    Device,
}

/// What one is called, what many are, and how they go.
const WORDS: [(&str, &str, &str); 12] = [
    ("thread domain was", "thread domains were", "freed: call ibv_dealloc_td"),
    ("memory region was", "memory regions were", "deregistered: call ibv_dereg_mr"),
    ("memory window was", "memory windows were", "freed: call ibv_dealloc_mw"),
    ("piece of device memory was", "pieces of device memory were", "freed: call ibv_free_dm"),
    (
        "completion channel was",
        "completion channels were",
        "destroyed: call ibv_destroy_comp_channel",
    ),
    ("completion queue was", "completion queues were", "destroyed: call ibv_destroy_cq"),
    ("shared receive queue was", "shared receive queues were", "destroyed: call ibv_destroy_srq"),
    ("queue pair was", "queue pairs were", "destroyed: call ibv_destroy_qp"),
    ("address handle was", "address handles were", "destroyed: call ibv_destroy_ah"),
    ("XRC domain was", "XRC domains were", "closed: call ibv_close_xrcd"),
    ("protection domain was", "protection domains were", "freed: call ibv_dealloc_pd"),
    ("device was", "devices were", "closed: call ibv_close_device"),
];

/// How many there are of each kind.
static ALIVE: [AtomicI64; WORDS.len()] = [const { AtomicI64::new(0) }; WORDS.len()];

/// The process that the objects are of. What its children inherit is not theirs to free.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The program has one more.
pub(crate) fn made(kind: Kind) {
    ALIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
}

/// The program has freed one.
pub(crate) fn freed(kind: Kind) {
    ALIVE[kind as usize].fetch_sub(1, Ordering::Relaxed);
}

/// One that was just made is kept by the library, and not by the program.
pub(crate) fn kept(kind: Kind) {
    freed(kind);
}

/// This process is the one that is looked at.
pub(super) fn remember_process() {
    PROCESS.store(process::id(), Ordering::Relaxed);
}

/// Lists what is left at exit.
pub(crate) fn list_leaks() {
    if !super::is_on() || PROCESS.load(Ordering::Relaxed) != process::id() {
        return;
    }
    super::starved::process_ends();
    for ((one, many, remedy), alive) in WORDS.iter().zip(&ALIVE) {
        match alive.load(Ordering::Relaxed) {
            ..=0 => {}
            1 => say(&format!("at exit, 1 {one} not {remedy}")),
            n => say(&format!("at exit, {n} {many} not {remedy}")),
        }
    }
}
