//! How long a packet and its answer take in an empty network, which congestion control wants to
//! know.

use feroce_fabric::{Config, Fabric, Topology};

/// Hosts whose paths to all others are looked at: where there are more, some stand for all.
const SOURCES: usize = 64;

/// The longest in nanoseconds: every link there and back, and a packet of so many bytes sent by
/// every port on the way there. Zero if the topology is not sound: running the scenario says why.
pub(super) fn base_rtt_ns(topology: &Topology, packet_bytes: u32) -> u64 {
    let Ok(fabric) = Fabric::<()>::new(topology.clone(), Config::default()) else { return 0 };
    let hosts = fabric.hosts() as u32;
    let rtt_ps = |(from, to)| -> u64 {
        let path = fabric.path(from, to);
        path.iter().map(|(rate, delay_ps)| 2 * delay_ps + rate.ps_of(packet_bytes)).sum()
    };
    let sources = (0..hosts).step_by((hosts as usize).div_ceil(SOURCES).max(1));
    let pairs = sources.flat_map(|from| (0..hosts).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).map(rtt_ps).max().unwrap_or(0) / 1000
}
