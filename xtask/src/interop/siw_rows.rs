//! The rows of the matrix with Soft-iWARP at the other end.

use super::driver::Driver;
use super::lab::Side;
use super::rows::{
    CALLER, CMATOSE, Family, GREETINGS, PERF_CM, PINGS, RPING, Row, caller, cm, killed, perf_cm,
};

/// What our end is told: to speak iWARP.
const CRC: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp")];

/// And not to ask for CRCs, which `siw` does not ask for either.
const NO_CRC: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_CRC", "0")];

/// Not to ask that either end may send first; `siw` does not ask for that either.
const CLIENT_FIRST: &[(&str, &str)] =
    &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_PEER_TO_PEER", "0")];

/// To speak the first revision of MPA.
const FIRST: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_REVISION", "1")];

/// perftest. The device has one address, and no time limits.
const PERF: Family =
    Family { both: "-F -d %d -p %p", hasty_client: Some(Side::Ours), lingers: true, ..PERF_CM };

const fn iwarp(row: Row) -> Row {
    Row { driver: Driver::Siw, settings: CRC, ..row }
}

const fn bare(row: Row) -> Row {
    Row { settings: NO_CRC, ..iwarp(row) }
}

/// The client sends first.
const fn client_first(row: Row) -> Row {
    Row { settings: CLIENT_FIRST, ..iwarp(row) }
}

/// `siw` answers requests of the first revision, and makes none.
const fn first_revision(row: Row) -> Row {
    Row { settings: FIRST, servers: &[Side::Kernel], ..iwarp(row) }
}

/// Connections whose ends look at what comes with messages.
const CALLS: Family = Family { lingers: true, ..CALLER };

const fn call(options: &'static str) -> Row {
    Row { family: &CALLS, ..iwarp(caller(options)) }
}

const fn perf(program: &'static str, options: &'static str) -> Row {
    Row { family: &PERF, ..perf_cm(program, options) }
}

const LONG_PINGS: Row =
    Row { says: "ping data: rdma-ping-4:", ..cm(&RPING, "rping", "-v -V -C 5 -S 60000") };

#[rustfmt::skip] // a table: one row, one line
pub(super) const SIW_ROWS: &[Row] = &[
    iwarp(PINGS),
    bare(PINGS),
    iwarp(LONG_PINGS),
    iwarp(GREETINGS),
    iwarp(cm(&CMATOSE, "ucmatose", "-c 5 -C 5 -S 8000")),
    bare(cm(&CMATOSE, "ucmatose", "-c 5 -C 5 -S 8000")),
    iwarp(perf("ib_send_bw", "-R -n 10 -s 65539")),
    iwarp(perf("ib_write_bw", "-R -n 10 -s 65539")),
    iwarp(perf("ib_read_bw", "-R -n 10 -s 65539")),
    iwarp(perf("ib_send_lat", "-R -n 10 -s 1")),
    iwarp(perf("ib_write_lat", "-R -n 10 -s 1025")),
    iwarp(perf("ib_read_lat", "-R -n 10 -s 4097")),
    bare(perf("ib_send_bw", "-R -n 10 -s 65539")),
    bare(perf("ib_write_bw", "-R -n 10 -s 65539")),
    bare(perf("ib_read_bw", "-R -n 10 -s 65539")),
    bare(perf("ib_send_lat", "-R -n 10 -s 1")),
    bare(perf("ib_write_lat", "-R -n 10 -s 1025")),
    bare(perf("ib_read_lat", "-R -n 10 -s 4097")),
    client_first(PINGS),
    client_first(perf("ib_write_bw", "-R -n 10 -s 65539")),
    first_revision(cm(&CMATOSE, "ucmatose", "-c 5 -C 5 -S 8000")),
    first_revision(perf("ib_send_bw", "-R -n 10 -s 65539")),
    first_revision(perf("ib_write_bw", "-R -n 10 -s 65539")),
    call("private-data"),
    call("refused"),
    call("no-listener"),
    Row { servers: &[Side::Kernel], ..killed(call("killed")) },
    call("longest"),
];
