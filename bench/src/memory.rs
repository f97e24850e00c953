//! Memory, counted at the allocator: the same on every machine.

use std::alloc::System;

use stats_alloc::Region;

use crate::pair::{DEPTH, Host, Pair, Qp, round_robin};
use crate::report::{Figure, Wanted};
use crate::{ALLOCATOR, Effort};

/// Bytes of heap per idle connected queue pair, and per one that has been used.
pub(crate) fn memory(effort: Effort) -> Vec<Figure> {
    let count = effort.scale(10_000) as usize;
    vec![
        idle(count).wanted(Wanted::AtMost(4096.0)),
        used("one WRITE each", count, 1),
        used("128 WRITEs each", count / 10, DEPTH),
    ]
}

/// Queue pairs that are connected and have done nothing.
fn idle(count: usize) -> Figure {
    let mut host = Host::new(1, 4096);
    let peer = Host::new(2, 4096).create_qp().qpn;
    let gid = feroce_wire::Gid::from_ipv4([10, 0, 0, 2]);
    let region = Region::new(ALLOCATOR);
    let qps: Vec<Qp> = (0..count).map(|_| host.create_qp()).collect();
    for qp in &qps {
        host.connect(qp.qpn, (gid, peer));
    }
    let name = format!("memory per idle RC QP, {count} of them");
    Figure::new(name, "bytes", vec![live(&region) / count as f64])
}

/// Connections that have sent something, per queue pair of both sides.
fn used(what: &str, count: usize, writes: u32) -> Figure {
    let region = Region::new(ALLOCATOR);
    let mut pair = Pair::new(4096, count);
    let mut next = 0;
    round_robin(&mut pair, count as u32 * writes, 10, &mut next);
    pair.assert_clean();
    let name = format!("memory per RC QP after {what}");
    Figure::new(name, "bytes", vec![live(&region) / (2 * count) as f64])
}

/// Bytes lent since the region began and not given back.
fn live(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}
