//! Objects that the program has not freed when the process exits.
//!
//! librdmacm keeps devices and protection domains that the program has not made and cannot free;
//! those are not counted ([`kept`]).

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::process;

use crate::report::print;

/// Kinds of objects that programs make and have to free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Thread domain.
    Td,
    /// Memory region.
    Mr,
    /// Memory window.
    Mw,
    /// Device memory.
    Dm,
    /// Completion channel.
    Channel,
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Srq,
    /// Queue pair.
    Qp,
    /// Address handle.
    Ah,
    /// XRC domain.
    Xrcd,
    /// Protection domain.
    Pd,
    /// Open device.
    Device,
}

/// For each kind: the words for one object, for several, and for how to free them.
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

/// How many objects of each kind the program has.
static ALIVE: [AtomicI64; WORDS.len()] = [const { AtomicI64::new(0) }; WORDS.len()];

/// The process that the objects belong to. Its children inherit them and need not free them.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The program has made an object.
pub fn made(kind: Kind) {
    ALIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
}

/// The program has freed an object.
pub fn freed(kind: Kind) {
    ALIVE[kind as usize].fetch_sub(1, Ordering::Relaxed);
}

/// The library, and not the program, owns the object that was just made.
pub fn kept(kind: Kind) {
    freed(kind);
}

/// Makes this process the one whose objects are listed.
pub(crate) fn remember_process() {
    PROCESS.store(process::id(), Ordering::Relaxed);
}

/// Whether this is the process that called [`remember_process`].
pub(crate) fn is_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == process::id()
}

/// Lists the objects that have not been freed.
pub(crate) fn list() {
    for ((one, many, remedy), alive) in WORDS.iter().zip(&ALIVE) {
        match alive.load(Ordering::Relaxed) {
            ..=0 => {}
            1 => print(&format!("at exit, 1 {one} not {remedy}")),
            n => print(&format!("at exit, {n} {many} not {remedy}")),
        }
    }
}
