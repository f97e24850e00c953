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
mod nvme;
mod raw;
mod stream;
mod structured;
mod subnet;
mod umad;

pub use manager::cm_manager;
pub use mem_table::mem_table;
pub use nvme::nvme;
pub use raw::{engine_raw, packet_as_raw_input};
pub use stream::engine_iwarp;
pub use structured::engine_structured;
pub use subnet::{subnet_agents, subnet_net, subnet_trunk};
pub use umad::umad_messages;

/// A target: its name, which is that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("wire_views", wire_views),
    ("wire_packet", wire_packet),
    ("wire_frame", wire_frame),
    ("wire_ib_frame", wire_ib_frame),
    ("wire_management", wire_management),
    ("wire_iwarp", wire_iwarp),
    ("rpc_header", rpc_header),
    ("nvme", nvme),
    ("engine_raw", engine_raw),
    ("engine_structured", engine_structured),
    ("engine_iwarp", engine_iwarp),
    ("mem_table", mem_table),
    ("cm_mad", cm_mad),
    ("cm_manager", cm_manager),
    ("subnet_net", subnet_net),
    ("subnet_agents", subnet_agents),
    ("subnet_trunk", subnet_trunk),
    ("umad_messages", umad_messages),
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

/// A packet of an InfiniBand link.
pub fn wire_ib_frame(bytes: &[u8]) {
    feroce_wire::fuzzing::ib_frame(bytes);
}

/// Every record of management on its own.
pub fn wire_management(bytes: &[u8]) {
    feroce_wire::fuzzing::management(bytes);
}

/// Headers, startup frames and a stream of iWARP.
pub fn wire_iwarp(bytes: &[u8]) {
    feroce_wire::fuzzing::iwarp(bytes);
}

/// A management datagram.
pub fn cm_mad(bytes: &[u8]) {
    feroce_wire::fuzzing::mad(bytes);
}

/// Messages of `feroce-rpc`: a header that is accepted is written as it was read.
pub fn rpc_header(bytes: &[u8]) {
    let mut left = bytes;
    while let Ok((header, body, rest)) = feroce_rpc::header::Header::parse(left) {
        let mut again = [0; feroce_rpc::header::LONG];
        let len = header.emit(&mut again);
        assert_eq!(len + body.len() + rest.len(), left.len());
        let again = [&again[..len], body].concat();
        assert_eq!(feroce_rpc::header::Header::parse(&again), Ok((header, body, &[][..])));
        left = rest;
    }
}
