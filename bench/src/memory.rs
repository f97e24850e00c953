//! Memory, counted at the allocator: the same on every machine.

use std::alloc::System;

use feroce_testkit::{TestQp, address};
use stats_alloc::Region;

use crate::pair::{DEPTH, Pair, connect, create_qp, host, round_robin};
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
    let mut idle = host(1, 4096);
    let peer = create_qp(&mut host(2, 4096)).qpn;
    let region = Region::new(ALLOCATOR);
    let qps: Vec<TestQp> = (0..count).map(|_| create_qp(&mut idle)).collect();
    for qp in &qps {
        connect(&mut idle, qp.qpn, (address(2), peer));
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

/// Bytes allocated since the region began and not freed.
fn live(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}
