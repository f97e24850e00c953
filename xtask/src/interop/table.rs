//! `docs/INTEROP.md`, written from the matrix.

use core::fmt::Write as _;
use std::fs;

use super::cells::{self, COLUMNS, Cell, ROWS};
use super::failed;
use crate::Outcome;
use crate::shell::root;

const PATH: &str = "docs/INTEROP.md";

const INTRODUCTION: &str = "\
# Interoperability

The Linux kernel has an RDMA adapter in software, too: Soft-RoCE (`rdma_rxe`), written by others
from the same specification. `cargo xtask interop` boots Debian's kernel with that driver in a small
emulated machine, and lets Debian's programs there talk to feroce. A cell is one run: a program and
its options, with the kernel at one end and feroce at the other. Every cell must succeed, and a cell
that cannot run is a failure; this page is written when all of them did, and not by hand.

- *command* is the command of feroce that does the same, *drop-in* is the same program of Debian
  with our library in place of the system's (`feroce run -- PROGRAM`).
- *serves*: the kernel's end is the server; *calls*: it is the client.
- Both ends must end well and the client must report every message; with `-c`, the pingpong programs
  compare bytes.
- The kernel driver's counters of errors stay where they are over each cell, except for things sent
  twice, which a slow machine explains. It must have taken the packets that reached it, but for
  those that came after the program there was done: a wrong ICRC would show.
- *loss*: one packet in a hundred is thrown away on its way to feroce.
- `probe` is [a program of our own](../interop/probe.c), with Debian's library at one end and ours
  at the other. *lengths*: sends, writes and reads of 0, 1, MTU - 1, MTU, MTU + 1, 64 KiB + 3 bytes
  and 8 MiB, every byte compared and those behind it, too. *atomics*: the results of both kinds.
  *bad-rkey*: remote access error, and both ends are in the error state. *no-receive*: RNR retries
  exceeded. *killed*: the server dies; retries exceeded, and what follows is flushed.

Left out, because they failed and nobody has found out why yet:

- *killed* with the kernel as client: it had not ended after 90 seconds.
- `ib_read_bw -m 1024 -n 20 -s 65539` with loss: once, our end as client gave up with retries
  exceeded although the kernel was there; at other times it passed.

";

/// Writes the page.
pub(super) fn write(versions: &str) -> Outcome {
    let path = root().join(PATH);
    let text = format!("{INTRODUCTION}Last run with {versions}.\n\n{}", table());
    fs::write(&path, text).map_err(|e| failed(&path, e))
}

/// The cells, and how many there are.
fn table() -> String {
    let mut table = "| program | options |".to_owned();
    for (form, network, server) in COLUMNS {
        let role = if server == super::lab::Side::Kernel { "serves" } else { "calls" };
        table += &format!(" {form} {network} {role} |");
    }
    table += &format!("\n|---|---|{}\n", ":-:|".repeat(COLUMNS.len()));
    for row in ROWS {
        let fault = row.fault.split(',').next().unwrap_or_default();
        let fault = if fault.is_empty() { String::new() } else { format!(", {fault}") };
        table += &format!("| {} | `{}`{fault} |", row.program, row.options);
        for column in COLUMNS {
            table += if Cell::at(row, column).is_some() { " ✓ |" } else { " |" };
        }
        table.push('\n');
    }
    writeln!(table, "\n{} cells.", cells::all().len()).unwrap_or_default();
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_cells_that_there_are() {
        let page = fs::read_to_string(root().join(PATH)).expect("docs/INTEROP.md");
        assert!(page.ends_with(&table()), "run `cargo xtask interop`, which writes {PATH}");
        assert!(page.starts_with(INTRODUCTION));
    }
}
