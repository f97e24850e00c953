//! The matrix. A row is a program and its options; a cell is a row with feroce in one of its two
//! forms at one end, the kernel's driver at the other, and a network between them.

use core::fmt;
use std::path::PathBuf;

use super::lab::{Side, in_guest};
use crate::shell::target_dir;

/// What is at our end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// A command of feroce that does the same.
    Tool,
    /// The same program, with our library in place of the system's.
    DropIn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    V4,
    V6,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tool => "command",
            Self::DropIn => "drop-in",
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// How the options of a program are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    /// Programs of libibverbs.
    Verbs,
    /// perftest.
    Perf,
    /// Our own, `interop/probe.c`, which takes the options of the first.
    Probe,
}

/// What is expected of the counters of the kernel's driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counters {
    /// None of those that count errors moves.
    AtRest,
    /// Packets are lost on our side, but none is refused.
    Lossy,
    /// The errors are the point.
    Free,
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row {
    family: Family,
    /// As the distribution calls it.
    pub(super) program: &'static str,
    /// Our command for it, if there is one.
    tool: Option<&'static str>,
    /// The same at both ends.
    pub(super) options: &'static str,
    /// What our link does to what it receives, in the words of `FEROCE_FAULT`.
    pub(super) fault: &'static str,
    pub(super) counters: Counters,
    networks: &'static [Network],
}

impl Row {
    /// Whether our end may be of this form.
    fn has(&self, form: Form) -> bool {
        form == Form::DropIn || self.tool.is_some()
    }

    /// What a client says when all went well, white space aside.
    pub(super) fn says(&self) -> String {
        let iterations = value(self.options, "-n");
        match self.family {
            Family::Verbs => format!("{iterations} iters in"),
            Family::Perf if self.program.starts_with("ib_atomic") => format!(" 8 {iterations} "),
            Family::Perf => format!(" {} {iterations} ", value(self.options, "-s")),
            Family::Probe => "as it should be".to_owned(),
        }
    }

    /// Whether the server does not live to say that it is content.
    pub(super) fn kills_server(&self) -> bool {
        self.options.ends_with("killed")
    }
}

/// The value of an option, as in `-n 100`.
fn value<'a>(options: &'a str, name: &str) -> &'a str {
    let mut words = options.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).unwrap_or_default()
}

const BOTH: &[Network] = &[Network::V4, Network::V6];
const ONLY_V4: &[Network] = &[Network::V4];

const fn pingpong(program: &'static str, tool: &'static str, options: &'static str) -> Row {
    Row { tool: Some(tool), ..row(Family::Verbs, program, options) }
}

const fn perf(program: &'static str, options: &'static str) -> Row {
    row(Family::Perf, program, options)
}

const fn probe(options: &'static str, counters: Counters) -> Row {
    Row { counters, ..row(Family::Probe, "probe", options) }
}

const fn row(family: Family, program: &'static str, options: &'static str) -> Row {
    let (counters, networks) = (Counters::AtRest, BOTH);
    Row { family, program, tool: None, options, fault: "", counters, networks }
}

/// With one packet in a hundred lost on its way to us.
const fn lossy(row: Row) -> Row {
    Row { fault: "loss=1%,seed=7", counters: Counters::Lossy, networks: ONLY_V4, ..row }
}

#[rustfmt::skip] // a table: one row, one line
pub(super) const ROWS: &[Row] = &[
    pingpong("ibv_rc_pingpong", "rc-pingpong", "-c -n 20 -m 1024 -s 1025"),
    pingpong("ibv_rc_pingpong", "rc-pingpong", "-c -n 10 -m 4096 -s 65539"),
    pingpong("ibv_uc_pingpong", "uc-pingpong", "-c -n 20 -m 1024 -s 1025"),
    pingpong("ibv_uc_pingpong", "uc-pingpong", "-c -n 20 -m 4096 -s 8193"),
    pingpong("ibv_ud_pingpong", "ud-pingpong", "-c -n 20 -s 1024"),
    pingpong("ibv_ud_pingpong", "ud-pingpong", "-c -n 20 -s 4096"),
    pingpong("ibv_srq_pingpong", "srq-pingpong", "-c -n 20 -m 1024 -s 1025 -q 4"),
    pingpong("ibv_srq_pingpong", "srq-pingpong", "-c -n 20 -m 4096 -s 65539 -q 4"),
    lossy(pingpong("ibv_rc_pingpong", "rc-pingpong", "-c -n 100 -m 1024 -s 4097")),
    perf("ib_send_bw", "-F -u 18 -m 1024 -n 10 -s 65539"),
    perf("ib_send_bw", "-F -u 18 -m 4096 -n 10 -s 65539"),
    perf("ib_send_bw", "-F -u 18 -c UD -n 10 -s 1023"),
    perf("ib_send_lat", "-F -u 18 -n 10 -s 1"),
    perf("ib_write_bw", "-F -u 18 -m 1024 -n 10 -s 65539"),
    perf("ib_write_bw", "-F -u 18 -m 4096 -n 5 -s 8388608"),
    perf("ib_write_lat", "-F -u 18 -n 10 -s 1025"),
    perf("ib_read_bw", "-F -u 18 -m 1024 -n 10 -s 65539"),
    perf("ib_read_bw", "-F -u 18 -m 4096 -n 5 -s 8388608"),
    perf("ib_read_lat", "-F -u 18 -n 10 -s 4097"),
    perf("ib_atomic_bw", "-F -u 18 -n 10 -A FETCH_AND_ADD"),
    perf("ib_atomic_bw", "-F -u 18 -n 10 -A CMP_AND_SWAP"),
    lossy(perf("ib_write_bw", "-F -u 18 -m 1024 -n 20 -s 65539")),
    probe("-m 1024 lengths", Counters::AtRest),
    probe("-m 4096 lengths", Counters::AtRest),
    probe("-m 1024 atomics", Counters::AtRest),
    probe("-m 1024 bad-rkey", Counters::Free),
    probe("-m 1024 no-receive", Counters::Free),
    probe("-m 1024 killed", Counters::Free),
];

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) row: &'static Row,
    pub(super) form: Form,
    pub(super) network: Network,
    /// Who is the server.
    pub(super) server: Side,
}

/// Every form, network and role that a row may have, in the order of the columns of the table.
pub(super) const COLUMNS: [(Form, Network, Side); 8] = [
    (Form::Tool, Network::V4, Side::Kernel),
    (Form::Tool, Network::V4, Side::Ours),
    (Form::Tool, Network::V6, Side::Kernel),
    (Form::Tool, Network::V6, Side::Ours),
    (Form::DropIn, Network::V4, Side::Kernel),
    (Form::DropIn, Network::V4, Side::Ours),
    (Form::DropIn, Network::V6, Side::Kernel),
    (Form::DropIn, Network::V6, Side::Ours),
];

impl Cell {
    /// The cell of a row in a column, if the row has it.
    pub(super) fn at(
        row: &'static Row,
        (form, network, server): (Form, Network, Side),
    ) -> Option<Self> {
        // Left out, as the page says: a client in the guest had not ended when its time was up.
        let ends = server == Side::Kernel || !row.kills_server();
        let is_there = ends && row.has(form) && row.networks.contains(&network);
        is_there.then_some(Self { row, form, network, server })
    }

    /// Says which one it is; `--only` looks for a part of it.
    pub(super) fn name(&self) -> String {
        let Row { program, options, fault, .. } = self.row;
        let fault = if fault.is_empty() { String::new() } else { format!(", {fault}") };
        let server = match self.server {
            Side::Kernel => "kernel serves",
            Side::Ours => "kernel calls",
        };
        format!("{program} {options}{fault}, {}, {}, {server}", self.form, self.network)
    }

    /// What to run at a side.
    pub(super) fn command(&self, side: Side, port: u16) -> Vec<String> {
        let Row { family, program, tool, options, .. } = self.row;
        let feroce = target_dir().join("release/feroce").display().to_string();
        let program = match (family, side) {
            (Family::Probe, Side::Kernel) => in_guest(&probe_path()),
            (Family::Probe, Side::Ours) => probe_path().display().to_string(),
            _ => (*program).to_owned(),
        };
        let (start, device) = match (side, self.form, tool) {
            (Side::Kernel, ..) => (program, "rxe0"),
            (Side::Ours, Form::Tool, Some(tool)) => {
                (format!("{feroce} {tool} --timeout 60"), "feroce0")
            }
            (Side::Ours, ..) => (format!("{feroce} run -- {program}"), "feroce0"),
        };
        let gid = match family {
            Family::Verbs | Family::Probe => "-g",
            Family::Perf => "-x",
        };
        let index = self.gid_index(side);
        let host = match (side == self.server, side) {
            (true, _) => "",
            (false, Side::Kernel) => Side::Ours.address(),
            (false, Side::Ours) => Side::Kernel.address(),
        };
        let line = format!("{start} -d {device} {gid} {index} -p {port} {options} {host}");
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Where the address is in the table of the device. That of the kernel begins with an address
    /// that it makes from the one of the interface.
    fn gid_index(&self, side: Side) -> u8 {
        let ours = match self.network {
            Network::V4 => 0,
            Network::V6 => 1,
        };
        if side == Side::Kernel { ours + 1 } else { ours }
    }
}

/// Where our own program is built.
pub(super) fn probe_path() -> PathBuf {
    target_dir().join("interop/probe")
}

/// Every cell, row by row.
pub(super) fn all() -> Vec<Cell> {
    let cells = |row| COLUMNS.iter().filter_map(move |column| Cell::at(row, *column));
    ROWS.iter().flat_map(cells).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        let cells = all();
        let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len());
    }

    #[test]
    fn both_ends_agree_on_everything_but_who_calls() {
        let cell =
            Cell { row: &ROWS[0], form: Form::DropIn, network: Network::V6, server: Side::Ours };
        let kernel = cell.command(Side::Kernel, 5).join(" ");
        assert_eq!(kernel, "ibv_rc_pingpong -d rxe0 -g 2 -p 5 -c -n 20 -m 1024 -s 1025 10.91.0.1");
        let ours = cell.command(Side::Ours, 5).join(" ");
        let rest = "feroce run -- ibv_rc_pingpong -d feroce0 -g 1 -p 5 -c -n 20 -m 1024 -s 1025";
        assert!(ours.ends_with(rest), "{ours}");
        assert_eq!(cell.row.says(), "20 iters in");
    }
}
