//! iWARP, against the TCP that it runs on.

use super::{Claim, Door, Row, TURNS, Table, Unit, Wanted, by, claim};
use crate::cable::Place;
use crate::read;
use crate::tools::Tool;

pub(super) const TABLE: Table = Table {
    title: "iWARP over TCP, the same two namespaces",
    place: Place::Cable,
    rows: ROWS,
    claims: CLAIMS,
};

const IPERF3: &str = "iWARP: iperf3 TCP";
const WRITE_BW: &str = "iWARP: feroce WRITE 1 MiB";
const WRITE_BW_NO_CRC: &str = "iWARP: feroce WRITE 1 MiB, no CRC";
const LONG_BW: &str = "iWARP: feroce WRITE 1 MiB, long FPDUs";
const LONG_BW_NO_CRC: &str = "iWARP: feroce WRITE 1 MiB, long FPDUs, no CRC";
const TCP_LAT: &str = "iWARP: TCP 8 B ping-pong, polling";
const WRITE_LAT: &str = "iWARP: feroce WRITE 8 B latency";
const SEND_LAT: &str = "iWARP: feroce SEND 8 B latency";

const IWARP: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp")];
const NO_CRC: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_CRC", "0")];
const LONG: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_LONG_FPDUS", "1")];
const LONG_NO_CRC: &[(&str, &str)] =
    &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_LONG_FPDUS", "1"), ("FEROCE_MPA_CRC", "0")];

const fn bandwidth(name: &'static str, env: &'static [(&'static str, &'static str)]) -> Row {
    Row {
        env,
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --json {server}",
        ..by(Tool::Feroce, name, Unit::GbitPerSecond)
    }
}

const ROWS: &[Row] = &[
    Row {
        server: "-s -1",
        client: "-c {server} -t {seconds} -i 0 -J",
        ..by(Tool::Iperf3, IPERF3, Unit::GbitPerSecond)
    },
    bandwidth(WRITE_BW, IWARP),
    bandwidth(WRITE_BW_NO_CRC, NO_CRC),
    bandwidth(LONG_BW, LONG),
    bandwidth(LONG_BW_NO_CRC, LONG_NO_CRC),
    Row {
        server: "tcp echo",
        client: "tcp ping {server} {seconds}",
        door: Door::Tcp(crate::tcp::PORT),
        read: read::udp_latency,
        turns: TURNS,
        ..by(Tool::Itself, TCP_LAT, Unit::Microseconds)
    },
    Row {
        env: IWARP,
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_latency,
        turns: TURNS,
        ..by(Tool::Feroce, WRITE_LAT, Unit::Microseconds)
    },
    Row {
        env: IWARP,
        server: "perf send lat",
        client: "perf send lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_latency,
        turns: TURNS,
        ..by(Tool::Feroce, SEND_LAT, Unit::Microseconds)
    },
];

const CLAIMS: &[Claim] = &[
    claim(WRITE_BW, IPERF3, Some(Wanted::AtLeast(0.8))),
    claim(WRITE_BW_NO_CRC, IPERF3, Some(Wanted::AtLeast(0.9))),
    claim(LONG_BW, IPERF3, Some(Wanted::AtLeast(0.8))),
    claim(LONG_BW_NO_CRC, IPERF3, Some(Wanted::AtLeast(0.9))),
    claim(WRITE_LAT, TCP_LAT, Some(Wanted::AtMost(1.2))),
    claim(SEND_LAT, TCP_LAT, Some(Wanted::AtMost(1.2))),
];
