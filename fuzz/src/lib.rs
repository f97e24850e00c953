//! Bodies of the fuzz targets: each takes arbitrary bytes and checks what must hold for all.
//!
//! A fuzzer calls them through the programs in `fuzz_targets/`; the test `corpus` calls them with
//! every input in `corpus/`, with nothing but the stable toolchain. Inputs drive everything and
//! nothing is random, so an input that fails once fails always.
//!
//! To look into a finding, run the program of the target with the file as its argument.

mod clean;
mod host;
mod input;
mod manager;
mod mem_table;
mod raw;
mod structured;

pub use manager::cm_manager;
pub use mem_table::mem_table;
pub use raw::{engine_raw, packet_as_raw_input};
pub use structured::engine_structured;

/// A target: its name, which is that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("wire_views", wire_views),
    ("wire_packet", wire_packet),
    ("wire_frame", wire_frame),
    ("engine_raw", engine_raw),
    ("engine_structured", engine_structured),
    ("mem_table", mem_table),
    ("cm_mad", cm_mad),
    ("cm_manager", cm_manager),
];

/// Every header on its own.
pub fn wire_views(bytes: &[u8]) {
    feroce_wire::fuzzing::views(bytes);
}

/// A transport packet.
pub fn wire_packet(bytes: &[u8]) {
    feroce_wire::fuzzing::packet(bytes);
}

/// A frame as Ethernet, as IP and as a GRH.
pub fn wire_frame(bytes: &[u8]) {
    feroce_wire::fuzzing::frame(bytes);
}

/// A management datagram.
pub fn cm_mad(bytes: &[u8]) {
    feroce_wire::fuzzing::mad(bytes);
}
