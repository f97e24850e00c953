//! The rows as data: the program, how both ends are started, and how the figure is read.

mod host;
mod iwarp;
mod neighbours;

use crate::cable::Place;
use crate::read::{self, Reader};
use crate::tools::Tool;

/// Rows that are measured in turn, and what is expected of them.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) place: Place,
    pub(crate) rows: &'static [Row],
    pub(crate) claims: &'static [Claim],
}

/// One measurement: a server, and then a client that talks to it.
pub(crate) struct Row {
    /// Unique in its table; claims refer to it.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) tool: Tool,
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Arguments, with spaces between. `{server}` becomes the address of the server, `{seconds}`
    /// how long to measure, and `{1000/s}` a thousand for each of these seconds, for tools that
    /// count and do not look at the clock.
    pub(crate) server: &'static str,
    /// The same, of the client.
    pub(crate) client: &'static str,
    /// What shows that the server is ready.
    pub(crate) door: Door,
    pub(crate) read: Reader,
    /// How many processes keep a processor busy meanwhile. In such a row, both ends run at normal
    /// priority. `None`: the row does not measure that.
    pub(crate) neighbours: Option<u8>,
    /// How many turns it has in a round, which share its time. The one in the middle counts.
    pub(crate) turns: u32,
}

/// Turns in a round of rows that differ by little. The machine may be twice as fast in one second
/// as in the next, so a run consists of several turns.
pub(crate) const TURNS: u32 = 5;

/// What a server opens when it is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    Tcp(u16),
    Udp(u16),
}

/// The unit of a figure, which decides whether more or less is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    GbitPerSecond,
    Microseconds,
    MessagesPerSecond,
}

impl Unit {
    /// The field of `feroce perf --json` that holds it.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::GbitPerSecond => "gbit_per_s",
            Self::Microseconds => "p50_us",
            Self::MessagesPerSecond => "msg_per_s",
        }
    }

    /// For people.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::GbitPerSecond => format!("{value:.2} Gbit/s"),
            Self::Microseconds => format!("{value:.2} us"),
            Self::MessagesPerSecond => format!("{:.3} M/s", value / 1e6),
        }
    }

    /// What is twice as good as a value.
    pub(crate) fn twice_as_good(self, value: f64) -> f64 {
        if self == Self::Microseconds { value / 2.0 } else { value * 2.0 }
    }

    /// Whether `a` is better than `b`.
    pub(crate) fn is_better(self, a: f64, b: f64) -> bool {
        if self == Self::Microseconds { a < b } else { a > b }
    }
}

/// A ratio of two rows, and what it should be.
pub(crate) struct Claim {
    pub(crate) of: &'static str,
    pub(crate) against: &'static str,
    /// `None`: for information only.
    pub(crate) wanted: Option<Wanted>,
}

/// What a ratio should be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

/// All tables.
pub(crate) const TABLES: &[Table] = &[
    Table {
        title: "two namespaces, veth, MTU 9000, one process at each end",
        place: Place::Cable,
        rows: CABLE,
        claims: CABLE_CLAIMS,
    },
    iwarp::TABLE,
    host::TABLE,
    neighbours::TABLE,
];

const IPERF3: &str = "iperf3 TCP";
const UDP_TRAINS: &str = "UDP, 15 x 4 KiB per call";
const UDP_PACKETS: &str = "UDP, 4 KiB per call";
const UCX_PUT_BW: &str = "UCX tcp put 1 MiB";
const LIBFABRIC_BW: &str = "libfabric tcp 1 MiB ping-pong";
const WRITE_BW: &str = "feroce WRITE 1 MiB";
const WRITE_BW_V1: &str = "feroce WRITE 1 MiB, RoCEv1";
const WRITE_BW_LOSS_RARE: &str = "feroce WRITE 1 MiB, 0.01 % loss";
const WRITE_BW_LOSS: &str = "feroce WRITE 1 MiB, 1 % loss";
const UDP_POLLING: &str = "UDP 8 B ping-pong, polling";
const UDP_TRAIN: &str = "UDP 40 + 20 B ping-pong, one call, polling";
const UDP_BLOCKING: &str = "UDP 8 B ping-pong, blocking";
const UCX_PUT_LAT: &str = "UCX tcp put 8 B latency";
const UCX_TAG_LAT: &str = "UCX tcp tag 8 B latency";
const LIBFABRIC_LAT: &str = "libfabric tcp 8 B latency";
const WRITE_LAT: &str = "feroce WRITE 8 B latency";
const SEND_LAT: &str = "feroce SEND 8 B latency";
const UDP_SLOW: &str = "UDP 8 B ping-pong, polling, p99";
const SEND_SLOW: &str = "feroce SEND 8 B latency, p99";
const UDP_RATE: &str = "UDP 40 B, one per call";
const UCX_RATE: &str = "UCX tcp put 8 B rate";
const WRITE_RATE: &str = "feroce WRITE 8 B rate, 128 deep";
const WRITE_RATE_LISTS: &str = "feroce WRITE 8 B rate, lists of 32";

const MIB: u32 = 1 << 20;

/// A row with nothing in it yet but who runs.
const fn by(tool: Tool, name: &'static str, unit: Unit) -> Row {
    let (door, read): (Door, Reader) = match tool {
        Tool::Iperf3 => (Door::Tcp(5201), read::iperf3),
        Tool::Ucx => (Door::Tcp(13337), read::ucx_bandwidth::<MIB>),
        Tool::Libfabric => (Door::Tcp(47592), read::libfabric_bandwidth),
        Tool::Feroce => (Door::Tcp(18515), read::feroce_bandwidth),
        Tool::DropIn => (Door::Tcp(18515), read::perftest_bandwidth),
        Tool::Itself => (Door::Udp(crate::udp::PORT), read::udp_bandwidth),
    };
    let (neighbours, turns) = (None, 1);
    Row { name, unit, tool, env: &[], server: "", client: "", door, read, neighbours, turns }
}

const UCX_ENV: &[(&str, &str)] = &[("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "wire")];

const CABLE: &[Row] = &[
    Row {
        server: "-s -1",
        client: "-c {server} -t {seconds} -i 0 -J",
        ..by(Tool::Iperf3, IPERF3, Unit::GbitPerSecond)
    },
    Row {
        server: "udp sink",
        client: "udp source {server} {seconds} 4096 15",
        ..by(Tool::Itself, UDP_TRAINS, Unit::GbitPerSecond)
    },
    Row {
        server: "udp sink",
        client: "udp source {server} {seconds} 4096 1",
        ..by(Tool::Itself, UDP_PACKETS, Unit::GbitPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_bw -s 1048576 -n {2000/s} -w 100 -f -v",
        ..by(Tool::Ucx, UCX_PUT_BW, Unit::GbitPerSecond)
    },
    Row {
        server: "-p tcp -e msg -S 1048576 -I {1000/s}",
        client: "-p tcp -e msg -S 1048576 -I {1000/s} {server}",
        ..by(Tool::Libfabric, LIBFABRIC_BW, Unit::GbitPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --json {server}",
        ..by(Tool::Feroce, WRITE_BW, Unit::GbitPerSecond)
    },
    Row {
        env: &[("FEROCE_DEFAULT_ROCE_MODE", "v1")],
        server: "perf write bw -R",
        client: "perf write bw -R -s 1M -D {seconds} --json {server}",
        ..by(Tool::Feroce, WRITE_BW_V1, Unit::GbitPerSecond)
    },
    Row {
        env: &[("FEROCE_FAULT", "loss=0.01%,seed=7")],
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --json {server}",
        ..by(Tool::Feroce, WRITE_BW_LOSS_RARE, Unit::GbitPerSecond)
    },
    Row {
        env: &[("FEROCE_FAULT", "loss=1%,seed=7")],
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --json {server}",
        ..by(Tool::Feroce, WRITE_BW_LOSS, Unit::GbitPerSecond)
    },
    Row {
        server: "udp echo polling",
        client: "udp ping {server} {seconds} 8 polling",
        read: read::udp_latency,
        turns: TURNS,
        ..by(Tool::Itself, UDP_POLLING, Unit::Microseconds)
    },
    Row {
        server: "udp echo train",
        client: "udp ping {server} {seconds} 60 train",
        read: read::udp_latency,
        turns: TURNS,
        ..by(Tool::Itself, UDP_TRAIN, Unit::Microseconds)
    },
    Row {
        server: "udp echo blocking",
        client: "udp ping {server} {seconds} 8 blocking",
        read: read::udp_latency,
        turns: TURNS,
        ..by(Tool::Itself, UDP_BLOCKING, Unit::Microseconds)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_lat -s 8 -n {20000/s} -w 1000 -f -v",
        read: read::ucx_latency,
        turns: TURNS,
        ..by(Tool::Ucx, UCX_PUT_LAT, Unit::Microseconds)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t tag_lat -s 8 -n {50000/s} -w 1000 -f -v",
        read: read::ucx_latency,
        turns: TURNS,
        ..by(Tool::Ucx, UCX_TAG_LAT, Unit::Microseconds)
    },
    Row {
        server: "-p tcp -e msg -S 8 -I {50000/s}",
        client: "-p tcp -e msg -S 8 -I {50000/s} {server}",
        read: read::libfabric_latency,
        turns: TURNS,
        ..by(Tool::Libfabric, LIBFABRIC_LAT, Unit::Microseconds)
    },
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_latency,
        turns: TURNS,
        ..by(Tool::Feroce, WRITE_LAT, Unit::Microseconds)
    },
    Row {
        server: "perf send lat",
        client: "perf send lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_latency,
        turns: TURNS,
        ..by(Tool::Feroce, SEND_LAT, Unit::Microseconds)
    },
    Row {
        server: "udp echo polling",
        client: "udp ping {server} {seconds} 8 polling",
        read: read::slow_latency,
        turns: TURNS,
        ..by(Tool::Itself, UDP_SLOW, Unit::Microseconds)
    },
    Row {
        server: "perf send lat",
        client: "perf send lat -s 8 -D {seconds} --json {server}",
        read: read::slow_latency,
        turns: TURNS,
        ..by(Tool::Feroce, SEND_SLOW, Unit::Microseconds)
    },
    // As long as the packet of an 8-byte WRITE: transport and RDMA header, data, ICRC.
    Row {
        server: "udp sink",
        client: "udp source {server} {seconds} 40 1",
        read: read::udp_rate,
        ..by(Tool::Itself, UDP_RATE, Unit::MessagesPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_bw -s 8 -n {200000/s} -w 1000 -f -v",
        read: read::ucx_rate,
        ..by(Tool::Ucx, UCX_RATE, Unit::MessagesPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 8 -t 128 -D {seconds} --json {server}",
        read: read::feroce_rate,
        ..by(Tool::Feroce, WRITE_RATE, Unit::MessagesPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 8 -t 128 -l 32 -D {seconds} --json {server}",
        read: read::feroce_rate,
        ..by(Tool::Feroce, WRITE_RATE_LISTS, Unit::MessagesPerSecond)
    },
];

const fn claim(of: &'static str, against: &'static str, wanted: Option<Wanted>) -> Claim {
    Claim { of, against, wanted }
}

const CABLE_CLAIMS: &[Claim] = &[
    claim(WRITE_BW, IPERF3, Some(Wanted::AtLeast(1.0))),
    claim(WRITE_BW, UDP_TRAINS, None),
    claim(WRITE_BW, UCX_PUT_BW, None),
    claim(WRITE_BW, LIBFABRIC_BW, None),
    claim(WRITE_BW_V1, WRITE_BW, Some(Wanted::AtLeast(0.5))),
    claim(WRITE_BW_LOSS_RARE, WRITE_BW, Some(Wanted::AtLeast(0.9))),
    claim(WRITE_BW_LOSS, WRITE_BW, Some(Wanted::AtLeast(0.6))),
    claim(WRITE_LAT, UDP_POLLING, Some(Wanted::AtMost(1.5))),
    claim(SEND_LAT, UDP_POLLING, Some(Wanted::AtMost(1.5))),
    claim(SEND_SLOW, UDP_SLOW, Some(Wanted::AtMost(2.0))),
    claim(WRITE_LAT, UDP_TRAIN, None),
    claim(WRITE_LAT, UDP_BLOCKING, None),
    claim(WRITE_LAT, UCX_PUT_LAT, None),
    claim(SEND_LAT, UCX_TAG_LAT, None),
    claim(SEND_LAT, LIBFABRIC_LAT, None),
    claim(WRITE_RATE, UDP_RATE, Some(Wanted::AtLeast(10.0))),
    claim(WRITE_RATE_LISTS, UDP_RATE, Some(Wanted::AtLeast(10.0))),
    claim(WRITE_RATE, UCX_RATE, None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_of_rows_in_the_same_unit() {
        for table in TABLES {
            let row = |name| table.rows.iter().find(|row| row.name == name).expect(name);
            for claim in table.claims {
                assert_eq!(row(claim.of).unit, row(claim.against).unit, "{}", claim.of);
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for table in TABLES {
            for (i, row) in table.rows.iter().enumerate() {
                assert!(table.rows[..i].iter().all(|other| other.name != row.name), "{}", row.name);
            }
        }
    }

    #[test]
    fn less_is_better_for_latency_only() {
        assert!(Unit::Microseconds.is_better(1.0, 2.0));
        assert!(Unit::GbitPerSecond.is_better(2.0, 1.0));
        assert!(!Unit::MessagesPerSecond.is_better(1.0, 2.0));
    }
}
