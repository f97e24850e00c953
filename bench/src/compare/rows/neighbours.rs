//! Two processes of one host while other processes keep its processors busy.
//!
//! An end that only spins is fast while both ends run; while one of them is not scheduled, the
//! other waits until the time slice of a busy process ends. These rows are means, because a median
//! would not show that wait. Runs depend on the scheduler; look at both the best and the worst.

use super::{Claim, Row, Table, Unit, by, claim};
use crate::cable::Place;
use crate::read;
use crate::tools::Tool;

pub(super) const TABLE: Table = Table {
    title: "two processes of one host, beside processes that keep processors busy",
    place: Place::Host,
    rows: ROWS,
    claims: CLAIMS,
};

const WRITE_ALONE: &str = "busy host: feroce WRITE 8 B mean latency, alone";
const WRITE_BESIDE_1: &str = "busy host: feroce WRITE 8 B mean latency, 1 neighbour";
const WRITE_BESIDE_2: &str = "busy host: feroce WRITE 8 B mean latency, 2 neighbours";
const SEND_ALONE: &str = "busy host: feroce SEND 8 B mean latency, alone";
const SEND_BESIDE_1: &str = "busy host: feroce SEND 8 B mean latency, 1 neighbour";
const SEND_BESIDE_2: &str = "busy host: feroce SEND 8 B mean latency, 2 neighbours";
const UCX_PUT_ALONE: &str = "busy host: UCX put 8 B mean latency, alone";
const UCX_PUT_BESIDE_1: &str = "busy host: UCX put 8 B mean latency, 1 neighbour";
const UCX_PUT_BESIDE_2: &str = "busy host: UCX put 8 B mean latency, 2 neighbours";
const UCX_TAG_ALONE: &str = "busy host: UCX tag 8 B mean latency, alone";
const UCX_TAG_BESIDE_1: &str = "busy host: UCX tag 8 B mean latency, 1 neighbour";
const UCX_TAG_BESIDE_2: &str = "busy host: UCX tag 8 B mean latency, 2 neighbours";

const fn write(name: &'static str, neighbours: u8) -> Row {
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_mean_latency,
        neighbours: Some(neighbours),
        ..by(Tool::Feroce, name, Unit::Microseconds)
    }
}

const fn send(name: &'static str, neighbours: u8) -> Row {
    Row {
        server: "perf send lat",
        client: "perf send lat -s 8 -D {seconds} --json {server}",
        ..write(name, neighbours)
    }
}

const fn ucx_put(name: &'static str, neighbours: u8) -> Row {
    Row {
        env: super::host::UCX_ENV,
        client: "{server} -t ucp_put_lat -s 8 -n {10000/s} -w 100 -f -v",
        read: read::ucx_mean_latency,
        neighbours: Some(neighbours),
        ..by(Tool::Ucx, name, Unit::Microseconds)
    }
}

const fn ucx_tag(name: &'static str, neighbours: u8) -> Row {
    Row {
        client: "{server} -t tag_lat -s 8 -n {10000/s} -w 100 -f -v",
        ..ucx_put(name, neighbours)
    }
}

const ROWS: &[Row] = &[
    write(WRITE_ALONE, 0),
    write(WRITE_BESIDE_1, 1),
    write(WRITE_BESIDE_2, 2),
    send(SEND_ALONE, 0),
    send(SEND_BESIDE_1, 1),
    send(SEND_BESIDE_2, 2),
    ucx_put(UCX_PUT_ALONE, 0),
    ucx_put(UCX_PUT_BESIDE_1, 1),
    ucx_put(UCX_PUT_BESIDE_2, 2),
    ucx_tag(UCX_TAG_ALONE, 0),
    ucx_tag(UCX_TAG_BESIDE_1, 1),
    ucx_tag(UCX_TAG_BESIDE_2, 2),
];

const CLAIMS: &[Claim] = &[
    claim(WRITE_BESIDE_1, WRITE_ALONE, None),
    claim(WRITE_BESIDE_2, WRITE_ALONE, None),
    claim(SEND_BESIDE_1, SEND_ALONE, None),
    claim(SEND_BESIDE_2, SEND_ALONE, None),
    claim(WRITE_BESIDE_1, UCX_PUT_BESIDE_1, None),
    claim(WRITE_BESIDE_2, UCX_PUT_BESIDE_2, None),
    claim(SEND_BESIDE_1, UCX_TAG_BESIDE_1, None),
    claim(SEND_BESIDE_2, UCX_TAG_BESIDE_2, None),
];
