//! The test harness: hosts in memory and virtual time, for the tests of the engine, the simulator,
//! the fuzz targets and the benchmarks.
//!
//! * [`Host`] is an engine with a protection domain, registered memory and a completion queue.
//! * [`Pair`] is two hosts, the time, and a wire that loses nothing; [`Wire`] is that wire alone.
//! * [`Scripted`] is a host whose only peer is the test: [`script`] has the words for packets made
//!   by hand, and [`golden`] plays captures of Linux Soft-RoCE.
//! * [`Streams`] is two hosts of iWARP and a byte stream that is cut as the test says;
//!   [`stream_peer`] is one host of iWARP whose peer is the test.
//! * [`Connection`] says what a queue pair is connected to, and takes it from RESET to RTS.
//! * [`packets`] and [`as_trains`] turn trains into packets and packets into trains.
//!
//! Nothing here reads a clock or draws random numbers: the time is an argument or a field, and
//! seeds are given.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod bring_up;
pub mod golden;
mod host;
mod memory;
mod packet;
mod pair;
mod qp;
pub mod script;
mod scripted;
pub mod stream_peer;
mod streams;
mod wire;

pub use bring_up::{bring_up, datagram_qp, datagram_qp_with};
pub use host::{Host, HostConfig, MEMORY, address};
pub use memory::Mr;
pub use packet::{Packet, as_trains, header, packets};
pub use pair::{Pair, START};
pub use qp::{Connection, QKEY, TestQp, init_attr};
pub use scripted::{OUR_PSN, PEER_PSN, PEER_QPN, Scripted};
pub use streams::{Streams, attached, land};
pub use wire::Wire;

use feroce_engine::{Data, SendOp, SendWr};
use feroce_mem::Access;
use feroce_train::LinkCaps;
use feroce_wire::Psn;

/// Every access right.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// What the link of a test takes: fifteen packets of 4 KiB fit a train, as they fit one call with
/// segmentation offload.
pub const CAPS: LinkCaps = LinkCaps { max_packets: 64, max_bytes: 65000 };

/// A PSN.
pub fn psn(n: u32) -> Psn {
    Psn::new(n)
}

/// A signalled request.
pub fn wr(wr_id: u64, op: SendOp, data: Data) -> SendWr {
    SendWr::new(wr_id, op, data)
}
