//! `docs/INTEROP.md` and `docs/INTEROP-SIW.md`, written from the matrix.

use core::fmt::Write as _;
use std::fs;

use super::cells::{COLUMNS, Cell, rows};
use super::driver::Driver;
use super::{alone, failed};
use crate::Outcome;
use crate::shell::root;

/// Where the cells with a driver are listed.
fn path(driver: Driver) -> &'static str {
    match driver {
        Driver::Rxe => "docs/INTEROP.md",
        Driver::Siw => "docs/INTEROP-SIW.md",
    }
}

/// What stands above them.
fn introduction(driver: Driver) -> &'static str {
    match driver {
        Driver::Rxe => INTRODUCTION,
        Driver::Siw => SIW,
    }
}

const INTRODUCTION: &str = "\
# Interoperability

The Linux kernel has an RDMA adapter in software, too: Soft-RoCE (`rdma_rxe`), written by others
from the same specification. `cargo xtask interop` boots Debian's kernel with that driver in a small
emulated machine, and lets Debian's programs there talk to feroce. A cell is one run: a program and
its options, with the kernel at one end and feroce at the other. Every cell must succeed, and a cell
that cannot run is a failure; this page is written when all of them did. A cell runs again only if
the hypervisor took the processors away while it failed ([TESTING.md](TESTING.md), Retries).
`cargo xtask interop --suite bookworm-backports` runs the same cells against Linux 6.12; each of
them has succeeded with 6.12.95.

- *command* is the command of feroce that does the same, *drop-in* is the same program of Debian
  with our library in place of the system's (`feroce run -- PROGRAM`).
- *serves*: the kernel's end is the server; *calls*: it is the client.
- A row that begins with `feroce` has our command at both ends: on the kernel's driver at the other
  (`feroce --backend rdma-core`). So has what measures: `feroce perf` agrees with its peer in words
  of its own, and not in those of `perftest`.
- Both ends must end well and the client must report every message; with `-c`, the pingpong programs
  compare bytes.
- The kernel driver's counters of errors stay where they are over each cell, except for things sent
  twice, which a slow machine explains. It has no counter of wrong ICRCs, so its own check is
  watched with a kernel probe: none is wrong in any cell, and that a wrong one would be seen is
  tried out first. It refuses no packet at all, where errors are not the point; only in the rows of
  `ibv_srq_pingpong` may one packet in ten come for a queue pair that is gone, as that program ends
  while messages are under way to it.
- *loss*: one packet in a hundred is thrown away on its way to feroce.
- `probe` is [a program of our own](../interop/probe.c), with Debian's library at one end and ours
  at the other. *lengths*: sends, writes and reads of 0, 1, MTU - 1, MTU, MTU + 1, 64 KiB + 3 bytes
  and 8 MiB, every byte compared and those behind it, too. *atomics*: the results of both kinds.
  *bad-rkey*: remote access error, and both ends are in the error state. *no-receive*: RNR retries
  exceeded. *killed*: the server dies; retries exceeded, and what follows is flushed.
- `random` is [another one](../interop/random.c): it makes plans of requests from a seed, with
  mistakes in them, runs each on a connection of its own, and writes down how everything completes,
  the states of the queue pairs and a hash of the memory. All cells of such a row must say the same,
  in both roles of our end.
- `swarm` is [another one](../interop/swarm.c), which runs programs of the swarm, by their seed: up
  to four flows in both directions at once, drawn by the generator that the simulation uses, and
  written down by `swarm --program` after they ran there. Everything succeeds in them; how requests
  complete must be the same in all cells, and the memory of both ends what it was in the simulation.
- `group` is [another one](../interop/group.c): multicast with verbs alone.
- `caller` is [one more](../interop/caller.c), for connections by address. *private-data*: what
  requests and answers carry, and the numbers in them. *refused*: the server's own reason (28) and
  words arrive. *no-listener*: without one the reason is an invalid service (8). *killed*: the
  server dies as soon as it is connected; requests of the client fail.
- `perftest` knows connections by address (`-R`) for IPv4 only. Its server listens a second time,
  after the first call; an emulated one does so later than any client calls again, and the program
  does not survive the refusal. So our client [waits a second](../interop/late.c) there.
- The kernel's connection manager joins multicast groups of IPv4 only, hence `mckey` has those;
  `group` has both.
- `mckey` ends as soon as it has posted its messages. Linux 6.12 sends them later, and never if the
  queue pair is gone, so the kernel's `mckey` waits a second, too.

[DIFFERENCES.md](DIFFERENCES.md) says where the two differ.

## The machine in between

`cargo xtask interop --guest COMMAND` boots the same guest and runs a line of shell in it instead.
The guest has the files of this machine, read-only: a program that was built here runs there as
`/run/host` followed by its path here, with the libraries that it has here, and finds `rxe0` with
the addresses 10.91.0.2 and fd91::2. Only `/tmp`, `/run` and `/dev/shm` can be written to. For
example:

```sh
cargo build --release
cargo xtask interop --guest \"/run/host$PWD/target/release/feroce devices\"
```

`--keep` leaves guest and network there after the cells, and says how to get in at both ends. A row
of the matrix is a line in [rows.rs](../xtask/src/interop/rows.rs).

## The matrix

";

const ALONE: &str = "
## On the kernel's device itself

The Rust interface runs on drivers of the kernel as well (`feroce --backend rdma-core`, or
`FEROCE_BACKEND=rdma-core`). These cells run in the guest, with both ends on `rxe0`: our commands,
and the tests of the crate `feroce`. Where there is a network adapter, the tests run on it in the
same way:

```sh
FEROCE_BACKEND=rdma-core FEROCE_TEST_DEVICE=mlx5_0 cargo test -p feroce --test verbs
```

| what | `rxe0` |
|---|:-:|
";

const LEFT_OUT: &str = "
All tests of these programs run, those that will be added as well, except for some that ask for more
than the driver has:

";

const SIW: &str = "\
# Interoperability with Soft-iWARP

The kernel's driver for iWARP, `siw`, is in the source of Debian's kernel and not in its packages.
`cargo xtask interop --driver siw` builds it as it is and runs these cells, with feroce as
`transport = \"iwarp\"` ([IWARP.md](IWARP.md)). [INTEROP.md](INTEROP.md) says what cells and columns
are, and has those of Soft-RoCE. Each of these succeeded, too; they are not part of
`cargo xtask ci`.

- CRCs are used unless the row says *no CRC*: `siw` does not ask for them, and obeys.
- `siw` counts nothing; but the kernel must not report a fault of its own (an oops or a warning) in
  any cell.
- perftest ends a connection as soon as it has the last message; `siw` then completes its own last
  SEND with an error, although it has sent it. So our end of perftest and of `caller`
  [waits a second](../interop/linger.c) before it disconnects.
- `caller` is [our own](../interop/caller.c): private data, up to as much as `siw` takes, refusals,
  a port without a listener, a server that is killed. If that one is ours, the client of `siw` may
  get *local QP operation error* for its request, or wait for it for ever, so this is left out.
- In rows of *MPA revision 1*, `siw` serves: it makes no such requests, and answers no READ of one.
- `cmtime` is not among them: it ends connections as soon as they are there, and Linux 6.1 stops at
  an assertion of its own if a connection ends before `siw` has noticed the message by which feroce
  announces itself ([IWARP.md](IWARP.md)).

A row is a line in [siw_rows.rs](../xtask/src/interop/siw_rows.rs).

";

/// Fails unless the pages have the cells that there are.
pub(super) fn check() -> Outcome {
    for driver in [Driver::Rxe, Driver::Siw] {
        let path = root().join(path(driver));
        let page = fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
        if !page.starts_with(introduction(driver)) || !page.ends_with(&table(driver)) {
            return Err(failed(&path, "not what `cargo xtask interop` would write"));
        }
    }
    Ok(())
}

/// Writes the page of a driver.
pub(super) fn write(driver: Driver, versions: &str) -> Outcome {
    let path = root().join(path(driver));
    let introduction = introduction(driver);
    let text = format!("{introduction}Last run with {versions}.\n\n{}", table(driver));
    fs::write(&path, text).map_err(|e| failed(&path, e))
}

/// The cells with a driver, and how many there are.
fn table(driver: Driver) -> String {
    let mut table = "| program | options |".to_owned();
    for (form, network, server) in COLUMNS {
        let role = if server == super::lab::Side::Kernel { "serves" } else { "calls" };
        table += &format!(" {form} {network} {role} |");
    }
    table += &format!("\n|---|---|{}\n", ":-:|".repeat(COLUMNS.len()));
    for row in rows(driver) {
        let remark = row.remark();
        let options = match row.options {
            "" => "none".to_owned(),
            options => format!("`{options}`"),
        };
        table += &format!("| {} | {options}{remark} |", row.name());
        for column in COLUMNS {
            table += if Cell::at(row, column).is_some() { " ✓ |" } else { " |" };
        }
        table.push('\n');
    }
    if driver == Driver::Rxe {
        table += &alone_table();
    }
    writeln!(table, "\n{} cells.", super::trials(driver, false).count()).unwrap_or_default();
    table
}

/// The cells that need no cable.
fn alone_table() -> String {
    let mut table = ALONE.to_owned();
    for one in alone::all() {
        writeln!(table, "| {one} | ✓ |").unwrap_or_default();
    }
    table += LEFT_OUT;
    for (program, name, reason) in alone::left_out() {
        writeln!(table, "- `{program}`, `{name}`: {reason}.").unwrap_or_default();
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_cells_that_there_are() {
        assert_eq!(check(), Ok(()));
    }
}
