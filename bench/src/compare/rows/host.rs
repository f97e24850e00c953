//! Two processes of one host, on one address.
//!
//! There are two kinds of memory: *ordinary* memory, which programs allocate and register, and
//! *shareable* memory, which the adapter allocates or which programs have in files. UCX has both:
//! tag messages move data between ordinary buffers (`cma`), puts write to memory that the two
//! processes share (`posix`).

use super::{Claim, Row, Table, Unit, Wanted, by, claim};
use crate::cable::Place;
use crate::read;
use crate::tools::Tool;

pub(super) const TABLE: Table = Table {
    title: "two processes of one host, one address",
    place: Place::Host,
    rows: ROWS,
    claims: CLAIMS,
};

const KIB_64: u32 = 64 << 10;

const UCX_PUT_LAT: &str = "host: UCX put 8 B latency";
const UCX_TAG_LAT: &str = "host: UCX tag 8 B latency";
const LIBFABRIC_LAT: &str = "host: libfabric shm 8 B latency";
const WRITE_LAT: &str = "host: feroce WRITE 8 B latency, ordinary";
const WRITE_LAT_SHARED: &str = "host: feroce WRITE 8 B latency, shareable";
const WRITE_LAT_COMPLETED: &str = "host: feroce WRITE 8 B latency, each completed";
const WRITE_LAT_UNPOLLED: &str = "host: feroce WRITE 8 B latency, ordinary, no call";
const WRITE_LAT_SHARED_UNPOLLED: &str = "host: feroce WRITE 8 B latency, shareable, no call";
const SEND_LAT: &str = "host: feroce SEND 8 B latency";
const UCX_PUT_BW: &str = "host: UCX put 1 MiB";
const UCX_TAG_BW: &str = "host: UCX tag 1 MiB";
const LIBFABRIC_BW: &str = "host: libfabric shm 1 MiB ping-pong";
const WRITE_BW: &str = "host: feroce WRITE 1 MiB, ordinary";
const WRITE_BW_SHARED: &str = "host: feroce WRITE 1 MiB, shareable";
const READ_BW: &str = "host: feroce READ 1 MiB, ordinary";
const UCX_PUT_BW_64K: &str = "host: UCX put 64 KiB";
const UCX_TAG_BW_64K: &str = "host: UCX tag 64 KiB";
const LIBFABRIC_BW_64K: &str = "host: libfabric shm 64 KiB ping-pong";
const WRITE_BW_64K: &str = "host: feroce WRITE 64 KiB, ordinary";
const WRITE_BW_64K_SHARED: &str = "host: feroce WRITE 64 KiB, shareable";
const UCX_RATE: &str = "host: UCX put 8 B rate";
const WRITE_RATE: &str = "host: feroce WRITE 8 B rate, 128 deep";
const WRITE_RATE_SHARED: &str = "host: feroce WRITE 8 B rate, shareable";
const WRITE_RATE_LISTS: &str = "host: feroce WRITE 8 B rate, shareable, lists of 32";
const DROP_IN_LAT: &str = "host: ib_write_lat 8 B, drop-in";
const DROP_IN_BW_64K: &str = "host: ib_write_bw 64 KiB, drop-in";
const CONVERTED_BW_64K: &str = "host: ib_write_bw 64 KiB, drop-in, converted";
const FILE_LAT: &str = "host: ib_write_lat 8 B, drop-in, a file";
const FILE_BW_64K: &str = "host: ib_write_bw 64 KiB, drop-in, a file";

pub(super) const UCX_ENV: &[(&str, &str)] = &[("UCX_TLS", "posix,cma")];

const ROWS: &[Row] = &[
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_lat -s 8 -n {500000/s} -w 1000 -f -v",
        read: read::ucx_latency,
        ..by(Tool::Ucx, UCX_PUT_LAT, Unit::Microseconds)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t tag_lat -s 8 -n {500000/s} -w 1000 -f -v",
        read: read::ucx_latency,
        ..by(Tool::Ucx, UCX_TAG_LAT, Unit::Microseconds)
    },
    Row {
        server: "-p shm -e rdm -S 8 -I {200000/s}",
        client: "-p shm -e rdm -S 8 -I {200000/s} {server}",
        read: read::libfabric_latency,
        ..by(Tool::Libfabric, LIBFABRIC_LAT, Unit::Microseconds)
    },
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --memory ordinary --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, WRITE_LAT, Unit::Microseconds)
    },
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --memory shareable --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, WRITE_LAT_SHARED, Unit::Microseconds)
    },
    // As a program that only looks at its memory waits for a message.
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --memory ordinary --no-poll --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, WRITE_LAT_UNPOLLED, Unit::Microseconds)
    },
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -D {seconds} --memory shareable --no-poll --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, WRITE_LAT_SHARED_UNPOLLED, Unit::Microseconds)
    },
    Row {
        server: "perf send lat",
        client: "perf send lat -s 8 -D {seconds} --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, SEND_LAT, Unit::Microseconds)
    },
    // What `ib_write_lat` does: the completion of each write comes first, then the answer.
    Row {
        server: "perf write lat",
        client: "perf write lat -s 8 -Q 1 -D {seconds} --memory ordinary --json {server}",
        read: read::feroce_latency,
        ..by(Tool::Feroce, WRITE_LAT_COMPLETED, Unit::Microseconds)
    },
    // A long transport timeout (`-u`): at real-time priority, an end that spins on its memory keeps
    // the other processes from running.
    Row {
        server: "run -- ib_write_lat -F -s 8 -u 20 -n {20000/s}",
        client: "run -- ib_write_lat -F -s 8 -u 20 -n {20000/s} {server}",
        read: read::perftest_latency,
        ..by(Tool::DropIn, DROP_IN_LAT, Unit::Microseconds)
    },
    // Memory that the program shares by itself.
    Row {
        server: "run -- ib_write_lat -F -s 8 -u 20 -n {20000/s} --mmap={memory}",
        client: "run -- ib_write_lat -F -s 8 -u 20 -n {20000/s} --mmap={memory} {server}",
        read: read::perftest_latency,
        ..by(Tool::DropIn, FILE_LAT, Unit::Microseconds)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_bw -s 1048576 -n {5000/s} -w 100 -f -v",
        ..by(Tool::Ucx, UCX_PUT_BW, Unit::GbitPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t tag_bw -s 1048576 -n {5000/s} -w 100 -f -v",
        ..by(Tool::Ucx, UCX_TAG_BW, Unit::GbitPerSecond)
    },
    Row {
        server: "-p shm -e rdm -S 1048576 -I {2000/s}",
        client: "-p shm -e rdm -S 1048576 -I {2000/s} {server}",
        ..by(Tool::Libfabric, LIBFABRIC_BW, Unit::GbitPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --memory ordinary --json {server}",
        ..by(Tool::Feroce, WRITE_BW, Unit::GbitPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 1M -D {seconds} --memory shareable --json {server}",
        ..by(Tool::Feroce, WRITE_BW_SHARED, Unit::GbitPerSecond)
    },
    Row {
        server: "perf read bw",
        client: "perf read bw -s 1M -D {seconds} --memory ordinary --json {server}",
        ..by(Tool::Feroce, READ_BW, Unit::GbitPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_bw -s 65536 -n {100000/s} -w 100 -f -v",
        read: read::ucx_bandwidth::<KIB_64>,
        ..by(Tool::Ucx, UCX_PUT_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t tag_bw -s 65536 -n {50000/s} -w 100 -f -v",
        read: read::ucx_bandwidth::<KIB_64>,
        ..by(Tool::Ucx, UCX_TAG_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        server: "-p shm -e rdm -S 65536 -I {20000/s}",
        client: "-p shm -e rdm -S 65536 -I {20000/s} {server}",
        ..by(Tool::Libfabric, LIBFABRIC_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 64K -D {seconds} --memory ordinary --json {server}",
        ..by(Tool::Feroce, WRITE_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 64K -D {seconds} --memory shareable --json {server}",
        ..by(Tool::Feroce, WRITE_BW_64K_SHARED, Unit::GbitPerSecond)
    },
    // As many at once as `feroce perf` has by itself.
    Row {
        server: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s}",
        client: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s} --report_gbits {server}",
        ..by(Tool::DropIn, DROP_IN_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        env: &[("FEROCE_CONVERT", "1")],
        server: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s}",
        client: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s} --report_gbits {server}",
        ..by(Tool::DropIn, CONVERTED_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        server: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s} --mmap={memory}",
        client: "run -- ib_write_bw -F -s 65536 -t 128 -n {100000/s} --mmap={memory} \
                 --report_gbits {server}",
        ..by(Tool::DropIn, FILE_BW_64K, Unit::GbitPerSecond)
    },
    Row {
        env: UCX_ENV,
        client: "{server} -t ucp_put_bw -s 8 -n {5000000/s} -w 1000 -f -v",
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
        client: "perf write bw -s 8 -t 128 -D {seconds} --memory shareable --json {server}",
        read: read::feroce_rate,
        ..by(Tool::Feroce, WRITE_RATE_SHARED, Unit::MessagesPerSecond)
    },
    Row {
        server: "perf write bw",
        client: "perf write bw -s 8 -t 128 -l 32 -D {seconds} --memory shareable --json {server}",
        read: read::feroce_rate,
        ..by(Tool::Feroce, WRITE_RATE_LISTS, Unit::MessagesPerSecond)
    },
];

const CLAIMS: &[Claim] = &[
    claim(WRITE_LAT, UCX_PUT_LAT, Some(Wanted::AtMost(5.0))),
    claim(WRITE_LAT_SHARED, UCX_PUT_LAT, Some(Wanted::AtMost(1.2))),
    claim(WRITE_LAT_UNPOLLED, UCX_PUT_LAT, Some(Wanted::AtMost(5.0))),
    claim(WRITE_LAT_SHARED_UNPOLLED, UCX_PUT_LAT, Some(Wanted::AtMost(2.0))),
    claim(SEND_LAT, UCX_TAG_LAT, Some(Wanted::AtMost(1.5))),
    claim(SEND_LAT, LIBFABRIC_LAT, None),
    claim(WRITE_BW, UCX_TAG_BW, Some(Wanted::AtLeast(1.0))),
    claim(WRITE_BW_SHARED, UCX_PUT_BW, Some(Wanted::AtLeast(0.8))),
    claim(WRITE_BW, LIBFABRIC_BW, None),
    claim(READ_BW, WRITE_BW, None),
    claim(WRITE_BW_64K, UCX_TAG_BW_64K, Some(Wanted::AtLeast(0.8))),
    claim(WRITE_BW_64K_SHARED, UCX_PUT_BW_64K, Some(Wanted::AtLeast(0.8))),
    claim(WRITE_BW_64K, LIBFABRIC_BW_64K, None),
    claim(WRITE_RATE, UCX_RATE, None),
    claim(WRITE_RATE_SHARED, UCX_RATE, None),
    claim(WRITE_RATE_LISTS, UCX_RATE, None),
    claim(DROP_IN_LAT, WRITE_LAT_COMPLETED, Some(Wanted::AtMost(1.2))),
    claim(DROP_IN_BW_64K, WRITE_BW_64K, Some(Wanted::AtLeast(0.8))),
    claim(CONVERTED_BW_64K, WRITE_BW_64K_SHARED, Some(Wanted::AtLeast(0.8))),
    claim(CONVERTED_BW_64K, DROP_IN_BW_64K, None),
    claim(FILE_LAT, UCX_PUT_LAT, Some(Wanted::AtMost(2.0))),
    claim(FILE_BW_64K, UCX_PUT_BW_64K, Some(Wanted::AtLeast(0.8))),
];
