//! The rows of the matrix with Soft-iWARP at the other end.

use super::driver::Driver;
use super::lab::Side;
use super::rows::{CMATOSE, Family, GREETINGS, PERF_CM, PINGS, RPING, Row, cm, perf_cm};

/// What our end is told: to speak iWARP.
const CRC: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp")];

/// And not to ask for CRCs, which `siw` does not ask for either.
const NO_CRC: &[(&str, &str)] = &[("FEROCE_TRANSPORT", "iwarp"), ("FEROCE_MPA_CRC", "0")];

/// perftest. The device has one address, and no time limits.
const PERF: Family =
    Family { both: "-F -d %d -p %p", hasty_client: Some(Side::Ours), lingers: true, ..PERF_CM };

const fn iwarp(row: Row) -> Row {
    Row { driver: Driver::Siw, settings: CRC, ..row }
}

const fn bare(row: Row) -> Row {
    Row { settings: NO_CRC, ..iwarp(row) }
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
];
